"""Goal: the work of a usual request does not grow unnoticed.

Method: a broker on virtual time, whose handler of one connection gets frames in a loop. The tests count calls of
Python functions, operations on files, and objects that stay; they measure no time. A bound is a little above the count
when it was set: a change that exceeds it removes work elsewhere, or has a reason.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau.implementation import EXTENSIONS
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import IMPLEMENTATION
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 20
PRODUCE_CALLS = 72
MORE_IN_ONE_DRAIN = 45
"""Calls of one more request that is written together with others."""
FETCH_CALLS = 88
SESSION_CALLS = 46
SESSION_C_CALLS = 40
PARTITIONS = 50
OPERATIONS = ("append", "write_at", "read", "read_into", "truncate", "sync")
KEPT_OBJECTS = 8
"""Objects per request that stay: the log remembers its newest batches and the entries of their index."""

BUILT = all(importlib.util.find_spec(name) is not None for name in EXTENSIONS)
compiled = pytest.mark.skipif(
    IMPLEMENTATION == "python" or not BUILT, reason="the bounds are those of the compiled loops, which were not built"
)


class Work:
    """Counts calls of functions, outside the simulated world, and operations on its files."""

    def __init__(self) -> None:
        self.calls = self.c_calls = 0
        self.files: dict[str, int] = {}

    def _note(self, called: Any, event: str, _: object) -> None:
        if event == "call":
            code = called.f_code
            if "moldau_jepsen/world" not in code.co_filename:
                self.calls += 1
            elif code.co_name in OPERATIONS and code.co_qualname.startswith("VirtualFile."):
                self.files[code.co_name] = self.files.get(code.co_name, 0) + 1
        elif event == "c_call" and "moldau_jepsen/world" not in called.f_code.co_filename:
            self.c_calls += 1

    def of(self, run: Callable[[], object]) -> None:
        sys.setprofile(self._note)
        try:
            run()
        finally:
            sys.setprofile(None)


def handler_of(cluster: Any) -> BrokerConnection:
    """Returns the handler of a connection that has no socket."""
    services = listener_services(cluster.running[1].context, "PLAINTEXT", api_table(BASE_APIS))
    connection: Any = SimpleNamespace(peer_address=("client", 1))
    peer: Any = SimpleNamespace(identity=None)
    return BrokerConnection(services, connection, peer)


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
    """Serves frames that arrived together."""
    answers = [handler.handle(memoryview(each)) for each in frames]
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


@compiled
def test_work_of_a_consumer_whose_partitions_are_idle() -> None:
    """A fetch in a session without news makes no call per partition."""

    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t", partitions=PARTITIONS)
        for number in range(PARTITIONS):
            await cluster.leader("t", number)
        handler = handler_of(cluster)
        (first,) = serve(handler, fetch_frame(PARTITIONS, session_epoch=0))
        _, opened = decode_response(FetchResponse, 12, memoryview(b"".join(first))[4:])
        assert opened.session_id
        assert len(opened.responses[0].partitions) == PARTITIONS
        (quiet,) = serve(handler, fetch_frame(0, opened.session_id, 1))
        _, answer = decode_response(FetchResponse, 12, memoryview(b"".join(quiet))[4:])
        assert not answer.responses
        frames = [fetch_frame(0, opened.session_id, 2 + number) for number in range(ROUNDS)]
        work = Work()
        work.of(lambda: [serve(handler, each) for each in frames])
        assert work.calls <= SESSION_CALLS * ROUNDS
        assert work.c_calls <= (SESSION_C_CALLS + 2 * PARTITIONS) * ROUNDS, "a look-up for each partition"
        serve(handler, produce_frame())
        (news,) = serve(handler, fetch_frame(0, opened.session_id, 2 + ROUNDS))
        head, records, tail = news
        data = b"".join((head, bytes(records.count), tail))
        _, answer = decode_response(FetchResponse, 12, memoryview(data)[4:])
        assert [part.partition_index for part in answer.responses[0].partitions] == [0]

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
