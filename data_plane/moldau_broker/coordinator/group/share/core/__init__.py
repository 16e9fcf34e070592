"""Pure code: the state of share groups, its records, the assignor, and the decisions on requests."""
