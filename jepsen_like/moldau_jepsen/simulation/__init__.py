"""Deterministic simulation: production code on virtual time, a virtual network and virtual disks, from one seed."""
