"""Checkers of transactions: cycles of dependencies, open transactions, the bank."""
