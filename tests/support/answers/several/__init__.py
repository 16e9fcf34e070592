"""Three brokers: requests to those that do not lead, moves of partitions, and brokers that stop."""
