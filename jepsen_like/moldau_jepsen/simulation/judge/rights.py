"""Samples the rights, passwords and tokens that brokers know, at each step while a client waits for an answer."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau.runtime.sasl.core.scram import keys_of, salted_password
from moldau_jepsen.checkers.rights import Right, Watched, permits
from moldau_jepsen.cluster.secured import MECHANISM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_quorum.metadata.image import MetadataImage

ROUNDING_MS = 2
SCRAM_SHA_256 = 1
"""Its number in the metadata (KIP-554)."""


class RightsWatch:
    """Samples the metadata of brokers for the requests that are under way."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._open: list[Watched] = []
        self._ends_ms: dict[tuple[int, str], float] = {}

    def turn_ended(self) -> None:
        """Takes a sample for each request that is under way."""
        for watched in self._open:
            watched.sample()

    @contextmanager
    def right(self, broker_id: int, right: Right) -> Iterator[Watched]:
        """Watches whether a broker's ACLs give a right."""
        with self._watch(
            _remembering(self._broker(broker_id), lambda image: permits(image.acls.values(), right))
        ) as it:
            yield it

    @contextmanager
    def password(self, broker_id: int, user: str, password: str) -> Iterator[Watched]:
        """Watches whether a broker knows this password of a user."""
        with self._watch(_remembering(self._broker(broker_id), lambda image: _knows(image, user, password))) as it:
            yield it

    @contextmanager
    def token(self, broker_id: int, token_id: str) -> Iterator[Watched]:
        """Watches whether a delegation token is known to a broker, and valid by that broker's clock.

        Remembers when a session that begins meanwhile must end, for ``session``.
        """
        get = self._broker(broker_id)
        clock = self._cluster.machines[broker_id].environment.clock

        def look() -> bool | None:
            broker = get()
            if broker is None:
                return None
            record = broker.metadata.image.delegation_tokens.get(token_id)
            if record is None:
                return False
            remaining_ms = record.expiry_ms - clock.wall_ms()
            # A broker gives a session at least a millisecond, and counts in whole ones.
            ends_ms = clock.monotonic_ms() + max(1, remaining_ms) + ROUNDING_MS
            key = (broker_id, token_id)
            self._ends_ms[key] = max(ends_ms, self._ends_ms.get(key, 0.0))
            return remaining_ms > 0

        with self._watch(look) as it:
            yield it

    @contextmanager
    def session(self, broker_id: int, token_id: str) -> Iterator[Watched]:
        """Watches whether a session that this token opened may still be served, by the broker's clock.

        A token that is shortened later does not end sessions; they end when it would have expired at their begin.
        """
        clock = self._cluster.machines[broker_id].environment.clock
        ends_ms = self._ends_ms.get((broker_id, token_id), 0.0)
        with self._watch(lambda: clock.monotonic_ms() < ends_ms) as it:
            yield it

    def _broker(self, broker_id: int) -> Callable[[], Broker | None]:
        return lambda: self._cluster.brokers.get(broker_id)

    @contextmanager
    def _watch(self, look: Callable[[], bool | None]) -> Iterator[Watched]:
        watched = Watched(look)
        watched.sample()
        self._open.append(watched)
        try:
            yield watched
        finally:
            self._open.remove(watched)


def _remembering(get: Callable[[], Broker | None], judge: Callable[[MetadataImage], bool]) -> Callable[[], bool | None]:
    """Returns a look at a broker that judges each image once."""
    last: tuple[MetadataImage, bool] | None = None

    def look() -> bool | None:
        nonlocal last
        broker = get()
        if broker is None:
            return None
        image = broker.metadata.image
        if last is None or last[0] is not image:
            last = image, judge(image)
        return last[1]

    return look


def _knows(image: MetadataImage, user: str, password: str) -> bool:
    record = image.scram_credentials.get((user, SCRAM_SHA_256))
    return record is not None and _stored_key(password, record.salt, record.iterations) == record.stored_key


@functools.lru_cache(maxsize=256)
def _stored_key(password: str, salt: bytes, iterations: int) -> bytes:
    return keys_of(MECHANISM, salted_password(MECHANISM, password, salt, iterations), salt, iterations).stored_key
