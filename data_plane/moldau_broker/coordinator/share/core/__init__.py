"""The share coordinator's replicated core. Pure."""
