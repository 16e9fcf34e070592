"""The producer's pure cores: batching, partitioning, transactions."""
