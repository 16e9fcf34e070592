"""Goal: under one id a leader puts one content, and only as long as no other broker takes it for a leftover.

Method: all short histories of copies that fail, with pauses, segments and contents of ``.aux`` from small sets, against
a store that remembers what was put under which id; and a simulated cluster in which a copy waits for its rate.
"""

from __future__ import annotations

import random
from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.server.remote_log.leader import LeaderTasks
from moldau_jepsen.world.objects import ObjectTrouble
from support.cluster.broker_cluster import run_cluster
from support.objects.tiered import DELAY_MS as CLUSTER_DELAY_MS
from support.objects.tiered import TIERED, TOPIC, copied, fill, objects, patiently

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Coroutine

    from moldau_broker.remote_log.core.names import RemoteSegment

DELAY_MS = 1000
"""``remote.log.unfinished.delete.delay.ms``; an id is used for less than half of it."""
PAUSES_MS = (200, 300)
SEGMENTS = AUXILIARIES = (0, 1)
LENGTH = 3
Step = tuple[int, int, int, bool]
"""The pause before a copy, its segment, the content of its ``.aux``, and whether the store takes it."""


class Leader:
    """A leader with a clock, and a store that keeps the times and the contents of all ids."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.pause_ms = 0.0
        self.takes = True
        self.puts: dict[uuid.UUID, list[tuple[float, RemoteSegment, bytes]]] = {}
        self.last: uuid.UUID | None = None
        environment = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms), random=random.Random(1))
        tools: Any = SimpleNamespace(
            environment=environment,
            settings=SimpleNamespace(unfinished_delete_delay_ms=float(DELAY_MS)),
            copier=SimpleNamespace(check=_checked, encode=_encoded, wait_for_rate=self.wait_for_rate, put=self.put),
            logger=SimpleNamespace(info=lambda *_, **__: None),
        )
        traffic = SimpleNamespace(remote_copy_requests=0, remote_copy_errors=0, remote_copy_bytes=0)
        partition = SimpleNamespace(traffic=traffic, key="t-0")
        remote: Any = SimpleNamespace(partition=partition, folder="f/", damaged_offset=None, copied=lambda _: None)
        self.tasks = LeaderTasks(tools, remote)

    async def wait_for_rate(self, size_bytes: int) -> None:
        """Waits for half of a pause: the rate may hold a copy back for as long as an id may be used."""
        assert size_bytes == 101
        self.now_ms += self.pause_ms / 2

    async def put(self, folder: str, segment: RemoteSegment, auxiliary: bytes, content: object) -> None:
        """Takes both objects, and answers or not."""
        self.last = segment.segment_id
        self.puts.setdefault(segment.segment_id, []).append((self.now_ms, segment, auxiliary))
        if not self.takes:
            raise ObjectStoreError("no answer")

    def copy(self, step: Step) -> uuid.UUID:
        """Copies a segment once; returns the id."""
        self.pause_ms, segment, auxiliary, self.takes = step
        self.now_ms += self.pause_ms / 2
        found: Any = SimpleNamespace(
            base_offset=10 * segment,
            last_offset=10 * segment + 9,
            end_offset=10 * segment + 10,
            last_epoch=0,
            max_timestamp_ms=5,
            has_aborted=False,
            size_bytes=100,
            parts=lambda: bytes([auxiliary]),
            content=SimpleNamespace(size_bytes=100),
        )
        assert ended(self.tasks._copy(found)) is self.takes
        assert self.last is not None
        return self.last


async def _checked(found: object, check: object) -> None:
    return


async def _encoded(parts: Callable[[], bytes]) -> tuple[bytes, bytes]:
    return parts(), b"digest of " + parts()


def ended(copy: Coroutine[Any, Any, None]) -> bool:
    """Runs a copy that waits for nothing; returns whether it has succeeded."""
    try:
        copy.send(None)
    except StopIteration:
        return True
    except ObjectStoreError:
        return False
    raise AssertionError("the copy waits")


def test_no_id_outlives_half_of_the_delay_or_its_bytes() -> None:
    """Else another broker deletes the ``.aux`` of a copy that succeeds, or an object changes; until then it stays.

    The time counts from the first attempt, however many follow: its ``.aux`` may be the one that another broker lists.
    """
    steps = list(product(PAUSES_MS, SEGMENTS, AUXILIARIES, (False,)))
    for history in product(steps, repeat=LENGTH):
        leader = Leader()
        former = leader.copy(history[0])
        for before, step in pairwise(history):
            present = leader.copy(step)
            age_ms = leader.now_ms - leader.puts[former][0][0]
            may_stay = before[1:] == step[1:] and age_ms < DELAY_MS / 2
            assert (former == present) is may_stay, f"the id of a copy begun {age_ms} ms ago: {history}"
            former = present
        for puts in leader.puts.values():
            assert len({put[1:] for put in puts}) == 1, f"an object changes: {history}"


def test_a_copy_after_a_success_has_an_id_of_its_own() -> None:
    for step in product(PAUSES_MS, SEGMENTS, AUXILIARIES, (False, True)):
        leader = Leader()
        assert leader.copy((0, 0, 0, True)) != leader.copy(step)


def test_a_wait_for_the_rate_counts_for_the_next_id() -> None:
    """The bytes of a failed copy count, so the next one waits. It took its id before, which was too old at the end."""

    async def scenario(cluster: Any) -> None:
        client = cluster.client(1)
        await client.create_topic("t", **TOPIC)
        await trio.sleep(5)  # the leader lists, and the rate allows one copy at once
        store: Any = objects(cluster)
        times: dict[str, list[float]] = {}
        put = store.put

        def noted(machine: Any, name: str, content: Any) -> None:
            if "/probe/" not in name:
                times.setdefault(name, []).append(cluster.world.agenda.clock.now)
            put(machine, name, content)

        store.put = noted
        trouble = ObjectTrouble(on_effect=lambda: None, error_after_probability=1.0)
        store.profile.begin(trouble)
        await fill(cluster, client, "t", 2)
        await patiently(cluster, lambda: times, timeout_ms=120_000)
        store.profile.end(trouble)
        await patiently(cluster, lambda: copied(cluster, "t") == [0], timeout_ms=240_000)
        first_s, last_s = min(min(at) for at in times.values()), max(max(at) for at in times.values())
        assert last_s - first_s > CLUSTER_DELAY_MS / 2000, "the second copy waits for longer than an id may be used"
        assert [name for name, at in times.items() if at[-1] - at[0] >= CLUSTER_DELAY_MS / 2000] == []

    run_cluster(scenario, remote_log_manager_copy_max_bytes_per_second="40", **TIERED)
