"""Goal: the share coordinator serves the partitions that it leads, survives failovers, and prunes its log.

Method: `ShareCoordinator` on virtual time over an in-memory log.
"""

from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from moldau.protocol.codec import encode
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.coordinator.runtime.partitioning import partition_for
from moldau_broker.coordinator.share.coordinator import ShareCoordinator
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.share.core.requests import Delete, Initialize, Read, Summarize
from support.coordinator.group_world import MemoryLog, Topics, World
from support.coordinator.share_world import batches_of, key, request, write

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Environment

PARTITIONS = 3
BEGIN = Initialize(state_epoch=0, start_offset=-1)
CONFIG = ShareConfig(updates_per_snapshot=1, prune_interval_ms=1_000, cold_interval_ms=2_000)


class Broker:
    """A coordinator with its log; a failover makes a new coordinator over the same log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.topics = Topics()
        self.coordinator = ShareCoordinator(
            environment=cast("Environment", World()),
            log=log,
            topics=self.topics,
            config=CONFIG,
            partition_count=lambda: PARTITIONS,
        )

    async def lead(self, *partitions: int, leader_epoch: int = 1) -> None:
        for partition in partitions:
            self.log.lead(partition, leader_epoch)
            self.coordinator.become_leader(partition, leader_epoch)
        await trio.sleep(0.01)

    async def ask(self, *asks) -> dict[int, object]:
        """Sends a request; returns the answers by partition of the topic."""
        asked = request(*asks)
        response = await self.coordinator.handle(asked)
        encode(response, asked.__versions__.last)
        assert [topic.topic_id for topic in response.results] == [asks[0][0].topic_id]
        return {part.partition: part for topic in response.results for part in topic.partitions}


def run(scenario) -> None:
    async def main() -> None:
        log = MemoryLog()
        async with trio.open_nursery() as nursery:
            broker = Broker(log)
            await nursery.start(broker.coordinator.run)
            await scenario(broker, nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def places() -> list[int]:
    """Returns the partition of the internal topic for each partition of the topic."""
    return [partition_for(key(partition).coordinator_key, PARTITIONS) for partition in range(10)]


def test_each_partition_is_answered_by_its_coordinator() -> None:
    """A request may name share-partitions of several shards; those of other brokers get NOT_COORDINATOR."""

    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1)
        answers = await broker.ask(*[(key(partition), BEGIN) for partition in range(10)])
        assert len(answers) == 10
        for partition, place in enumerate(places()):
            expected = ErrorCode.NONE if place in (0, 1) else ErrorCode.NOT_COORDINATOR
            assert answers[partition].error_code == expected
        answers = await broker.ask((key(0, ""), BEGIN))
        assert answers[0].error_code == ErrorCode.INVALID_REQUEST

    assert set(places()) == {0, 1, 2}
    run(scenario)


def test_a_failover_keeps_the_state() -> None:
    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)
        await broker.ask((key(0), BEGIN), (key(1), BEGIN))
        await broker.ask((key(0), Read(leader_epoch=3)))
        await broker.ask((key(0), write((0, 9, 2, 1), start=0, leader_epoch=3)))
        after = Broker(broker.log)
        await nursery.start(after.coordinator.run)
        for partition in range(PARTITIONS):
            broker.coordinator.resign(partition, 1)
        await after.lead(0, 1, 2, leader_epoch=2)
        old = await broker.ask((key(0), Read(leader_epoch=3)))
        assert old[0].error_code == ErrorCode.NOT_COORDINATOR
        found = await after.ask((key(0), Read(leader_epoch=4)))
        assert (found[0].start_offset, batches_of(found[0])) == (0, [(0, 9, 2, 1)])
        fenced = await after.ask((key(0), write((0, 9, 2, 1), leader_epoch=3)))
        assert fenced[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await after.ask((key(1), Summarize())))[1].state_epoch == 0

    run(scenario)


def test_the_log_is_pruned_and_loaded_from_its_start() -> None:
    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)
        await broker.ask((key(0), BEGIN))
        for offset in range(7):
            await broker.ask((key(0), write((offset, offset, 2, 1), leader_epoch=-1)))
        await trio.sleep(1.5)
        place = broker.log.partitions[places()[0]]
        assert place.start_offset == 6
        place.batches = place.batches[6:]
        await broker.lead(0, 1, 2, leader_epoch=2)
        found = await broker.ask((key(0), Read(leader_epoch=-1)))
        assert batches_of(found[0]) == [(0, 6, 2, 1)]

    run(scenario)


def test_a_deletion_that_failed_is_repeated_in_an_idle_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was repeated only after more had become redundant."""

    def refuse(*_: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)
        await broker.ask((key(0), BEGIN))
        for offset in range(3):
            await broker.ask((key(0), write((offset, offset, 2, 1), leader_epoch=-1)))
        with monkeypatch.context() as patched:
            patched.setattr(broker.log, "delete_records", refuse)
            await trio.sleep(1.5)
        place = broker.log.partitions[places()[0]]
        assert place.start_offset == 0
        await trio.sleep(1)
        assert place.start_offset > 0

    run(scenario)


def test_a_lost_leadership_answers_what_waits() -> None:
    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)
        broker.log.hold = True
        waiting = broker.coordinator.submit(request((key(0), BEGIN)))
        broker.coordinator.resign(places()[0], 1)
        response = await waiting.wait()
        assert response.results[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_a_deleted_topic_leaves_no_state() -> None:
    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)
        await broker.ask(*[(key(partition), BEGIN) for partition in range(10)])
        del broker.topics.ids["t"]
        broker.coordinator.topics_deleted()
        await trio.sleep(0.1)
        broker.topics.ids["t"] = key(0).topic_id
        answers = await broker.ask(*[(key(partition), Delete()) for partition in range(10)])
        assert {part.error_code for part in answers.values()} == {ErrorCode.NONE}
        answers = await broker.ask(*[(key(partition), Read(leader_epoch=0)) for partition in range(10)])
        assert {part.error_code for part in answers.values()} == {ErrorCode.INVALID_REQUEST}

    run(scenario)


def test_a_write_that_ends_other_shards_refuses_their_part(monkeypatch) -> None:
    """A log directory that fails under one shard's write ends the other shards of the request within it."""

    async def scenario(broker: Broker, nursery: trio.Nursery) -> None:
        await broker.lead(0, 1, 2)

        def fail(partition: int, leader_epoch: int, batch: bytes) -> int:
            for number in range(PARTITIONS):
                broker.coordinator.resign(number, leader_epoch)
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        monkeypatch.setattr(broker.log, "append", fail)
        answers = await broker.ask(*[(key(partition), BEGIN) for partition in range(10)])
        assert {answer.error_code for answer in answers.values()} == {ErrorCode.NOT_COORDINATOR}
        assert len(answers) == 10

    run(scenario)
