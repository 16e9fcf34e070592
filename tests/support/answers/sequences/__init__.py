"""Requests whose answers depend on those before them: producers, transactions, sessions of fetches, deleted topics."""
