"""The consumer's pure cores: positions, fetched chunks, assignors, membership."""
