"""Goal: many clients that ask for the same metadata cost a broker one description of a topic, and get true answers.

Method: a broker on virtual time, whose handler of one connection gets Metadata requests in a loop. The test counts
calls of Python functions; it measures no time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.values import ZERO_UUID, BrokerId
from moldau_broker.server.cluster_metadata import shared_answers
from moldau_broker.server.cluster_metadata.cache import MetadataCache
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import decode_response, frame, run_cluster
from support.cluster.work import Work, handler_of

CALLS_MAX = 110
"""Calls of one more request for the same topics."""
TWO_LISTENERS: dict[str, Any] = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
}
MEMBERS = 20


class Toll:
    """Lets a client pause for as long as a test says."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms

    def due(self) -> int:
        return self._pause_ms

    def resumed(self) -> None: ...
    def suspended(self) -> None: ...


def question(*names: str, version: int = 12, correlation_id: int = 1, **wanted: bool) -> memoryview:
    topics = [MetadataRequestTopic(topic_id=ZERO_UUID, name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False, **wanted)
    return memoryview(bytearray(frame(request, version, correlation_id)[4:]))


async def answer_of(handler: Any, asked: memoryview, version: int = 12) -> tuple[int, Any]:
    parts = await handler.handle(asked).wait()
    return decode_response(MetadataResponse, version, memoryview(b"".join(parts))[4:])


async def work_of(handler: Any, asked: memoryview) -> int:
    """Counts the calls of one request; it must not wait for anything."""
    work, coroutine = Work(), handler.handle(asked).wait()
    with work.counted():
        await coroutine
    return work.calls


def test_metadata_of_many_members_grows_with_members_only() -> None:
    """500 members of a group that all asked for a topic with 1000 partitions once stopped a broker for seconds."""
    calls: dict[int, list[int]] = {}

    async def scenario(cluster: Any) -> None:
        for partitions in (4, 64):
            await cluster.client(1).create_topic(f"t{partitions}", partitions=partitions)
            await cluster.leader(f"t{partitions}")
            handler = handler_of(cluster)
            asked = question(f"t{partitions}")
            await answer_of(handler, asked)
            calls[partitions] = [await work_of(handler, asked) for _ in range(MEMBERS)]

    run_cluster(scenario, brokers=1)
    assert max(calls[64]) == max(calls[4]) <= CALLS_MAX


def test_each_question_has_its_own_true_answer() -> None:
    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("a", partitions=2)
        await cluster.client(1).create_topic("b")
        await cluster.leader("b")
        handler = handler_of(cluster)
        for version in (1, 8, 12):
            for correlation_id in (7, 8):
                asked = question("a", version=version, correlation_id=correlation_id)
                got_id, answer = await answer_of(handler, asked, version)
                assert got_id == correlation_id
                assert answer.throttle_time_ms == 0
                assert [(each.name, len(each.partitions)) for each in answer.topics] == [("a", 2)]
        for rights in ("topic", "cluster"):
            wanted = {f"include_{rights}_authorized_operations": True}
            _, answer = await answer_of(handler, question("a", version=8, **wanted), 8)
            masks = answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations
            assert [each > 0 for each in masks] == [rights == "topic", rights == "cluster"]
        _, answer = await answer_of(handler, question("b", "a"))
        assert [each.name for each in answer.topics] == ["b", "a"]
        _, answer = await answer_of(handler, question("c"))
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await cluster.client(1).create_topic("c")
        await cluster.leader("c")
        _, answer = await answer_of(handler, question("c"))
        assert answer.topics[0].error_code == ErrorCode.NONE, "an answer holds for one image only"

    run_cluster(scenario, brokers=1)


def test_a_client_that_pauses_gets_its_own_answer() -> None:
    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("a")
        await cluster.leader("a")
        handler = handler_of(cluster)

        async def asked(pause_ms: int, correlation_id: int) -> tuple[int, Any]:
            deferred = handler._other(question("a", correlation_id=correlation_id), Toll(pause_ms))
            parts = await deferred.wait()
            return decode_response(MetadataResponse, 12, memoryview(b"".join(parts))[4:])

        for pause_ms, correlation_id in ((0, 1), (250, 2), (1, 3), (0, 4)):
            got_id, answer = await asked(pause_ms, correlation_id)
            assert (got_id, answer.throttle_time_ms) == (correlation_id, pause_ms)
            assert answer.topics[0].name == "a"

    run_cluster(scenario, brokers=1)


def test_clients_of_another_listener_get_its_addresses() -> None:
    """They ask the same a moment later, over a listener whose addresses are others."""

    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("a")
        await cluster.leader("a")
        ports: list[list[int]] = []
        for listener_name in ("PLAINTEXT", "OUTSIDE"):
            services = listener_services(cluster.running[1].context, listener_name, api_table(BASE_APIS))
            connection: Any = SimpleNamespace(peer_address=("client", 1))
            peer: Any = SimpleNamespace(identity=None)
            _, answer = await answer_of(BrokerConnection(services, connection, peer), question("a"))
            ports.append([broker.port for broker in answer.brokers])
        assert ports == [[9092], [9093]]

    run_cluster(scenario, brokers=1, own_listeners={1: "PLAINTEXT://b1:9092,OUTSIDE://b1:9093"}, **TWO_LISTENERS)


@pytest.mark.parametrize("described", [1, shared_answers.DESCRIBED_MAX + 1])
def test_kept_answers_are_bounded(described: int) -> None:
    kept, image = shared_answers.SharedAnswers(), object()
    for number in range(3 * shared_answers.ANSWERS_MAX):
        kept.keep(image, number, shared_answers.SharedAnswer(None, b""), described)  # type: ignore[arg-type]
    found = [kept.get(image, number) for number in range(3 * shared_answers.ANSWERS_MAX)]  # type: ignore[arg-type]
    assert sum(each is not None for each in found) == (shared_answers.ANSWERS_MAX if described == 1 else 0)
    assert kept.get(object(), 3 * shared_answers.ANSWERS_MAX - 1) is None  # type: ignore[arg-type]


def test_no_answer_outlives_its_image() -> None:
    """Also not one to another question than the first that is asked after a change."""
    kept, images = shared_answers.SharedAnswers(), [object() for _ in range(3)]
    answers: Any = {}
    for image in images:
        for key in ("a", "b"):
            assert [kept.get(image, each) for each in "ab"] == [answers.get((image, each)) for each in "ab"]  # type: ignore[arg-type]
            answers[image, key] = shared_answers.SharedAnswer(None, b"")
            kept.keep(image, key, answers[image, key], 1)  # type: ignore[arg-type]
        assert not any(kept.get(each, key) for each in images if each is not image for key in "ab")  # type: ignore[arg-type]


def test_partitions_are_counted_in_each_image() -> None:
    """The count bounds what a request may name."""
    cache = MetadataCache(BrokerId(1), "PLAINTEXT", rack_aware_reads=False)
    for sizes in ((), (3,), (3, 4), (4,), ()):
        topics = {f"t{number}": SimpleNamespace(partitions=range(size)) for number, size in enumerate(sizes)}
        image: Any = SimpleNamespace(topics_by_name=topics)
        cache.image = image
        assert [cache.partition_count() for _ in range(2)] == [sum(sizes)] * 2
