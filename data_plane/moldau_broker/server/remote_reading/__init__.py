"""Reads of remote segments (KIP-405) for fetches, share groups, ListOffsets and starts of followers."""
