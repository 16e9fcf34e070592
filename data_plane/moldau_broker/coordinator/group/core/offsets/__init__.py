"""The committed offsets of groups: commits, fetches, expiry, and topics that are gone."""
