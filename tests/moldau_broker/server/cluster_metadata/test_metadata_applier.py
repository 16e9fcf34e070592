"""Goal: however much metadata changes at once, the event loop runs other tasks between the steps.

Changes in memory do not wait for logs that are created or deleted. Method: an applier over images of a given size, and
a task beside it that counts its turns; then the applier of a whole broker that gets the changes as records, with a
count of the logs that exist when a change of leadership is applied.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio

from moldau_broker.log.values import TopicPartition
from moldau_broker.server.cluster_metadata.applier import (
    AT_ONCE_MAX,
    STEPS,
    STEPS_AT_ONCE,
    TURNS_OF_OTHERS,
    MetadataApplier,
)
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from support.cluster.broker_cluster import run_cluster
from support.turns import counted_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_quorum.metadata.records import MetadataRecord

PARTITIONS = 200
TOPIC = 2


class Queue:
    """A queue that counts log changes."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __len__(self) -> int:
        return self.left

    def step(self) -> None:
        self.left -= 1

    def perform(self, key: TopicPartition) -> None:
        """Does nothing: the partition's files follow later."""


@pytest.mark.parametrize(("in_memory", "on_disk"), [(PARTITIONS, 0), (0, PARTITIONS), (PARTITIONS, PARTITIONS)])
def test_others_run_between_the_steps(in_memory: int, on_disk: int) -> None:
    """Other tasks run every few partitions that change in memory, and several times after each log."""
    steps = 0
    queue = Queue(on_disk)

    def apply(delta):
        nonlocal steps
        for _ in range(in_memory):
            steps += 1
            yield

    async def main() -> int:
        applier = MetadataApplier(SimpleNamespace(image=MetadataImage()), apply, lambda: queue)
        applier._metadata.image = MetadataImage(offset=5)
        async with counted_turns() as turns, trio.open_nursery() as nursery:
            nursery.start_soon(applier.run)
            with trio.fail_after(10):
                await applier.begin()
            nursery.cancel_scope.cancel()
        return turns.count

    turns = trio.run(main)
    assert (steps, queue.left) == (in_memory, 0)
    expected = in_memory // STEPS + on_disk * TURNS_OF_OTHERS
    assert expected <= turns <= expected + 10


@pytest.mark.parametrize("turns", [0, 1, 2, TURNS_OF_OTHERS])
@pytest.mark.parametrize("sizes", list(product((1, AT_ONCE_MAX + 1), repeat=3)))
def test_no_change_is_left_out(sizes: tuple[int, ...], turns: int) -> None:
    """Each applied delta begins where the one before it ended, however large they are and how soon they follow.

    A large one lets other tasks run between its steps, and these may commit the next one.
    """
    queue = Queue(0)
    applied: list[MetadataImage] = []

    def apply(delta):
        assert delta.previous is applied[-1]
        applied.append(delta.image)
        yield from [None] * max(1, len(delta.changed_partitions))

    async def main() -> MetadataImage:
        metadata = SimpleNamespace(image=MetadataImage())
        applier = MetadataApplier(metadata, apply, lambda: queue)
        applied.append(applier._applied)
        metadata.image = MetadataImage(offset=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(applier.run)
            await applier.begin()
            for number, size in enumerate(sizes):
                queue.left += 1  # the task may be among the turns that it leaves to others
                applier.wake()
                await trio.lowlevel.checkpoint()
                topic_id = uuid.UUID(int=number + 1)
                records: list[MetadataRecord] = [TopicRecord(name=f"t{number}", topic_id=topic_id)]
                records += [
                    PartitionRecord(topic_id=topic_id, partition_id=index, replicas=(1,), isr=(1,), leader=1)
                    for index in range(size)
                ]
                applier.on_delta(metadata.image.apply(records, offset=number + 1, epoch=1))
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        return metadata.image

    assert trio.run(main) is applied[-1]


class Driven:
    """A broker whose applier gets records directly, as if they had been committed."""

    def __init__(self, cluster) -> None:
        self.broker = cluster.running[1]
        self._image = self.broker.metadata.image
        self.replicas = self.broker.context.replicas

    def commit(self, *records: MetadataRecord) -> None:
        delta = self._image.apply(records, offset=self._image.offset + 1, epoch=self._image.epoch)
        self._image = delta.image
        self.broker._applier.on_delta(delta)

    def topic(self, name: str) -> uuid.UUID:
        return self._image.topics_by_name[name].topic_id

    def logs(self, topic: str) -> int:
        return sum(key.topic == topic for key in self.broker.context.logs.logs)

    def epochs(self, topic: str) -> list[int]:
        partitions = [partition for key, partition in self.replicas.partitions.items() if key[0] == topic]
        return [partition.replica.state.leader_epoch for partition in partitions]


def new_topic(name: str, partitions: int) -> tuple[uuid.UUID, list[MetadataRecord]]:
    topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, name)
    parts = [
        PartitionRecord(topic_id=topic_id, partition_id=number, replicas=(1,), isr=(1,), leader=1)
        for number in range(partitions)
    ]
    return topic_id, [TopicRecord(name=name, topic_id=topic_id), *parts]


def elections(topic_id: uuid.UUID, partitions: Sequence[int], *, number: int = 1) -> list[MetadataRecord]:
    return [
        PartitionChangeRecord(topic_id=topic_id, partition_id=partition, partition_epoch=number, leader=1)
        for partition in partitions
    ]


@pytest.mark.parametrize("count", [1, 3 * AT_ONCE_MAX])
def test_a_new_leader_does_not_wait_for_creations(count: int) -> None:
    """At most one log is created before the partitions have their new leader epoch, however many wait."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("led", partitions=count)
        await cluster.until(lambda: len(Driven(cluster).epochs("led")) == count)
        driven = Driven(cluster)
        _, records = new_topic("many", PARTITIONS)
        driven.commit(*records)
        while driven.logs("many") < 5:
            await trio.lowlevel.checkpoint()
        before = driven.logs("many")
        driven.commit(*elections(driven.topic("led"), range(count)))
        while driven.epochs("led") != [1] * count:
            await trio.lowlevel.checkpoint()
        assert before <= driven.logs("many") <= before + 1 < PARTITIONS
        while driven.logs("many") < PARTITIONS:
            await trio.lowlevel.checkpoint()

    run_cluster(scenario)


def test_a_new_leader_does_not_wait_for_deletions() -> None:
    """Replicas of a deleted topic end at once; their files are deleted one at a time, after a new leader."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("led")
        await client.create_topic("many", partitions=PARTITIONS)
        await cluster.until(lambda: len(Driven(cluster).epochs("many")) == PARTITIONS)
        await cluster.until(lambda: len(Driven(cluster).epochs("led")) == 1)
        driven = Driven(cluster)
        held = driven.replicas.partitions["many", PARTITIONS - 1]
        driven.commit(RemoveTopicRecord(topic_id=driven.topic("many")))
        while driven.logs("many") == PARTITIONS:
            await trio.lowlevel.checkpoint()
        assert driven.epochs("many") == [], "none serves any more"
        assert held.error is not held.error.NONE
        before = driven.logs("many")
        driven.commit(*elections(driven.topic("led"), [0]))
        assert driven.epochs("led") == [1]
        assert driven.logs("many") == before > 0
        while driven.logs("many"):
            await trio.lowlevel.checkpoint()

    run_cluster(scenario)


def test_a_new_partition_begins_in_its_newest_state() -> None:
    """Elections, a deletion and a topic of the same name come while the creation waits: the last state counts."""

    async def scenario(cluster) -> None:
        driven = Driven(cluster)
        many, records = new_topic("many", PARTITIONS)
        driven.commit(*records)
        while not driven.logs("many"):
            await trio.lowlevel.checkpoint()
        last = PARTITIONS - 1
        driven.commit(*elections(many, [last]))
        assert driven.replicas.partitions["many", last].replica.state.leader_epoch == 1, "a small change is applied"
        driven.commit(*elections(many, range(AT_ONCE_MAX, last)))
        gone, records = new_topic("gone", PARTITIONS)
        driven.commit(*records)
        driven.commit(RemoveTopicRecord(topic_id=gone))
        await cluster.until(lambda: driven.logs("many") == PARTITIONS)
        assert driven.logs("gone") == 0
        assert sorted(driven.epochs("many")) == [0] * AT_ONCE_MAX + [1] * (PARTITIONS - AT_ONCE_MAX)

        second = uuid.UUID(int=5)
        parts = [
            PartitionRecord(topic_id=second, partition_id=number, replicas=(1,), isr=(1,), leader=1, leader_epoch=7)
            for number in range(PARTITIONS)
        ]
        driven.commit(RemoveTopicRecord(topic_id=many), TopicRecord(name="many", topic_id=second), *parts)
        await cluster.until(lambda: driven.epochs("many") == [7] * PARTITIONS)
        assert not len(driven.replicas.log_changes)
        assert {log.topic_id for log in driven.broker.context.logs.logs.values()} == {second}
        assert driven.broker.context.logs.get(TopicPartition("many", last)) is not None

    run_cluster(scenario)


def test_others_run_while_the_settings_of_a_topic_change() -> None:
    """One record changes all partitions of a topic; a change of leadership that follows it is applied after it."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("many", partitions=PARTITIONS)
        await cluster.until(lambda: len(Driven(cluster).epochs("many")) == PARTITIONS)
        driven = Driven(cluster)
        logs = driven.broker.context.logs.logs

        def changed() -> int:
            return sum(log.config.retention_ms == 77_000 for log in logs.values())

        async with counted_turns() as turns:
            driven.commit(ConfigRecord(resource_type=TOPIC, resource_name="many", name="retention.ms", value="77000"))
            assert 0 < changed() < PARTITIONS
            driven.commit(*elections(driven.topic("many"), [0]))
            while driven.epochs("many").count(1) == 0:
                await trio.lowlevel.checkpoint()
        assert changed() == PARTITIONS
        assert turns.count >= (PARTITIONS - STEPS_AT_ONCE) // STEPS

    run_cluster(scenario)


def test_the_settings_of_a_small_topic_change_at_once() -> None:
    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("few", partitions=3)
        await cluster.until(lambda: len(Driven(cluster).epochs("few")) == 3)
        driven = Driven(cluster)
        driven.commit(ConfigRecord(resource_type=TOPIC, resource_name="few", name="retention.ms", value="77000"))
        assert [log.config.retention_ms for log in driven.broker.context.logs.logs.values()] == [77_000] * 3

    run_cluster(scenario)


def test_logs_are_deleted_although_their_successors_never_began() -> None:
    """A topic is deleted, created again and deleted again before the logs of the first one are gone."""

    async def scenario(cluster) -> None:
        driven = Driven(cluster)
        first, records = new_topic("many", PARTITIONS)
        driven.commit(*records)
        await cluster.until(lambda: driven.logs("many") == PARTITIONS)
        second = uuid.uuid5(uuid.NAMESPACE_DNS, "many again")
        again = [replace(record, topic_id=second) for record in records]
        driven.commit(RemoveTopicRecord(topic_id=first), *again)
        while len(driven.epochs("many")) or not len(driven.replicas.log_changes):
            await trio.lowlevel.checkpoint()
        driven.commit(RemoveTopicRecord(topic_id=second))
        await cluster.until(lambda: not len(driven.replicas.log_changes))
        assert driven.logs("many") == 0

    run_cluster(scenario)


def test_a_broker_stops_in_order_while_logs_wait() -> None:
    """The next process does the rest: it creates the replica, and sets the log of the deleted one aside."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("gone", partitions=PARTITIONS)
        await cluster.until(lambda: len(Driven(cluster).epochs("gone")) == PARTITIONS)
        driven = Driven(cluster)
        _, records = new_topic("many", PARTITIONS)
        driven.commit(RemoveTopicRecord(topic_id=driven.topic("gone")), *records)
        while len(driven.replicas.log_changes) <= PARTITIONS:
            await trio.lowlevel.checkpoint()
        await cluster.stop(1)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert len(Driven(cluster).epochs("gone")) == PARTITIONS, "the controller has never heard of the deletion"

    run_cluster(scenario)
