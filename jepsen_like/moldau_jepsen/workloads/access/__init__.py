"""Workloads that change rights and quotas under clients that use them."""
