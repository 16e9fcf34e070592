"""The virtual network: hosts, links and TCP connections."""
