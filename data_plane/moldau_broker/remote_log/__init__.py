"""Tiered storage (KIP-405): copies of closed segments in an object store, and reading from them.

``core`` is pure. ADR 0051 says how segments are named and why the store itself says which exist.
"""
