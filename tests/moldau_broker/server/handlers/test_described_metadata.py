"""Goal: descriptions of partitions are those of the moment of the answer, and say what is known of each replica.

Method: the handlers alone, with metadata of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from moldau.values import ZERO_UUID, BrokerId, LeaderEpoch
from moldau_broker.server.cluster_metadata.cache import MetadataCache
from moldau_broker.server.handlers.groups.membership import handle_find_coordinator
from moldau_broker.server.handlers.groups.shares import handle_describe_share_group_offsets
from moldau_broker.server.handlers.metadata import handle_metadata
from moldau_broker.server.handlers.producers import handle_describe_producers
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from moldau_quorum.metadata.records import (
    Endpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable

B1, B2 = BrokerId(1), BrokerId(2)
TOPIC, GOOD, FAILED = UUID(int=1), UUID(int=100), UUID(int=200)
IMAGE = SimpleNamespace(topics_by_id={TOPIC: SimpleNamespace(name="t")})
CALL: Any = SimpleNamespace(version=12, listener_name="l", verdict=None)


def broker(broker_id: BrokerId) -> RegisterBrokerRecord:
    endpoint = Endpoint(name="l", host=f"b{broker_id}", port=9092)
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=1,
        endpoints=(endpoint,),
        fenced=False,
        log_dirs=(GOOD,),
    )


def replicated(directory: UUID) -> PartitionRecord:
    """A partition that broker 1 leads; its follower's replica is in this directory."""
    return PartitionRecord(
        topic_id=TOPIC,
        partition_id=0,
        replicas=(B1, B2),
        isr=(B1, B2),
        leader=B1,
        leader_epoch=LeaderEpoch(4),
        directories=(GOOD, directory),
    )


def answer(directory: UUID = GOOD, *, suspected: bool = False) -> Any:
    """Returns the answer about the partition; a suspected leader has a successor while the handler waits."""
    cache = MetadataCache(B2, "l", rack_aware_reads=False)
    known = [broker(B1), broker(B2), TopicRecord(name="t", topic_id=TOPIC), replicated(directory)]
    cache.image = MetadataImage(offset=0).apply(known, offset=1, epoch=1).image
    cache.is_suspect = lambda broker_id: suspected and broker_id == B1

    async def wait_until(condition: Callable[[MetadataImage], bool]) -> None:
        if condition(cache.image):
            return
        await trio.lowlevel.checkpoint()
        change = PartitionChangeRecord(topic_id=TOPIC, partition_id=0, partition_epoch=1, leader=B2)
        cache.image = cache.image.apply([change], offset=2, epoch=1).image
        assert condition(cache.image)

    context: Any = SimpleNamespace(broker_id=B2, metadata=cache, follower=SimpleNamespace(wait_until=wait_until))
    wanted = [MetadataRequestTopic(topic_id=ZERO_UUID, name="t")]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
    shared: Any = trio.run(handle_metadata, context, request, CALL)
    response = shared.response
    assert isinstance(response, MetadataResponse)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize(("suspected", "leader"), [(False, (B1, 4)), (True, (B2, 5))])
def test_the_answer_names_the_leader_of_after_the_wait(suspected: bool, leader: tuple[int, int]) -> None:
    """It waits for the successor of a crashed leader; metadata of before the wait would name the crashed one."""
    found = answer(suspected=suspected)
    assert (found.leader_id, found.leader_epoch) == leader


@pytest.mark.parametrize(("directory", "offline"), [(GOOD, []), (FAILED, [B2])])
def test_a_replica_on_a_failed_directory_is_offline(directory: UUID, offline: list[int]) -> None:
    """Its broker is alive, and it may be in sync until the controller has heard of the failure."""
    assert answer(directory).offline_replicas == offline


def test_followers_describe_producers_too() -> None:
    """An operator looks for hanging transactions of one broker at all of its replicas."""
    state = SimpleNamespace(
        producer_id=7,
        producer_epoch=1,
        last_sequence=3,
        last_timestamp_ms=9,
        coordinator_epoch=2,
        current_transaction_start_offset=5,
    )
    follower = SimpleNamespace(log=SimpleNamespace(producer_state=SimpleNamespace(describe=lambda: [state])))

    def leader(*_: object) -> Any:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    context: Any = SimpleNamespace(replica=lambda *_: follower, leader=leader)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    (part,) = handle_describe_producers(context, request, CALL).topics[0].partitions
    assert part.error_code == ErrorCode.NONE
    assert [each.producer_id for each in part.active_producers] == [7]


@pytest.mark.parametrize(("start", "done", "lag"), [(0, 0, 10), (0, 3, 7), (4, 0, 6), (-1, 0, -1), (0, -1, -1)])
def test_the_lag_counts_from_the_start_offset(start: int, done: int, lag: int) -> None:
    """A group that has begun at offset 0 has a lag; one that has not begun, or whose state is too old, has none."""
    group = SimpleNamespace(states=SimpleNamespace(initialized={TOPIC: SimpleNamespace(name="t", partitions={0})}))

    async def ask(_: object) -> ReadShareGroupStateSummaryResponse:
        await trio.lowlevel.checkpoint()
        part = PartitionResult(partition=0, start_offset=start, delivery_complete_count=done)
        return ReadShareGroupStateSummaryResponse(results=[ReadStateSummaryResult(topic_id=TOPIC, partitions=[part])])

    async def end_offsets(partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(partitions, 10)

    context: Any = SimpleNamespace(
        groups=SimpleNamespace(share_group=lambda _: (ErrorCode.NONE, group)),
        metadata=SimpleNamespace(image=IMAGE, partition=lambda *_: object()),
        share_states=SimpleNamespace(ask=ask, end_offsets=end_offsets),
    )
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=[wanted])
    response = trio.run(handle_describe_share_group_offsets, context, request, CALL)
    (part,) = response.groups[0].topics[0].partitions
    assert (part.start_offset, part.lag) == (start, lag)


def test_a_missing_coordinator_delays_its_groups_once() -> None:
    """Its silence takes ten seconds; one group after the other, five of them would outlast most clients."""
    names = [f"g{number}" for number in range(5)]
    group = SimpleNamespace(states=SimpleNamespace(initialized={TOPIC: SimpleNamespace(name="t", partitions={0})}))

    async def ask(_: object) -> ReadShareGroupStateSummaryResponse:
        await trio.sleep(10)
        part = PartitionResult(partition=0, start_offset=-1, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return ReadShareGroupStateSummaryResponse(results=[ReadStateSummaryResult(topic_id=TOPIC, partitions=[part])])

    context: Any = SimpleNamespace(
        groups=SimpleNamespace(share_group=lambda _: (ErrorCode.NONE, group)),
        metadata=SimpleNamespace(image=IMAGE, partition=lambda *_: object()),
        share_states=SimpleNamespace(ask=ask),
    )
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names]

    async def main() -> tuple[Any, float]:
        begin = trio.current_time()
        response = await handle_describe_share_group_offsets(
            context, DescribeShareGroupOffsetsRequest(groups=groups), CALL
        )
        return response, trio.current_time() - begin

    response, took_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [each.group_id for each in response.groups] == names
    assert took_s == pytest.approx(10)


@pytest.mark.parametrize(("version", "key_type"), [(3, 0), (4, 0), (4, 1)])
def test_a_coordinator_has_the_address_of_the_clients_listener(version: int, key_type: int) -> None:
    """That of another listener may be out of the client's reach, or demand another login."""
    partitions = {0: SimpleNamespace(leader=B2)}
    topics = dict.fromkeys((OFFSETS_TOPIC, TRANSACTIONS_TOPIC), SimpleNamespace(partitions=partitions))
    context: Any = SimpleNamespace(
        metadata=SimpleNamespace(
            image=SimpleNamespace(topics_by_name=topics),
            inter_broker_listener="inside",
            endpoint=lambda broker_id, listener: SimpleNamespace(host=f"{listener}{broker_id}", port=9092),
        )
    )
    call: Any = SimpleNamespace(version=version, listener_name="outside")
    request = FindCoordinatorRequest(key="g", key_type=key_type, coordinator_keys=["g"])
    response = trio.run(handle_find_coordinator, context, request, call)
    found: Any = response.coordinators[0] if version >= 4 else response
    assert (found.node_id, found.host) == (B2, "outside2")
