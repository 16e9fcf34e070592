"""Pure code: the state of streams groups, its records, internal topics, the assignor, and the decisions on requests."""
