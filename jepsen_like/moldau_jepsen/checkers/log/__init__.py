"""Checkers of the order and the content of partitions."""
