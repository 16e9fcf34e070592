"""The group coordinator's replicated core. Pure."""
