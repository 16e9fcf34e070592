"""Goal: an answer about a former position, or an assignment that was taken back meanwhile, changes nothing.

Method: consumers against a small cluster on virtual time, whose answers come late; then a subscriber's part in a
rebalance alone, with a coordinator that takes a partition back while the subscriber commits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau import TopicPartition
from moldau.cluster.metadata import PartitionInfo, TopicInfo
from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.membership import GroupIdentity, MemberState, Next
from moldau.consumer.core.positions import PartitionPosition, Positions
from moldau.consumer.core.values import RebalanceCallbacks
from moldau.consumer.rebalance import Rebalancer
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from support.client.consumer_stories import fill, numbers, simulate, take

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.client.fake_cluster import FakeCluster

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
LATE_S = 1.0


def answers_late(cluster: FakeCluster, key: ApiKey) -> trio.Event:
    """Makes each broker look at once, and answer ``LATE_S`` later; the event shows that a broker was asked."""
    asked = trio.Event()
    usual = getattr(cluster, f"on_{key.name.lower()}")

    def handle(broker: int, request: Any) -> Any:
        answer = usual(broker, request)
        asked.set()

        async def wait() -> Any:
            await trio.sleep(LATE_S)
            return answer

        return wait

    cluster.handlers[key] = handle
    return asked


def test_answer_to_an_earlier_reset_is_dropped() -> None:
    """The position goes to the end although the answer about the beginning comes later."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        asked = answers_late(cluster, ApiKey.LIST_OFFSETS)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            await asked.wait()
            consumer.seek_to_end(T0)
            assert await consumer.position(T0) == 10

    simulate(scenario, brokers=1)


def test_a_position_of_a_former_leader_is_validated() -> None:
    """The answer comes when metadata name another leader already, whose log was cut below the position."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 50)
        fill(part, 50, 100)
        asked = answers_late(cluster, ApiKey.LIST_OFFSETS)
        async with open_consumer(auto_offset_reset="latest") as consumer:
            consumer.assign([T0])
            await asked.wait()
            part.truncate(50)
            cluster.move("t", 0, 2)
            fill(part, 50, 120)
            client, _ = consumer._opened()
            await client.wait_update(client.now_ms + 1_000)
            assert await take(consumer, 70) == numbers(50, 120)

    simulate(scenario)


@pytest.mark.parametrize("key", [ApiKey.OFFSET_FETCH, ApiKey.LIST_OFFSETS])
def test_no_position_comes_from_the_former_cluster(key: ApiKey) -> None:
    """The client goes to another cluster while a coordinator, or a leader, of the former one answers."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        if key is ApiKey.OFFSET_FETCH:
            cluster.offsets["g", "t", 0] = (7, -1, "")
        asked = answers_late(cluster, key)
        async with open_consumer(group_id="g", auto_offset_reset="latest") as consumer:
            consumer.assign([T0])
            await asked.wait()
            cluster.offsets["g", "t", 0] = (3, -1, "")
            consumer._positions.leave_cluster()
            assert await consumer.position(T0) == 3

    simulate(scenario, brokers=1)


def test_committed_offsets_are_all_of_one_cluster() -> None:
    """The client goes to another cluster between two requests of one call: the first has found an offset already."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        cluster.add_topic("t", 2)
        for number in (0, 1):
            cluster.offsets["g", "t", number] = (7, -1, "")
        asked: list[int] = []

        def handle(broker: int, request: Any) -> Any:
            answer = cluster.on_offset_fetch(broker, request)
            partitions = answer.groups[0].topics[0].partitions
            asked.append(len(partitions))
            if len(asked) == 1:
                partitions[1].error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
                client.clusters_left += 1
                for number in (0, 1):
                    cluster.offsets["g", "t", number] = (3, -1, "")
            return answer

        cluster.handlers[ApiKey.OFFSET_FETCH] = handle
        async with open_consumer(group_id="g") as consumer:
            client, _ = consumer._opened()
            found = await consumer.committed([T0, T1])
        assert {partition: each.offset for partition, each in found.items()} == {T0: 3, T1: 3}
        assert asked == [2, 2]

    simulate(scenario, brokers=1)


def test_validation_of_an_earlier_position_is_dropped() -> None:
    """The earlier position lies behind the end of its epoch; the present one is valid."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 50)
        part.epoch = 1
        fill(part, 50, 100)
        asked = answers_late(cluster, ApiKey.OFFSET_FOR_LEADER_EPOCH)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 80, leader_epoch=0)
            await asked.wait()
            consumer.seek(T0, 90, leader_epoch=1)
            await trio.sleep(3 * LATE_S)
            assert consumer.position_nowait(T0) == 90

    simulate(scenario, brokers=1)


def test_an_error_of_an_earlier_fetch_is_dropped() -> None:
    """The application has given the partition up when the refusal comes, and gets the records of another one."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        _, other = cluster.add_topic("t", 2)
        fill(other, 0, 10)
        asked = trio.Event()
        usual: Callable[..., Any] = cluster.on_fetch

        def handle(broker: int, request: Any) -> Any:
            answer = usual(broker, request)
            if asked.is_set():
                return answer
            asked.set()

            async def refuse() -> Any:
                response = await answer()
                await trio.sleep(LATE_S)
                response.responses[0].partitions[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                return response

            return refuse

        cluster.handlers[ApiKey.FETCH] = handle
        async with open_consumer() as consumer:
            consumer.assign([T0])
            await asked.wait()
            consumer.assign([T1])
            assert await take(consumer, 10) == numbers(0, 10)
            await trio.sleep(2 * LATE_S)
            assert not await consumer.poll(100)

    simulate(scenario, brokers=1)


def test_a_follower_that_is_forgotten_decides_nothing() -> None:
    """It lacks the position and answers when metadata do not name it any more: the leader, asked since, decides."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 10)
        leader, follower = 1, 2
        usual: Callable[..., Any] = cluster.on_fetch
        asked = trio.Event()

        def handle(broker: int, request: Any) -> Any:
            answer = usual(broker, request)
            if asked.is_set() or not request.topics:
                return answer
            request.max_wait_ms = 0

            async def change() -> Any:
                response = await answer()
                ((data,),) = [topic.partitions for topic in response.responses]
                if broker == leader:
                    data.preferred_read_replica = follower
                    return response
                asked.set()
                await trio.sleep(LATE_S)
                data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                return response

            return change

        cluster.handlers[ApiKey.FETCH] = handle
        async with open_consumer(client_rack="r", fetch_max_wait_ms=20_000) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 10)
            await asked.wait()
            client, _ = consumer._opened()
            del client.cluster_metadata.brokers[follower]
            client.changed.notify()
            await trio.sleep(2 * LATE_S)
            fill(part, 10, 20)
            cluster.appended.notify()
            assert await take(consumer, 10) == numbers(10, 20)

    simulate(scenario)


class Coordinator:
    """Gives one assignment after the other, and takes partitions back."""

    partition_counts = None
    counters = None

    def __init__(self, membership: EpochMembership, *targets: list[TopicPartition]) -> None:
        self.membership = membership
        self.targets = list(targets)
        self.taken_back: list[TopicPartition] = []

    async def join(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        await trio.lowlevel.checkpoint()
        self.membership.take_target()
        return self.targets.pop(0)

    def still_given(self, assigned: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [partition for partition in assigned if partition not in self.taken_back]

    def check(self) -> None:
        """Refuses nothing."""

    def adopted(self) -> None:
        """Sends nothing."""


class Client:
    """The part of a cluster client that a rebalancer uses while it asks the cluster nothing."""

    now_ms = 0.0
    logger = EventLogger("test")
    cluster_metadata = SimpleNamespace(topics={})

    def set_topics(self, names: Sequence[str]) -> None:
        """Knows all topics."""

    def add_topic(self, name: str) -> None:
        """Knows all topics."""


class Arrivals:
    """The part of a fetcher that a rebalancer uses."""

    def __init__(self) -> None:
        self.arrived = Signal()

    def wake(self) -> None:
        """Fetches nothing."""


class Member:
    """A subscriber of topic ``t``, its coordinator, and what its application hears."""

    def __init__(self, *targets: list[TopicPartition]) -> None:
        """The coordinator gives ``targets``, one for each join."""
        identity = GroupIdentity(group_id="g", instance_id=None, session_timeout_ms=6000, rebalance_timeout_ms=60000)
        self.membership = EpochMembership(identity, str(UUID(int=1)), None)
        self.coordinator = Coordinator(self.membership, *targets)
        self.positions = Positions()
        self.given: list[list[TopicPartition]] = []
        self.lost: list[list[TopicPartition]] = []
        self.cancels_in_lost: trio.CancelScope | None = None
        self.cancels_in_assigned: trio.CancelScope | None = None
        self.on_commit: Callable[[], None] = lambda: None
        self.rebalancer = Rebalancer(
            Client(),  # type: ignore[arg-type]
            Arrivals(),  # type: ignore[arg-type]
            self.positions,
            self.coordinator,  # type: ignore[arg-type]
            self.membership,
            commit=self._commit,
            hides_internal=True,
            callbacks=RebalanceCallbacks(self._assigned, None, self._lost),
        )
        self.rebalancer.subscribe(["t"], None)

    async def _commit(self) -> None:
        await trio.lowlevel.checkpoint()
        self.on_commit()

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        scope, self.cancels_in_assigned = self.cancels_in_assigned, None
        if scope is not None:
            scope.cancel()
        await trio.lowlevel.checkpoint()
        self.given.append(partitions)

    async def _lost(self, partitions: list[TopicPartition]) -> None:
        self.lost.append(partitions)
        scope, self.cancels_in_lost = self.cancels_in_lost, None
        if scope is not None:
            scope.cancel()
        await trio.lowlevel.checkpoint()


def test_partition_taken_back_during_the_commit_is_not_begun() -> None:
    """A member gives up one partition for two others; the coordinator takes one of these back while it commits."""
    member = Member([T0], [T1, T2], [T1])

    def taken_back() -> None:
        if T0 in member.positions.by_partition:
            member.coordinator.taken_back.append(T2)

    async def main() -> None:
        member.on_commit = taken_back
        async with trio.open_nursery() as nursery:
            await member.rebalancer.keep(nursery, 1_000.0)
            assert list(member.positions.by_partition) == [T0]
            member.membership.rejoin("the coordinator gave another assignment")
            await member.rebalancer.keep(nursery, 1_000.0)
            while member.membership.state is not MemberState.STABLE:
                await member.rebalancer.keep(nursery, 1_000.0)

    trio.run(main)
    assert list(member.positions.by_partition) == [T1]
    assert member.given[:2] == [[T0], [T1]], "the application hears of no partition that it would not have"


def test_a_loss_counts_only_when_the_application_has_heard_it() -> None:
    """The poll is cancelled while the application learns what it has lost; the next poll says it again."""
    member = Member([T0], [T1])

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await member.rebalancer.keep(nursery, 1_000.0)
            member.membership.lose_generation("fenced")
            with trio.CancelScope() as scope:
                member.cancels_in_lost = scope
                await member.rebalancer.keep(nursery, 1_000.0)
            assert scope.cancelled_caught
            await member.rebalancer.keep(nursery, 1_000.0)

    trio.run(main)
    assert member.lost == [[T0], [T0]]
    assert list(member.positions.by_partition) == [T1]


def test_an_assignment_counts_when_the_application_has_heard_it() -> None:
    """The poll is cancelled while the application learns what it got; the next poll says the same again."""
    member = Member([T0, T1])

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                member.cancels_in_assigned = scope
                await member.rebalancer.keep(nursery, 1_000.0)
            assert (scope.cancelled_caught, member.given) == (True, [])
            await member.rebalancer.keep(nursery, 1_000.0)

    trio.run(main)
    assert member.given == [[T0, T1]]


def test_a_seek_during_a_fetch_is_not_taken_for_idle() -> None:
    """The fetch beside a long poll brings nothing; the position sought meanwhile must not wait for the long poll."""

    async def scenario(cluster: FakeCluster, open_consumer: Callable[..., Any]) -> None:
        (part,) = cluster.add_topic("t")
        fill(part, 0, 20)
        usual = cluster.on_fetch
        slow = False

        def handle(broker: int, request: Any) -> Any:
            async def wait() -> Any:
                answer = usual(broker, request)
                if slow and not request.max_wait_ms:
                    await trio.sleep(LATE_S)
                return await answer() if callable(answer) else answer

            return wait

        cluster.handlers[ApiKey.FETCH] = handle
        async with open_consumer(fetch_max_wait_ms=20_000) as consumer:
            consumer.assign([T0])
            assert await take(consumer, 20) == numbers(0, 20)
            await trio.sleep(LATE_S)
            slow = True
            consumer.seek(T0, 20)  # beside the long poll; there is nothing
            await trio.sleep(LATE_S / 2)
            consumer.seek(T0, 10)
            begun = trio.current_time()
            assert await take(consumer, 10) == numbers(10, 20)
            assert trio.current_time() - begun < 5 * LATE_S

    simulate(scenario, brokers=1)


def test_a_partition_with_a_new_leader_is_not_idle() -> None:
    """The former leader may never answer, and the new one holds a fetch of other partitions."""
    position = PartitionPosition(T0)
    position.seek(0)
    position.leader_is(3)
    position.is_idle = True
    position.leader_is(3)
    assert position.is_idle
    position.leader_is(4)
    assert not position.is_idle


def test_an_answer_from_before_a_loss_restores_nothing() -> None:
    """The member gives up its partitions while the coordinator answers a heartbeat that named them."""
    member = Member([T0])
    membership = member.membership
    membership.want(["t"])
    joined = ConsumerGroupHeartbeatResponse(member_epoch=4, assignment=Assignment(topic_partitions=[]))
    assert membership.on_epoch_heartbeat(membership.epoch_heartbeat([]), joined, membership.losses) is Next.GO_ON
    losses, request = membership.losses, membership.epoch_heartbeat([])
    membership.lose_generation("poll came too late")
    late = ConsumerGroupHeartbeatResponse(member_epoch=5, assignment=Assignment(topic_partitions=[]))
    assert membership.on_epoch_heartbeat(request, late, losses) is Next.GO_ON
    assert (membership.has_generation, membership.target) == (False, None)
    refusal = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    assert membership.on_epoch_heartbeat(request, refusal, losses) is Next.GO_ON
    assert membership.losses == losses + 1, "one loss, which the application hears once"


def test_a_topic_that_cannot_be_described_begins_no_rebalance() -> None:
    """The group's leader compares numbers of partitions, and an error is no number."""
    member = Member([T0])
    topics: dict[str, TopicInfo] = {}

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await member.rebalancer.keep(nursery, 1_000.0)
            for partitions, state in ((0, MemberState.STABLE), (3, MemberState.STABLE), (4, MemberState.UNJOINED)):
                topics["t"] = TopicInfo(
                    name="t",
                    topic_id=UUID(int=5),
                    partitions=tuple(
                        PartitionInfo(topic="t", partition=each, leader=1, leader_epoch=0) for each in range(partitions)
                    ),
                    error=ErrorCode.NONE if partitions else ErrorCode.LEADER_NOT_AVAILABLE,
                )
                member.rebalancer._notice_changes()
                assert member.membership.state is state

    member.coordinator.partition_counts = {"t": 3}
    member.rebalancer._client.cluster_metadata = SimpleNamespace(topics=topics)
    trio.run(main)
