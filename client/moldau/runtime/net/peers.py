"""The node that a client expects behind an address. A value without behaviour."""

from __future__ import annotations

from typing import NamedTuple


class ExpectedPeer(NamedTuple):
    """Cluster and node, which a client names in ApiVersions 5 so that a wrong broker refuses it (KIP-1242)."""

    cluster_id: str
    node_id: int
