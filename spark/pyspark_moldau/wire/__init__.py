"""What the source says to brokers: connections, metadata, decoding of fetched batches, offsets of groups."""
