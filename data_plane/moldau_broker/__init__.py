"""The broker: partition logs, replication, coordinators and the server that speaks Kafka's protocol."""
