"""The commands about groups: of consumers, of share consumers, of Kafka Streams."""
