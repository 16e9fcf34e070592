"""Log lines and metrics of a node."""
