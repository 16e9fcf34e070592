"""Goal: a request that is slow or drawn is handed on with its stages, and who asked for what.

Method: the tracer alone, with frames of all versions from the codec and a clock that is set by hand.
"""

import random
from uuid import UUID

import pytest

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_request_header, encode_request, encode_response
from moldau.protocol.messages.api_versions import ApiVersionsResponse
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from moldau.runtime.net.serving.answers import FileRange
from moldau.runtime.net.serving.request_traces import ANSWER_BYTES_MAX, RequestTraces, first_topic, result_of

TOPIC_ID = UUID(int=7)


class Connection:
    peer_address = ("10.0.0.1", 5)


class Clock:
    def __init__(self):
        self.now_ms = 1_000.0

    def monotonic_ms(self):
        return self.now_ms

    def wall_ms(self):
        return self.now_ms + 1_700_000_000_000


class Traced:
    def __init__(self, *, slow_ms=100, sample_ratio=0.0, **more):
        self.clock, self.found = Clock(), []
        self.traces = RequestTraces(
            self.clock, random.Random(1), self.found.append, slow_ms=slow_ms, sample_ratio=sample_ratio, **more
        )

    def run(self, frame, *, handle=1, wait=0, send=1, answer=(b"",)):
        trace = self.traces.begin(memoryview(frame)[4:], self.clock.now_ms, "PLAINTEXT", Connection())
        self.clock.now_ms += handle
        self.traces.handled((trace,))
        self.clock.now_ms += wait
        self.traces.ready([None, trace])
        self.clock.now_ms += send
        self.traces.answered(trace, self.clock.now_ms, answer)


def produce(version, topic="orders"):
    data = PartitionProduceData(index=0, records=b"x" * 500)
    return ProduceRequest(
        transactional_id="t-1" if version % 2 else None,
        acks=-1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, topic_id=TOPIC_ID, partition_data=[data])],
    )


def fetch(version, topics=("orders", "more")):
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        topics=[
            FetchTopic(topic=name, topic_id=TOPIC_ID, partitions=[FetchPartition(partition=0, fetch_offset=1)])
            for name in topics
        ],
    )


@pytest.mark.parametrize("make", [produce, fetch])
def test_the_first_topic_is_found_in_every_version(make):
    key = make(3).__api_key__
    for version in range(3 if make is produce else 4, APIS[key].versions.last + 1):
        frame = encode_request(make(version), version, 1, "client")[4:]
        offset = decode_request_header(frame).body_offset
        wanted = TOPIC_ID.bytes if version >= 13 else b"orders"
        assert first_topic(frame[:320], offset, key, version) == wanted, version
        behind = frame.index(wanted) + len(wanted)
        assert first_topic(frame[:behind], offset, key, version) == wanted, version
        for end in range(offset, behind):
            assert first_topic(frame[:end], offset, key, version) == b"", "the head ends before"
    frame = encode_request(fetch(12, ()), 12, 1, "client")[4:]
    assert first_topic(frame, decode_request_header(frame).body_offset, ApiKey.FETCH, 12) == b"", "a session's"


def test_results_are_read_from_small_answers():
    refused = PartitionProduceResponse(index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1)
    topic = TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[refused])
    answer = encode_response(ProduceResponse(responses=[topic]), 9, 1)
    assert result_of(ApiKey.PRODUCE, 9, (answer,)) == "NOT_LEADER_OR_FOLLOWER"
    assert result_of(ApiKey.PRODUCE, 9, (answer[:5], memoryview(answer)[5:])) == "NOT_LEADER_OR_FOLLOWER"
    assert result_of(ApiKey.HEARTBEAT, 4, (encode_response(HeartbeatResponse(), 4, 1),)) == "NONE"
    assert result_of(ApiKey.PRODUCE, 9, (answer, FileRange(None, 0, 10))) == "answered"
    assert result_of(ApiKey.PRODUCE, 9, (bytes(ANSWER_BYTES_MAX + 1),)) == "answered"
    assert result_of(ApiKey.PRODUCE, 9, (b"broken",)) == "answered"
    assert result_of(999, 0, (answer,)) == "answered"


def test_a_slow_request_is_handed_on_with_its_stages():
    traced = Traced()
    frame = encode_request(produce(9), 9, 42, "billing")
    traced.run(frame, handle=10, wait=80, send=5)
    assert traced.found == [], "95 ms are not slow"
    begun = traced.clock.wall_ms()
    traced.run(frame, handle=10, wait=85, send=5, answer=(encode_response(ProduceResponse(), 9, 42),))
    (found,) = traced.found
    assert (found.api, found.version, found.correlation_id, found.client_id) == ("Produce", 9, 42, "billing")
    assert (found.listener, found.peer, found.topic, found.result) == ("PLAINTEXT", "10.0.0.1:5", "orders", "NONE")
    assert found.is_slow
    assert [(stage.name, stage.begun_ms - begun, stage.ended_ms - begun) for stage in found.stages] == [
        ("append", 0, 10),
        ("wait-for-in-sync-replicas", 10, 95),
        ("send", 95, 100),
    ]
    assert (found.begun_ms, found.ended_ms) == (begun, begun + 100)


def test_waiting_for_records_is_not_slow():
    traced = Traced()
    frame = encode_request(fetch(12), 12, 1, "reader")
    traced.run(frame, handle=10, wait=500, send=5)
    assert traced.found == []
    traced.run(frame, handle=100, wait=500, send=5)
    assert [stage.name for stage in traced.found[0].stages] == ["read", "wait-for-records", "send"]


def test_requests_are_drawn_reproducibly():
    frame = encode_request(HeartbeatRequest(group_id="g"), 4, 1, None)
    runs = []
    for _ in range(2):
        traced = Traced(sample_ratio=0.25)
        for number in range(200):
            traced.run(frame, handle=number % 7)
        runs.append(traced.found)
    assert runs[0] == runs[1]
    assert 30 <= len(runs[0]) <= 70
    assert {(one.api, one.client_id, one.topic, one.is_slow) for one in runs[0]} == {("Heartbeat", "", "", False)}


def test_names_of_topics_and_waits_come_from_the_node():
    traced = Traced(slow_ms=1, waits={ApiKey.HEARTBEAT: "wait-for-controller", ApiKey.PRODUCE: "other"})
    traced.run(encode_request(HeartbeatRequest(group_id="g"), 4, 1, "c"), wait=5)
    traced.run(encode_request(produce(13), 13, 1, "c"), wait=5)
    traced.traces.topic_name = {TOPIC_ID.bytes: "orders"}.get
    traced.run(encode_request(produce(13), 13, 1, "c"), wait=5)
    assert [found.stages[1].name for found in traced.found] == [
        "wait-for-controller",
        *["wait-for-in-sync-replicas"] * 2,
    ]
    assert [found.topic for found in traced.found] == ["", TOPIC_ID.bytes.hex(), "orders"]


def test_a_head_that_cannot_be_read_is_left_out():
    traced = Traced(slow_ms=1)
    traced.run(encode_request(HeartbeatRequest(group_id="g"), 4, 1, "c" * 1000), wait=5)
    assert traced.found == []


def test_answers_in_another_version_are_traced():
    """The answer to an ApiVersions request of an unknown version is in version 0; a bare SASL token is no request."""
    traced = Traced(sample_ratio=1.0)
    answer = encode_response(ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0, 1)
    traced.run(bytes(4) + bytes((0, ApiKey.API_VERSIONS, 0, 99)) + bytes(6), answer=(answer,))
    assert [(found.version, found.result) for found in traced.found] == [(99, "answered")]
    traced.run(bytes(4) + b"\1", answer=(bytes(4),))
    assert len(traced.found) == 1
    for key in APIS:
        assert result_of(key, 999, (answer,)) == "answered"
