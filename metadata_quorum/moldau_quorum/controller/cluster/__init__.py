"""Decisions about brokers, their sessions and log directories, and the feature levels of the cluster."""
