"""Faults of links between processes: proxies and network namespaces."""
