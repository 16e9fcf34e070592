"""Live views of a cluster: what changes between two looks at it."""
