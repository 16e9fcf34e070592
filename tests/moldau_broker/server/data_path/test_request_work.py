"""Goal: the work of a usual request does not grow unnoticed.

Method: a broker on virtual time, whose handler of one connection gets frames in a loop. The tests count calls of
Python functions, operations on files, and objects that stay; they measure no time. A bound is a little above the count
when it was set: a change that exceeds it removes work elsewhere, or has a reason.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.implementation import EXTENSIONS
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import IMPLEMENTATION
from moldau.runtime.net.serving.answers import FileRange
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster
from support.cluster.work import Work, handler_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_broker.server.data_path.connection import BrokerConnection
    from support.cluster.broker_cluster import Cluster

ROUNDS = 20
PRODUCE_CALLS = 41
MORE_IN_ONE_DRAIN = 17
"""Calls of one more request that is written together with others."""
FETCH_CALLS = 38
SESSION_CALLS = 21
SESSION_C_CALLS = 16
BUSY_SESSION_CALLS = 41
BUSY_SESSION_C_CALLS = 34
PARTITIONS = 50
KEPT_OBJECTS = 7
"""Objects per request that stay: the log remembers its newest batches and the entries of their index."""

BUILT = all(importlib.util.find_spec(name) is not None for name in EXTENSIONS)
compiled = pytest.mark.skipif(
    IMPLEMENTATION == "python" or not BUILT, reason="the bounds are those of the compiled loops, which were not built"
)


def body_of(request: Any, version: int) -> bytearray:
    return bytearray(frame(request, version)[4:])


def produce_frame(acks: int = 1) -> bytearray:
    partition = PartitionProduceData(index=0, records=batch(*[b"x" * 100] * 30))
    topic = TopicProduceData(name="t", partition_data=[partition])
    return body_of(ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[topic]), 12)


def fetch_frame(partitions: int, session_id: int = 0, session_epoch: int = -1) -> bytearray:
    wanted = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1 << 20) for n in range(partitions)]
    topics = [FetchTopic(topic="t", partitions=wanted)] if wanted else []
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics)
    request.session_id, request.session_epoch = session_id, session_epoch
    return body_of(request, 12)


def serve(handler: BrokerConnection, *frames: bytearray) -> list[Any]:
    """Serves frames that arrived together: copies, because a broker writes offsets into the batches it received."""
    answers = [handler.handle(memoryview(bytearray(each))) for each in frames]
    handler.flush()
    return answers


@compiled
def test_work_of_produce_and_fetch() -> None:
    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        handler = handler_of(cluster)
        produced, fetched = produce_frame(), fetch_frame(1)
        for _ in range(ROUNDS):
            assert isinstance(serve(handler, produced)[0], tuple)
        one = Work()
        one.of(lambda: [serve(handler, produced) for _ in range(ROUNDS)])
        assert one.calls <= PRODUCE_CALLS * ROUNDS
        assert one.files == {"append": ROUNDS}
        several = Work()
        several.of(lambda: serve(handler, *[produced] * ROUNDS))
        assert several.calls <= PRODUCE_CALLS + MORE_IN_ONE_DRAIN * ROUNDS
        assert several.files == {"append": 1}, "requests that arrive together are written together"
        fetch = Work()
        fetch.of(lambda: [serve(handler, fetched) for _ in range(ROUNDS)])
        assert fetch.calls <= FETCH_CALLS * ROUNDS
        assert not fetch.files, "the newest batches are found in memory, and no record is read"

    run_cluster(scenario)


def session_frames(handler: BrokerConnection, partitions: int) -> Iterator[bytearray]:
    """Opens a consumer's session; yields the frames of its next fetches, which name no partition."""
    opened = decoded(serve(handler, fetch_frame(partitions, session_epoch=0))[0])
    assert opened.session_id
    assert len(opened.responses[0].partitions) == partitions
    for epoch in itertools.count(1):
        yield fetch_frame(0, opened.session_id, epoch)


def decoded(answer: Any) -> Any:
    """Returns a fetch answer, with zeros for the records."""
    data = b"".join(bytes(part.count) if isinstance(part, FileRange) else part for part in answer)
    return decode_response(FetchResponse, 12, memoryview(data)[4:])[1]


@compiled
@pytest.mark.parametrize("partitions", [1, PARTITIONS])
def test_work_of_a_session_is_that_of_its_changes(partitions: int) -> None:
    """A fetch makes the same calls for one partition as for many at rest, with and without news of one."""

    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            await cluster.leader("t", number)
        handler = handler_of(cluster)
        frames = session_frames(handler, partitions)

        def work_of_fetches() -> tuple[float, float]:
            prepared = list(itertools.islice(frames, ROUNDS))
            work = Work()
            work.of(lambda: [serve(handler, each) for each in prepared])
            return work.calls / ROUNDS, work.c_calls / ROUNDS

        assert not decoded(serve(handler, next(frames))[0]).responses
        idle = work_of_fetches()
        serve(handler, produce_frame())
        assert [part.partition_index for part in decoded(serve(handler, next(frames))[0]).responses[0].partitions] == [
            0
        ]
        busy = work_of_fetches()
        assert idle[0] <= SESSION_CALLS, idle
        assert idle[1] <= SESSION_C_CALLS, idle
        assert busy[0] <= BUSY_SESSION_CALLS, busy
        assert busy[1] <= BUSY_SESSION_C_CALLS, busy

    run_cluster(scenario)


@compiled
def test_a_wait_of_a_session_has_one_key() -> None:
    """A waiting fetch of a consumer costs the same for one partition as for many."""

    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            await cluster.leader("t", number)
        handler = handler_of(cluster)
        serve(handler, next(session_frames(handler, PARTITIONS)))
        purgatory = cluster.running[1].context.replicas.waits.fetches.purgatory
        (session,) = cluster.running[1].context.sessions._sessions.values()
        request = FetchRequest(max_wait_ms=1000, min_bytes=1, max_bytes=1 << 20)
        request.session_id, request.session_epoch = session.session_id, session.epoch
        (waiting,) = serve(handler, body_of(request, 12))
        assert not waiting.finished
        assert list(purgatory.watched) == [(session, True)]
        serve(handler, produce_frame())
        assert waiting.finished
        assert not purgatory.watched
        assert sum(part.count for part in waiting.answer_now() if isinstance(part, FileRange)) > 0

    run_cluster(scenario)


@compiled
def test_few_objects_stay_of_a_produce() -> None:
    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        handler = handler_of(cluster)
        produced = produce_frame()
        for _ in range(ROUNDS):
            serve(handler, produced)
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(10 * ROUNDS):
            serve(handler, produced)
        gc.collect()
        assert sys.getallocatedblocks() - before <= KEPT_OBJECTS * 10 * ROUNDS

    run_cluster(scenario)


def test_waiting_requests_leave_no_reference_cycles() -> None:
    """Requests that wait for replicas, for bytes or for their deadline are gone soon after their answers.

    Otherwise garbage collections would stop a broker with thousands of such requests in a second every few seconds.
    """

    async def scenario(cluster: Cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        partition = PartitionProduceData(index=0, records=batch(b"x" * 100))
        produce = ProduceRequest(
            acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
        )

        async def produce_and_wait(offset: int) -> None:
            wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            fetch = FetchRequest(
                max_wait_ms=50, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[wanted])]
            )
            await client.request(fetch, 12)  # until its deadline
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.request, fetch, 12)
                await trio.sleep(0.01)
                await client.request(produce, 12)

        await produce_and_wait(0)
        gc.collect()  # none follows by itself in a simulated run
        rounds = 3 * ROUNDS  # a connection keeps the last dozens of them, so that it can abandon them when it closes
        for offset in range(1, 1 + rounds):
            await produce_and_wait(offset)
        assert gc.collect() < rounds, "less than an object for each three requests"

    run_cluster(scenario)
