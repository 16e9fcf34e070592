"""Kafka's wire protocol: message tables, codecs compiled from them, framing and error codes.

Nothing in this package does I/O or keeps state beyond caches of compiled code; everything above stands on it.
"""
