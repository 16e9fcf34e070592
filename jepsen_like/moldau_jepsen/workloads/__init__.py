"""Clients that use a cluster and write down what they saw. They run unchanged against processes and in simulation."""
