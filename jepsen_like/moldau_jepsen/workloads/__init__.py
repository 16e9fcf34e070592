"""Provides clients that use a cluster and record a history. They run unchanged on processes and in simulation."""
