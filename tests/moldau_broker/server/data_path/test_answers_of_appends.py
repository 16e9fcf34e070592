"""Goal: the answer to a Produce says neither more nor less than what happened to its batches.

Method: the parts that make the answer, over stand-ins; then a broker on virtual time, in all newer versions.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import ProducePartitionResult, ProduceRequestView
from moldau.protocol.messages.produce import ProduceRequest, TopicProduceData
from moldau.runtime.net.serving.answers import CloseConnection
from moldau_broker.server.data_path.connection import BrokerConnection, _hot_header
from moldau_broker.server.data_path.produce import ProduceService, VerifiedProduce
from moldau_broker.server.data_path.produce_rights import permitted
from moldau_broker.server.data_path.record_checks import InlineBudget, RequestChecks
from moldau_broker.server.data_path.transaction_checks import ATTRIBUTES_LOW_BYTE, TRANSACTIONAL_FLAG
from support.cluster.broker_cluster import batch, frame, run_cluster


class Failing:
    """A partition whose staged batches are lost when they are written, or are not."""

    key = "t-0"

    def __init__(self, failures: int, *, fails: bool) -> None:
        self.staged_failures = failures
        self.fails = fails

    def write(self) -> None:
        self.staged_failures += self.fails


def service_of(replicas: Any, hints: Any = None) -> ProduceService:
    unused: Any = None
    return ProduceService(
        unused,
        replicas,
        hints,
        unused,
        checks=unused,
        offload=unused,
        unpacked_bytes_max=lambda: 1,
        verifies=lambda: True,
    )


@pytest.mark.parametrize("path", ["verified by its coordinator", "any other request"])
def test_a_lost_batch_ends_its_connection_and_no_other_one(path: str) -> None:
    """The answer that promises it must not leave; earlier failures of the same partition were noticed before."""
    for outcomes in product((False, True), repeat=3):
        partitions: list[Any] = [Failing(number, fails=fails) for number, fails in enumerate(outcomes)]
        touched = {partition: partition.staged_failures for partition in partitions}

        def flush(written: list[Any] = partitions) -> None:
            for partition in written:
                partition.write()

        replicas: Any = SimpleNamespace(flush=flush)
        service = service_of(replicas)
        if path == "any other request":
            services: Any = SimpleNamespace(quotas=None, produce=service)
            connection: Any = SimpleNamespace(peer_address=("client", 1))
            peer: Any = None
            handler = BrokerConnection(services, connection, peer)
            handler._touched = touched
            written = handler.flush
        else:
            written = partial(service.flush, touched)
        if any(outcomes):
            with pytest.raises(CloseConnection):
                written()
        else:
            written()


@pytest.mark.parametrize("by_id", [False, True])
def test_rights_are_checked_for_records_of_any_length(by_id: bool) -> None:
    """A client may send fewer bytes than a batch has; they are refused later, and the request goes on."""
    topic = b"\1" * 16 if by_id else b"t"
    permissions: Any = SimpleNamespace(
        writable=({topic}, {topic}), topic_error=lambda *_, **__: ErrorCode.NONE, may=lambda *_: False
    )
    for length in range(ATTRIBUTES_LOW_BYTE + 3):
        for flags in (0, TRANSACTIONAL_FLAG):
            records = memoryview(bytes([flags]) * length)
            request = ProduceRequestView(None, -1, 1_000, [(topic, [(0, records)])])
            allowed, denied = permitted(request, 13 if by_id else 12, permissions)
            is_transactional = bool(flags) and length > ATTRIBUTES_LOW_BYTE
            assert bool(allowed.topics) is not is_transactional, length
            assert bool(denied) is is_transactional, length


@pytest.mark.parametrize("by_id", [False, True])
def test_rights_are_checked_wherever_a_transactional_batch_is(by_id: bool) -> None:
    """All records of a request count as those of its transaction, so none of them may stay."""
    names = [bytes([number]) * 16 for number in (1, 2)] if by_id else [b"t", b"u"]
    permissions: Any = SimpleNamespace(
        writable=({*names}, {*names}), topic_error=lambda *_, **__: ErrorCode.NONE, may=lambda *_: False
    )
    places = [(topic, index) for topic in names for index in range(3)]
    for known, place in product((names, []), places):
        permissions.writable = ({*known}, {*known})
        topics = [
            (topic, [(index, memoryview(bytes([16 if (topic, index) == place else 0]) * 40)) for index in range(3)])
            for topic in names
        ]
        allowed, denied = permitted(ProduceRequestView("x", -1, 1_000, topics), 13 if by_id else 12, permissions)
        assert not allowed.topics, place
        assert [len(results) for _, results in denied] == [3, 3], place


def test_a_denied_partition_ends_a_connection_without_answers() -> None:
    """With acks=0 nothing else would say that the records are not in the log, though others of the request are."""
    denied = [(b"u", [ProducePartitionResult(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])]
    replicas: Any = SimpleNamespace(by_raw_name={}, by_raw_id={})
    for acks, refused in product((0, 1), (denied, [])):
        request = ProduceRequestView(None, acks, 1_000, [])
        with pytest.raises(CloseConnection) if acks == 0 and refused else nullcontext():
            answer, waiting = service_of(replicas).append(request, 12, 1, {}, None, None, refused)
            assert (waiting, answer is None) == (None, acks == 0)


@pytest.mark.parametrize(
    ("version", "topic", "named"), [(12, b"u", "u-0: "), (13, bytes(15) + b"\1", "AAAAAAAAAAAAAAAAAAAAAQ-0: ")]
)
def test_the_log_names_the_topic_of_a_lost_batch(version: int, topic: bytes, named: str) -> None:
    """As an operator knows it: a connection without answers has no other place for the reason."""
    denied = [(topic, [ProducePartitionResult(0, ErrorCode.TOPIC_AUTHORIZATION_FAILED)])]
    replicas: Any = SimpleNamespace(by_raw_name={}, by_raw_id={})
    request = ProduceRequestView(None, 0, 1_000, [])
    with pytest.raises(CloseConnection, match=f"failed: {named}TOPIC_AUTHORIZATION_FAILED"):
        service_of(replicas).append(request, version, 1, {}, None, None, denied)


def test_a_request_waits_behind_one_that_is_verified() -> None:
    """It needs no answer of the coordinator, but a batch of the same partition may be in the request before it."""
    data = frame(ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1, topic_data=[]), 12)
    body = memoryview(bytes(data[4:]))
    replicas: Any = SimpleNamespace(by_raw_name={}, by_raw_id={})
    _, position = _hot_header(body, True)
    for is_verifying in (False, True):
        answer, waiting = service_of(replicas).handle(
            body, position, 12, 1, {}, entries_max=10, budget=InlineBudget(), is_verifying=is_verifying
        )
        assert (isinstance(answer, VerifiedProduce), waiting) == (is_verifying, None)


def test_checks_hold_for_the_request_that_was_checked() -> None:
    """They are numbered; without a topic that is denied by now, they would be taken for those of other batches."""
    parts = [TopicProduceData(name=name, partition_data=[]) for name in ("t", "u")]
    data = frame(ProduceRequest(acks=-1, timeout_ms=1, topic_data=parts), 12)
    body = memoryview(bytes(data[4:]))
    replicas: Any = SimpleNamespace(by_raw_name={}, by_raw_id={})
    _, position = _hot_header(body, True)
    for topics in ([b"t", b"u"], [b"u", b"t"], [b"t"], [b"t", b"u", b"v"]):
        checks = RequestChecks({}, 1, topics)
        with pytest.raises(CloseConnection) if topics != [b"t", b"u"] else nullcontext():
            service_of(replicas).handle(body, position, 12, 1, {}, entries_max=10, budget=InlineBudget(), checks=checks)


@pytest.mark.parametrize("failing", ["rights", "checks", "question", "append", "write", None])
def test_a_verified_request_ends_once_however_it_ends(failing: str | None) -> None:
    """The connection counts those that wait, and would close itself in the end, or hold back the next ones."""
    data = frame(ProduceRequest(transactional_id="x", acks=-1, timeout_ms=1, topic_data=[]), 12)
    body = bytes(data[4:])
    _, position = _hot_header(memoryview(body), True)

    def step(name: str, result: Any = None) -> Any:
        def run(*_: object, **__: object) -> Any:
            if name == failing:
                raise CloseConnection(name)
            return result

        return run

    async def question(*_: object) -> Any:
        return step("question", {})()

    service: Any = SimpleNamespace(
        checks_of=step("checks"),
        transactions=SimpleNamespace(verify=question),
        append=step("append", ((b"answer",), None)),
        flush=step("write"),
    )
    rights: Any = SimpleNamespace(refresh=step("rights"), writable=(set(), set()))
    request = VerifiedProduce(service, body, position, 12, 1, rights, 0)
    ended: list[None] = []
    request.on_done = lambda: ended.append(None)
    with pytest.raises(CloseConnection) if failing else nullcontext():
        trio.run(request.wait)
    assert len(ended) == 1


@pytest.mark.parametrize("acks", [1, -1])
def test_an_appended_batch_names_no_other_leader(acks: int) -> None:
    """A client follows the leader that an answer names (KIP-951), and would leave the one that has just answered."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        for version, batches in product((10, 11, 12), (1, 3)):
            answer = await client.produce("t", *[batch(b"v")] * batches, version=version, acks=acks)
            assert answer.error_code == ErrorCode.NONE
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (-1, -1)

    run_cluster(scenario)


@pytest.mark.parametrize("hint", [None, (-1, 7), (2, 7)])
def test_a_refusal_names_the_leader_that_is_known(hint: tuple[int, int] | None) -> None:
    """A client that knows the fields goes there without another question (KIP-951)."""
    asked: list[bool] = []

    def leader_hint(topic: bytes, index: int, *, by_id: bool) -> tuple[int, int] | None:
        asked.append(by_id)
        return hint

    hints = SimpleNamespace(leader_hint=leader_hint)
    for version in (3, 9, 10, 12, 13):
        asked.clear()
        result = service_of(None, hints)._not_leader(b"t", 4, version)
        assert (result.partition, result.error_code) == (4, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert (result.leader_id, result.leader_epoch) == (hint if hint and version >= 10 else (-1, -1))
        assert asked == [version >= 13] * (version >= 10)
