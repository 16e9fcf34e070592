"""Committed cluster metadata on a broker: the cache, its application, automatic topic creation."""
