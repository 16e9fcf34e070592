"""Moldau: a Kafka-compatible replicated log in Python. This package is the client and the base that all else stands on."""
