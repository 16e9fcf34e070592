"""Chaos on real processes: faults, workloads and checkers against a running cluster."""
