"""The connections of one client to brokers, and its start again at ``bootstrap.servers``."""
