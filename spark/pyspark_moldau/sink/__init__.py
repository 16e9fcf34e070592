"""The sink: writes rows of batch and streaming queries to topics, at least once or exactly once."""
