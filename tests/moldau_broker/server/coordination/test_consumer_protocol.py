"""Goal: brokers serve consumer groups (KIP-848) over the wire, through deaths of the coordinator.

Method: a cluster on virtual network, disk and time. Members are tasks that send heartbeats and note from when to when
they read each partition; two of these spans must never overlap. A member stops to read by itself when its session may
have ended.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from moldau.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_quorum.metadata.image import RESOURCE_GROUP
from support.cluster.broker_cluster import run_cluster
from support.proof import proof_beyond

if TYPE_CHECKING:
    from uuid import UUID

    from support.cluster.broker_cluster import Cluster

GROUP = "readers"
SESSION_MS = 6_000
BEAT_SECONDS = 0.4
SETTINGS = {
    "group_consumer_min_session_timeout_ms": "1",
    "group_consumer_session_timeout_ms": str(SESSION_MS),
    "group_consumer_min_heartbeat_interval_ms": "1",
    "group_consumer_heartbeat_interval_ms": "400",
    "offsets_topic_num_partitions": "1",
}


def join(member_id: str = "m", *, topics: tuple[str, ...] = ("t",), regex: str | None = None):
    return ConsumerGroupHeartbeatRequest(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=list(topics),
        subscribed_topic_regex=regex,
        topic_partitions=[],
    )


async def coordinator(cluster: Cluster) -> int:
    """Returns the broker that coordinates the group, once it serves it."""
    with trio.fail_after(60):
        while True:
            for broker_id in sorted(cluster.running):
                try:
                    answer = await cluster.client(broker_id).request(
                        FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4, timeout_ms=2_000
                    )
                except (*TRANSPORT_ERRORS, KafkaError):
                    continue
                found = answer.coordinators[0]
                if found.error_code == ErrorCode.NONE and found.node_id in cluster.running:
                    return found.node_id
            await trio.sleep(0.1)


class Reader:
    """A member that sends heartbeats until its end is requested."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.epoch = 0
        self.reading: dict[tuple[UUID, int], float] = {}
        self.spans: list[tuple[tuple[UUID, int], float, float, str]] = []
        self.valid_until = 0.0
        self.codes: list[ErrorCode] = []

    def read(self, partitions: frozenset[tuple[UUID, int]]) -> None:
        now = trio.current_time()
        for partition in [each for each in self.reading if each not in partitions]:
            self.spans.append((partition, self.reading.pop(partition), min(now, self.valid_until), self.name))
        for partition in sorted(partitions):
            self.reading.setdefault(partition, now)

    async def run(self, until: trio.Event) -> None:
        while not until.is_set():
            await self.beat()
            if trio.current_time() > self.valid_until and self.epoch:
                self.epoch = 0  # the session may have ended
                self.read(frozenset())
            await trio.sleep(BEAT_SECONDS)
        self.read(frozenset())

    async def beat(self) -> None:
        request = join(self.name)
        request.member_epoch = self.epoch
        if not self.epoch:
            self.read(frozenset())
        request.topic_partitions = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic, partitions=numbers)
            for topic, numbers in by_topic(self.reading).items()
        ]
        sent = trio.current_time()
        with trio.move_on_after(2):
            try:
                node_id = await coordinator(self.cluster)
                answer = await self.cluster.client(node_id).request(request, 1, timeout_ms=1_500)
            except (*TRANSPORT_ERRORS, KafkaError):
                return
            code = ErrorCode(answer.error_code)
            self.codes.append(code)
            if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
                self.epoch = 0
                self.read(frozenset())
            elif code is ErrorCode.NONE and (not self.epoch or sent <= self.valid_until):
                self.epoch = answer.member_epoch
                self.valid_until = sent + SESSION_MS / 1000
                if answer.assignment is not None:
                    self.read(
                        frozenset(
                            (topic.topic_id, number)
                            for topic in answer.assignment.topic_partitions
                            for number in topic.partitions
                        )
                    )


def check_spans(readers: list[Reader]) -> None:
    """Checks that no partition was read by two members at a time."""
    spans = sorted(span for reader in readers for span in reader.spans)
    assert spans
    for (partition, _, end, one), (other_partition, begin, _, other) in pairwise(spans):
        assert partition != other_partition or end <= begin or one == other, f"{one} and {other} read {partition}"


@pytest.mark.parametrize("seed", proof_beyond(1, range(4)))
def test_no_two_members_read_a_partition(seed: int) -> None:
    """Members come and go while brokers die and come back, and the topic gets partitions."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=5, replicas=3)
        readers = [Reader(cluster, f"m{number}") for number in range(4)]
        ends = [trio.Event() for _ in readers]
        async with trio.open_nursery() as nursery:
            for reader, end in zip(readers, ends, strict=True):
                nursery.start_soon(reader.run, end)
                await trio.sleep(1.3)
            for _ in range(2):
                victim = await coordinator(cluster)
                cluster.kill(victim)
                await trio.sleep(8)
                cluster.start_broker(victim)
                await cluster.until(lambda: len(cluster.running) == 3)
                await trio.sleep(4)
            ends[0].set()
            asked = CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name="t", count=7, assignments=None)], timeout_ms=5_000
            )
            answer = await cluster.client(1).request(asked)
            assert answer.results[0].error_code == ErrorCode.NONE, answer
            await cluster.until(lambda: sum(len(reader.reading) for reader in readers[1:]) == 7, timeout_ms=60_000)
            for end in ends:
                end.set()
        check_spans(readers)
        assert all(ErrorCode.NONE in reader.codes for reader in readers)

    run_cluster(scenario, seed=seed, brokers=3, **SETTINGS)


def test_another_coordinator_keeps_epochs_and_assignments() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=3, replicas=3)
        first = await coordinator(cluster)
        code, answer = await code_of_join(cluster, first)
        assert code is ErrorCode.NONE
        cluster.kill(first)
        heartbeat = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=answer.member_epoch)
        with trio.fail_after(60):
            while True:
                second = await coordinator(cluster)
                again = await cluster.client(second).request(heartbeat, 1)
                if again.error_code == ErrorCode.NONE:
                    break
                assert ErrorCode(again.error_code).retriable
                await trio.sleep(0.2)
        assert second != first
        assert (again.member_epoch, again.assignment) == (answer.member_epoch, None)
        found = await cluster.client(second).request(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1)
        (member,) = found.groups[0].members
        assert [(each.topic_name, list(each.partitions)) for each in member.assignment.topic_partitions] == [
            ("t", [0, 1, 2])
        ]

    run_cluster(scenario, brokers=3, **SETTINGS)


async def code_of_join(cluster: Cluster, broker_id: int = 1, **options) -> tuple[ErrorCode, object]:
    await coordinator(cluster)
    with trio.fail_after(30):
        while True:
            answer = await cluster.client(broker_id).request(join(**options), 1)
            if not ErrorCode(answer.error_code).retriable:
                return ErrorCode(answer.error_code), answer
            await trio.sleep(0.1)


def test_a_broker_without_the_protocol_refuses_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        code, _ = await code_of_join(cluster)
        assert code is ErrorCode.UNSUPPORTED_VERSION
        found = await cluster.client(1).request(ConsumerGroupDescribeRequest(group_ids=[GROUP]), 1)
        assert found.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    run_cluster(scenario, group_coordinator_rebalance_protocols="classic", **SETTINGS)


def test_the_feature_level_turns_the_protocol_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        for level, kind, expected in ((0, 2, ErrorCode.UNSUPPORTED_VERSION), (1, 1, ErrorCode.NONE)):
            update = FeatureUpdateKey(feature="group.version", max_version_level=level, upgrade_type=kind)
            answer = await cluster.client(1).request(UpdateFeaturesRequest(feature_updates=[update]))
            assert answer.error_code == ErrorCode.NONE
            await cluster.until(lambda level=level: cluster.image().features.get("group.version", 0) == level)
            assert (await code_of_join(cluster))[0] is expected

    run_cluster(scenario, **SETTINGS)


def test_a_group_has_a_configuration_and_expressions() -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("logs-1", partitions=2)
        resource = AlterConfigsResource(
            resource_type=RESOURCE_GROUP,
            resource_name=GROUP,
            configs=[AlterableConfig(name="consumer.heartbeat.interval.ms", value="9000")],
        )
        answer = await client.request(AlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == ErrorCode.NONE, answer
        code, joined = await code_of_join(cluster, topics=(), regex="logs-.*")
        assert code is ErrorCode.NONE
        assert joined.heartbeat_interval_ms == 9_000
        assert [list(each.partitions) for each in joined.assignment.topic_partitions] == [[0, 1]]
        code, refused = await code_of_join(cluster, member_id="n", topics=(), regex="a(?=b)")
        assert code is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert "a(?=b)" in refused.error_message
        await client.create_topic("logs-2", partitions=1)
        heartbeat = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=joined.member_epoch)
        waits = await client.request(heartbeat, 1)
        assert waits.member_epoch == joined.member_epoch
        assert 0 < waits.heartbeat_interval_ms <= 1_000, "it returns when the assignment interval is over"
        await trio.sleep(waits.heartbeat_interval_ms / 1_000)
        grown = await client.request(heartbeat, 1)
        assert grown.member_epoch == joined.member_epoch + 1
        assert sum(len(each.partitions) for each in grown.assignment.topic_partitions) == 3

    run_cluster(scenario, **SETTINGS)
