"""Client metrics: what a client pushes to the brokers if the cluster asks for it (KIP-714)."""
