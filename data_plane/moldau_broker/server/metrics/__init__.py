"""Statistics of a broker, and their export under Kafka's names."""
