"""Keys of tiered storage (KIP-405)."""

from __future__ import annotations

from moldau.runtime.config.declare import string

REMOTE_STORE_KEYS = (
    string(
        name="remote.log.storage.url",
        default=None,
        group="Tiered storage",
        is_own=True,
        doc="The object store of remote segments: `file:///path` for a directory that exists and that all brokers "
        "share. All brokers of a cluster have the same; several clusters can share one.",
    ),
)
