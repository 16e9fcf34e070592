"""Client telemetry (KIP-714): which clients push which metrics, and what they pushed."""
