"""Enforcement of client quotas on a broker: charges requests, pauses clients, bounds the rate of connections."""
