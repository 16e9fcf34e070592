"""Unmodified Kafka clients behind one interface."""
