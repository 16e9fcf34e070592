"""Loops of mirrors that keep topic names: what they leave in records, and cycles of mirrors. Pure.

The identity policy cannot see from a topic's name where its records came from. So each mirror adds a header to a record
with the id of the cluster that it read it from, and does not copy a record that has been in the target. Records that
other programs mirror carry no such header. Therefore a mirror also reads the heartbeats of its source, which say which
mirrors feed it, and refuses to close a cycle.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.mirror.core.formats import Heartbeat

HEADER: Final = "moldau.mirror.cluster"
"""Header with the id of a cluster that a mirror has read the record from, one for each hop, the oldest first."""

Headers = tuple[tuple[str, bytes | None], ...]


def has_visited(headers: Iterable[tuple[str, bytes | None]], cluster_id: str) -> bool:
    """Returns whether a mirror has read the record from this cluster before."""
    wanted = cluster_id.encode("utf-8")
    return any(name == HEADER and value == wanted for name, value in headers)


def with_visit(headers: Headers, cluster_id: str) -> Headers:
    """Returns the headers of a record that is read from this cluster."""
    return (*headers, (HEADER, cluster_id.encode("utf-8")))


def find_cycle(heartbeats: Iterable[Heartbeat], source: str, target: str, *, alive_since_ms: float) -> list[str]:
    """Returns the aliases of a cycle that a mirror from ``source`` to ``target`` would close; empty if none.

    ``heartbeats`` come from the topics of the source cluster. Mirrors without a heartbeat since ``alive_since_ms``
    (Unix milliseconds) do not count.
    """
    following: dict[str, list[str]] = {}
    for heartbeat in heartbeats:
        if heartbeat.timestamp >= alive_since_ms:
            following.setdefault(heartbeat.source, []).append(heartbeat.target)
    waiting = deque([[target]])
    seen = {target: None}
    while waiting:
        way = waiting.popleft()
        if way[-1] == source:
            return [source, *way]
        for alias in following.get(way[-1], ()):
            if alias not in seen:
                seen[alias] = None
                waiting.append([*way, alias])
    return []
