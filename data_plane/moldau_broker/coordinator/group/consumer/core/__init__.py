"""Pure code: the state of consumer groups, its records, assignors, and the decisions on requests."""
