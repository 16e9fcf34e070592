"""Goal: a request that is served in part says so: for each entry, for each follower, and within a quota.

Method: the parts of the data path alone, with stand-ins for the replicas, and one broker on virtual time for quotas.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_response
from moldau.protocol.hot.produce import ProducePartitionResult, ProduceRequestView
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import ProduceResponse
from moldau.values import LeaderEpoch
from moldau_broker.replication.fetch_session import FetchPartition as Wanted
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.data_path.fetch_query import FetchQuery
from moldau_broker.server.data_path.follower_positions import FollowerPositions
from moldau_broker.server.data_path.produce import ProduceService
from moldau_broker.server.data_path.produce_rights import NOTHING_DENIED, Results
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_broker.server.replicas.delayed import ProduceOperation, Waiters
from support.cluster.broker_cluster import batch, frame, run_cluster

CLOCK: Any = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: 0.0)
FETCH_VERSION, PRODUCE_VERSION = 12, 9


class Led(SimpleNamespace):
    """A partition, by identity."""

    __hash__ = object.__hash__


def test_both_batches_of_one_partition_time_out() -> None:
    """The request names the partition twice, and its replicas do not get the records in time."""
    partition = Led(
        is_internal=False, staged_failures=0, replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=3))
    )
    staged = iter([(2, 3, 0, -1, 0), (0, 1, 0, -1, 0)])  # the second one is known already
    waits = SimpleNamespace(produces=Waiters(CLOCK, 10))
    replicas: Any = SimpleNamespace(by_raw_name={(b"t", 0): partition}, waits=waits, stage=lambda *_: next(staged))
    unused: Any = None
    service = ProduceService(
        CLOCK, replicas, unused, unused, checks=unused, offload=unused, unpacked_bytes_max=unused, verifies=unused
    )
    request = ProduceRequestView(None, -1, 1_000, [(b"t", [(0, memoryview(b"")), (0, memoryview(b""))])])
    answer, operation = service.append(request, PRODUCE_VERSION, 1, {}, None, None, NOTHING_DENIED)
    assert isinstance(operation, ProduceOperation)
    assert answer is operation
    assert [wait.required_offset for wait in operation.waiting.values()] == [4], "both must be committed"
    operation.expired()
    (data,) = operation.answer_now()
    _, response = decode_response(ProduceResponse, PRODUCE_VERSION, memoryview(bytes(data))[4:])
    codes = [part.error_code for topic in response.responses for part in topic.partition_responses]
    assert codes == [ErrorCode.REQUEST_TIMED_OUT] * 2


@pytest.mark.parametrize("sizes", [(4,), (1, 3), (2, 2), (3, 1), (1, 1, 1, 1)], ids=str)
def test_each_partition_is_answered_with_its_own_outcome(sizes: tuple[int, ...]) -> None:
    """All ways in which the appends of a request to several topics end.

    Each is committed, refused at once, not replicated in time, or interrupted by another leader. ``sizes`` are the
    numbers of partitions of the topics.
    """
    codes = (
        ErrorCode.NONE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    names = [(b"t%d" % topic, index) for topic, count in enumerate(sizes) for index in range(count)]
    for outcomes in product(codes, repeat=len(names)):
        wanted = dict(zip(names, outcomes, strict=True))
        assert answered(wanted, NOTHING_DENIED) == wanted


@pytest.mark.parametrize("count", [1, 2])
def test_a_denied_topic_gets_no_outcome_of_another(count: int) -> None:
    """The answer has its refusal, and for each other partition the outcome of that one, also after a wait."""
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied = [(b"denied", [ProducePartitionResult(index, refused) for index in range(count)])]
    names = [(b"t0", 0), (b"t0", 1), (b"t1", 0)]
    codes = (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)
    for outcomes in product(codes, repeat=len(names)):
        wanted = dict(zip(names, outcomes, strict=True))
        assert answered(wanted, denied) == {**wanted, **{(b"denied", index): refused for index in range(count)}}


def answered(outcomes: dict[tuple[bytes, int], ErrorCode], denied: Results) -> dict[tuple[bytes, int], int]:
    """Returns the code of each partition in the answer to a request whose appends end as in ``outcomes``."""

    def stage(partition: Any, *_: object) -> tuple[int, ...]:
        if partition.outcome is ErrorCode.NOT_ENOUGH_REPLICAS:
            raise KafkaError(partition.outcome)
        return (0, 0, 0, -1, 0)

    partitions = {
        name: Led(
            is_internal=False,
            staged_failures=0,
            outcome=outcome,
            traffic=SimpleNamespace(failed_produce=0),
            replica=SimpleNamespace(state=SimpleNamespace(leader_epoch=3)),
        )
        for name, outcome in outcomes.items()
    }
    waits = SimpleNamespace(produces=Waiters(CLOCK, 10))
    replicas: Any = SimpleNamespace(by_raw_name=partitions, waits=waits, stage=stage)
    unused: Any = None
    service = ProduceService(
        CLOCK, replicas, unused, unused, checks=unused, offload=unused, unpacked_bytes_max=unused, verifies=unused
    )
    topics: dict[bytes, list[tuple[int, memoryview]]] = {}
    for topic, index in outcomes:
        topics.setdefault(topic, []).append((index, memoryview(b"")))
    request = ProduceRequestView(None, -1, 1_000, list(topics.items()))
    answer: Any
    answer, operation = service.append(request, PRODUCE_VERSION, 1, {}, None, None, denied)
    if operation is not None:
        for partition in list(operation.waiting):
            operation.resolve(partition, partition.outcome)
        answer = operation.answer_now()
    _, response = decode_response(ProduceResponse, PRODUCE_VERSION, memoryview(bytes(answer[0]))[4:])
    return {
        (topic.name.encode(), part.index): part.error_code
        for topic in response.responses
        for part in topic.partition_responses
    }


def test_a_refused_follower_does_not_have_all_records() -> None:
    """It is at the log end, but its fetch comes from before its restart: it gets the error now, not after its wait."""
    effects = [SimpleNamespace(error=ErrorCode.NONE), SimpleNamespace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    log = SimpleNamespace(epochs=SimpleNamespace(latest_epoch=3), storage=SimpleNamespace(log_start_offset=0))
    replica = SimpleNamespace(
        followed=lambda *_: effects.pop(0), state=SimpleNamespace(leader_epoch=3), log_end_offset=7
    )
    partition = SimpleNamespace(check_access=lambda *_, **__: ErrorCode.NONE, log=log, replica=replica)
    replicas: Any = SimpleNamespace(
        by_raw_name={(b"t", 0): partition, (b"t", 1): partition},
        waits=SimpleNamespace(follower_noted=lambda: None),
        eligible=lambda *_: True,
        perform=lambda *_: None,
    )
    query = FetchQuery(FETCH_VERSION, 1, 2, 5, 500, 1, 1 << 20, 0, "")
    wanted = [Wanted(b"t", number, 7, 1 << 20, LeaderEpoch(3), -1, 0) for number in range(2)]
    errors, has_all = FollowerPositions(replicas).note(query, wanted, 0.0)
    assert (errors, has_all) == ({1: ErrorCode.NOT_LEADER_OR_FOLLOWER}, False)


async def limit_fetches(cluster: Any, client: Any, rate: float) -> None:
    entity = [AlterClientQuotasRequestEntityData(entity_type="client-id", entity_name=None)]
    change = OpData(key="consumer_byte_rate", value=rate, remove=False)
    entry = AlterClientQuotasRequestEntryData(entity=entity, ops=[change])
    await client.request(AlterClientQuotasRequest(entries=[entry]), timeout_ms=60_000)
    await cluster.until(lambda: cluster.running[1].context.quotas.is_active)


def test_a_fetch_asks_for_no_more_than_its_quota() -> None:
    """A client wants a megabyte at once. Its first answer comes at once, and the next one ends no wait and no session.

    A session would begin with an answer that names no partition.
    """

    async def scenario(cluster: Any) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await client.produce("t", batch(bytes(20_000)))
        await limit_fetches(cluster, client, 200.0)
        context = cluster.running[1].context
        services = listener_services(context, "PLAINTEXT", api_table(BASE_APIS))
        connection: Any = SimpleNamespace(peer_address=("client", 1))
        peer: Any = SimpleNamespace(identity=SimpleNamespace(name="ANONYMOUS"))
        handler = BrokerConnection(services, connection, peer)
        part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=5_000,
            min_bytes=1 << 20,
            max_bytes=1 << 20,
            session_id=0,
            session_epoch=0,
            topics=[FetchTopic(topic="t", partitions=[part])],
        )
        answers = []
        for _ in range(2):
            parts: Any = handler.handle(memoryview(bytearray(frame(request, FETCH_VERSION)[4:])))
            assert isinstance(parts, list), "it waits"
            data = b"".join(each if isinstance(each, bytes | memoryview) else bytes(each.count) for each in parts)
            answers.append(decode_response(FetchResponse, FETCH_VERSION, memoryview(data)[4:])[1])
        first, throttled = answers
        assert first.session_id
        assert first.responses
        assert throttled.throttle_time_ms
        assert (throttled.session_id, list(throttled.responses)) == (0, [])
        assert len(context.sessions._sessions) == 1

    run_cluster(scenario)
