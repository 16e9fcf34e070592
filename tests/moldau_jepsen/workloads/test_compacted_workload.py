"""Goal: the client of a compacted topic sees what there is, and its verdict notices a loss.

Method: the client against a broker whose cleaner works, in virtual time; then a write that the log does not hold.
"""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau_jepsen.checkers.log.compacted import Fate, KeyWrite
from moldau_jepsen.simulation.inject.disk_faults import CLOCK_JUMPS_MS
from moldau_jepsen.workloads.compacted import CLEANER_SETTINGS, CompactedOptions, CompactedWorkload
from support.cluster.broker_cluster import BROKER_PORT, run_cluster


def test_a_compacted_topic_is_read_and_judged() -> None:
    async def scenario(cluster: Any) -> None:
        options = CompactedOptions(partitions=1, rounds_per_second=4.0, crash_every_s=0.0, deletes=True)
        settings = {key.replace(".", "_"): value for key, value in options.topic_settings.items()}
        await cluster.client(1).create_topic(options.topic, **settings)
        client = CompactedWorkload(cluster.client_environment, f"b1:{BROKER_PORT}", options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await trio.sleep(8)
            client.stop()
        await client.final_read(10)
        assert client.stuck is None
        assert client.verdict() == []
        fates = [write.fate for write in client.writes]
        assert min(fates.count(Fate.COMMITTED), fates.count(Fate.ABORTED)) > 5
        last = client.reads[-1]
        committed = sum(write.offset >= last.log_start for write in client.writes)
        assert len(last.records) < committed, "the cleaner has done nothing"
        lost = KeyWrite(partition=0, key="lost", value=b"?", fate=Fate.COMMITTED, offset=last.log_start + 1, known_at=1)
        client.writes.append(lost)
        await client.final_read(10)
        assert any("lost" in line for line in client.verdict())

    settings: dict[str, Any] = {key.replace(".", "_"): value for key, value in CLEANER_SETTINGS.items()}
    run_cluster(scenario, brokers=1, **settings)


def test_tombstones_outlast_the_jumps_of_clocks() -> None:
    """Tombstones that must stay are not deleted because faults have set the wall clock of a broker."""

    async def scenario(cluster: Any) -> None:
        options = CompactedOptions(partitions=1, rounds_per_second=4.0, crash_every_s=0.0, tombstone_share=0.6)
        settings = {key.replace(".", "_"): value for key, value in options.topic_settings.items()}
        await cluster.client(1).create_topic(options.topic, **settings)
        client = CompactedWorkload(cluster.client_environment, f"b1:{BROKER_PORT}", options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            for _ in range(6):
                await trio.sleep(1)
                cluster.world.node("b1").clock.jump_wall(max(CLOCK_JUMPS_MS))
            client.stop()
        await client.final_read(10)
        assert client.stuck is None
        assert client.verdict() == []
        assert any(record.value is None for record in client.reads[-1].records)

    settings: dict[str, Any] = {key.replace(".", "_"): value for key, value in CLEANER_SETTINGS.items()}
    run_cluster(scenario, brokers=1, **settings)


class StubProducer:
    """Takes records, and commits, or never answers."""

    def __init__(self, *, commits: bool) -> None:
        self.commits = commits

    def begin_transaction(self) -> None:
        pass

    async def send(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(result=lambda: SimpleNamespace(offset=7))

    async def flush(self) -> None:
        pass

    async def commit_transaction(self) -> None:
        await trio.sleep(0.0 if self.commits else math.inf)

    async def abort_transaction(self) -> None:
        pass


@pytest.mark.parametrize(
    ("commits", "abort_share", "fate"),
    [(True, 0.0, Fate.COMMITTED), (False, 0.0, Fate.UNKNOWN), (True, 1.0, Fate.ABORTED)],
)
def test_a_commit_without_an_answer_has_an_unknown_outcome(commits: bool, abort_share: float, fate: Fate) -> None:
    environment: Any = SimpleNamespace(random=random.Random(1))
    client = CompactedWorkload(environment, "b1:1", CompactedOptions(abort_share=abort_share))
    producer: Any = StubProducer(commits=commits)

    async def main() -> None:
        with trio.move_on_after(1):
            await client._transact(producer, environment.random)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert {write.fate for write in client.writes} == {fate}
