"""Rates, samples and the pace of requests. All modules are pure."""
