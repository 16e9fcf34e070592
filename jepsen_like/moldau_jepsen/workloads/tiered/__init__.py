"""Clients of tiered topics (KIP-405): writers, readers that begin at the earliest offset, and deletions."""
