"""Simulates disks: written data, durable data, and the effect of a power loss."""
