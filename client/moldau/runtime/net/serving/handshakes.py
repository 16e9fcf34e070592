"""The TLS handshakes in progress at a listener, and the choice of one that gives way to a new one. Pure.

A handshake costs signatures, and the peer is unknown until it ends, so the number of handshakes is bounded, in total
and per address. Silent peers must not lock out others for the duration of a handshake. A new connection therefore
replaces the one whose peer was silent longest:

- of its own address, if that has reached the bound per address;
- otherwise of the address with the most handshakes, if the listener has reached its bound.

A peer that sent bytes within ``PATIENCE_MS`` keeps its place unless its address has more than its share, because on a
busy machine this node itself may be slow. Then the new connection is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

PATIENCE_MS: Final = 1_000.0

K = TypeVar("K")


class Handshakes(Generic[K]):
    """Handshakes by any key. Invariant: ``_of_host`` holds the keys of ``_entered``, and no host without keys."""

    __slots__ = ("_entered", "_of_host")

    def __init__(self) -> None:
        """Starts without handshakes."""
        self._entered: dict[K, str] = {}
        self._of_host: dict[str, OrderedDict[K, float]] = {}  # when the peer was heard last, the longest silent first

    def __len__(self) -> int:
        """Returns the number of handshakes in progress."""
        return len(self._entered)

    def enter(self, key: K, host: str, now_ms: float) -> None:
        """Adds a handshake with a peer at ``host``."""
        self._entered[key] = host
        self._of_host.setdefault(host, OrderedDict())[key] = now_ms

    def heard(self, key: K, now_ms: float) -> None:
        """Notes that the peer has sent something; without effect after ``leave``."""
        host = self._entered.get(key)
        if host is not None:
            keys = self._of_host[host]
            keys[key] = now_ms
            keys.move_to_end(key)

    def leave(self, key: K) -> None:
        """Removes a handshake that has ended or was given up; idempotent."""
        host = self._entered.pop(key, None)
        if host is not None:
            keys = self._of_host[host]
            del keys[key]
            if not keys:
                del self._of_host[host]

    def victims(self, host: str, now_ms: float, *, most: int, most_per_host: int) -> list[K] | None:
        """Returns the handshakes, one at most, that leave for a new one from ``host``; None if it is to be refused."""
        own = len(self._of_host.get(host, ()))
        if own < most_per_host and len(self._entered) < most:
            return []
        if not self._entered:
            return None  # one of the bounds is 0
        greedy = host
        if own < most_per_host:
            greedy = max(self._of_host, key=lambda other: len(self._of_host[other]))
        keys = self._of_host[greedy]
        key, heard_ms = next(iter(keys.items()))
        if len(keys) > own + 1 or now_ms - heard_ms >= PATIENCE_MS:
            return [key]
        return None
