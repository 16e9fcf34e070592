"""Kafka connections: the server's loop, the client's side, and how answers leave."""
