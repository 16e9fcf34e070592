"""The transaction coordinator's replicated core. Pure."""
