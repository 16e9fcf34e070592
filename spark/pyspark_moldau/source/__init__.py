"""The source: reads topics in batch and streaming queries, as Spark's own Kafka source does."""
