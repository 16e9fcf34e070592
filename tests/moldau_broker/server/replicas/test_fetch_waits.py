"""Goal: a change of a partition ends the wait of each fetch for which it is enough, whatever waits beside it.

Method: waiting fetches alone, each of which is ready or not, in every order and with each kind of key.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
from moldau_broker.server.replicas.delayed import WaitingFetch
from moldau_broker.server.replicas.partition import WatchKey
from moldau_broker.server.replicas.replica_waits import ReplicaWaits

WIRE_KEY, NAME_KEY = (b"id", 0), (b"name", 0)


class Waiting(WaitingFetch):
    """A fetch that the next change of its partition ends, or does not end."""

    def __init__(self, *, is_ready: bool) -> None:
        super().__init__()
        self.is_ready = is_ready

    def ready(self, partition: object) -> bool:
        del partition
        return self.is_ready


@pytest.mark.parametrize("in_session", [False, True])
@pytest.mark.parametrize("watermark", [False, True])
def test_a_fetch_that_goes_on_waiting_holds_up_no_other(watermark: bool, in_session: bool) -> None:
    """A fetch that asks for many bytes, or of a throttled follower, may wait before one that has enough."""
    for readiness in product((False, True), repeat=4):
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
        waits = ReplicaWaits(clock, 10, lambda _: 0)
        partition: Any = SimpleNamespace(wire_key=WIRE_KEY, name_key=NAME_KEY)
        partition.end, partition.committed = WatchKey(partition), WatchKey(partition)
        own: Any = partition.committed if watermark else partition.end
        other: Any = partition.end if watermark else partition.committed
        if in_session:
            session = FetchSession(1, privileged=False, uses_topic_ids=True, now_ms=0)
            session.add(FetchPartition(*WIRE_KEY, fetch_offset=0, max_bytes=1))
            waits.sessions.add(WIRE_KEY, session)
            own, other = (session, watermark), (session, not watermark)
        fetches = [Waiting(is_ready=is_ready) for is_ready in readiness]
        for fetch in fetches:
            fetch.delayed = waits.fetches.watch(fetch, (own,), 1_000)
        elsewhere = Waiting(is_ready=True)
        elsewhere.delayed = waits.fetches.watch(elsewhere, (other,), 1_000)
        waits.moved(partition, watermark=watermark)
        assert [fetch.delayed is None for fetch in fetches] == list(readiness)
        assert elsewhere.delayed is not None
