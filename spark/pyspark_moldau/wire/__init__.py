"""The source's communication with brokers: connections, metadata, decoding of fetched batches, offsets of groups."""
