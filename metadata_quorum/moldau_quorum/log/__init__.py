"""The replicated metadata log: one port, two engines."""
