"""Goal: messages that pass a proxy are counted by what they are, however their bytes are cut, and at a bounded cost.

Method: real frames of the protocol, fed whole and in pieces of every size; a proxy on the loopback interface between a
client that asks and a server that answers.
"""

import json
from collections import Counter
from functools import partial

import pytest
import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import encode_request, encode_response
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from moldau.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from moldau_jepsen.chaos.network.links import HOST, Links
from moldau_jepsen.chaos.network.meter import BODY_BYTES_MAX, PENDING_MAX, ErrorSeen, WireMeter, error_codes
from moldau_jepsen.chaos.network.rules import CLIENT
from moldau_jepsen.chaos.observe.observed import NO_PROXIES, Observed, from_json, observed, to_json
from moldau_jepsen.coverage.coverage import MessageKind
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.reports.over_time import PartitionSeries, PartitionState
from moldau_quorum.log.port import QUORUM_MESSAGE_KEY

NOT_LEADER, UNKNOWN_TOPIC = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def produced(*codes):
    parts = [PartitionProduceResponse(index=place, error_code=code) for place, code in enumerate(codes)]
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=parts)])


REQUESTS = b"".join(
    (
        encode_request(ProduceRequest(acks=-1), 9, 1, "app"),
        encode_request(MetadataRequest(), 9, 2, "app"),
        encode_request(ProduceRequest(acks=-1), 7, 3, "app"),
    )
)
ANSWERS = b"".join(
    (
        encode_response(produced(0, NOT_LEADER, NOT_LEADER), 9, 1),
        encode_response(MetadataResponse(topics=[MetadataResponseTopic(name="x", error_code=UNKNOWN_TOPIC)]), 9, 2),
        encode_response(produced(0), 7, 3),
    )
)
COUNTS = Counter(
    {
        MessageKind(0, 9, True, "client", "broker"): 1,
        MessageKind(3, 9, True, "client", "broker"): 1,
        MessageKind(0, 7, True, "client", "broker"): 1,
        MessageKind(0, 9, False, "broker", "client"): 1,
        MessageKind(3, 9, False, "broker", "client"): 1,
        MessageKind(0, 7, False, "broker", "client"): 1,
    }
)
ERRORS = Counter({ErrorSeen(0, "broker", NOT_LEADER): 2, ErrorSeen(3, "broker", UNKNOWN_TOPIC): 1})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 12, 13, 40, 10_000])
def test_frames_are_counted_however_their_bytes_are_cut(size):
    meter = WireMeter(range(101, 104))
    there, back = meter.connection(CLIENT, 2)
    for feed, data in ((there, REQUESTS), (back, ANSWERS)):
        for start in range(0, len(data), size):
            feed(data[start : start + size])
    assert meter.messages == COUNTS
    assert meter.errors == ERRORS
    assert meter.unread == 0


def test_members_are_distinguished_and_quorum_messages_one_way():
    """The meter distinguishes members, and it expects no response to quorum messages."""
    meter = WireMeter(range(101, 104))
    there, _ = meter.connection(2, 101)
    for _ in range(3):
        there(b"\0\0\0\x0a" + QUORUM_MESSAGE_KEY.to_bytes(2, "big") + b"\0\1" + b"\0\0\0\x05" + b"ab")
    assert meter.messages == {MessageKind(QUORUM_MESSAGE_KEY, 1, True, "broker", "controller"): 3}
    _, back = meter.connection(101, 102)
    back(b"\0\0\0\x04\0\0\0\x05")
    assert meter.unread == 1, "no request is outstanding"


def test_long_responses_are_counted_and_not_held_in_memory():
    """The meter counts long responses without their error codes, and does not hold them in memory."""
    meter = WireMeter(())
    there, back = meter.connection(1, 2)
    there(encode_request(FetchRequest(), 12, 9, "broker-1") + encode_request(MetadataRequest(), 9, 10, "broker-1"))
    body = encode_response(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND), 12, 9)
    size = len(body) - 4 + 10 * BODY_BYTES_MAX
    back(size.to_bytes(4, "big") + body[4:])
    for _ in range(10):
        back(bytes(BODY_BYTES_MAX))
    back(encode_response(MetadataResponse(topics=[MetadataResponseTopic(error_code=UNKNOWN_TOPIC)]), 9, 10))
    assert meter.messages[MessageKind(ApiKey.FETCH, 12, False, "broker", "broker")] == 1
    assert meter.long_answers == 1
    assert meter.errors == {ErrorSeen(3, "broker", UNKNOWN_TOPIC): 1}


@pytest.mark.parametrize("more", [0, 1])
def test_answers_of_the_bound_are_looked_into(more):
    """An answer is either looked into for error codes or counted as too long for that."""
    meter = WireMeter(())
    there, back = meter.connection(CLIENT, 2)
    there(encode_request(MetadataRequest(), 9, 7, "app"))
    topic = MetadataResponseTopic(name="", error_code=UNKNOWN_TOPIC)
    short = len(encode_response(MetadataResponse(topics=[topic]), 9, 7)) - 4
    topic.name = "x" * (BODY_BYTES_MAX - short - 1 + more)  # the length of the name takes two bytes
    body = encode_response(MetadataResponse(topics=[topic]), 9, 7)
    assert len(body) - 4 == BODY_BYTES_MAX + more
    back(body)
    assert (meter.long_answers, meter.errors.total(), meter.unread) == (more, 1 - more, 0)


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\nHost: moldau\r\n\r\n", bytes(100), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9],
)
def test_a_foreign_protocol_is_given_up_and_counted(noise):
    meter = WireMeter(())
    there, back = meter.connection(CLIENT, 2)
    there(noise)
    back(ANSWERS)
    there(REQUESTS)
    assert not meter.messages
    assert meter.unread == 1


def test_a_response_that_cannot_be_decoded_is_reported():
    """The meter reports a response that it cannot decode, and reads the next one."""
    meter = WireMeter(())
    there, back = meter.connection(CLIENT, 2)
    there(REQUESTS)
    first = 4 + int.from_bytes(ANSWERS[:4], "big")
    back(b"\0\0\0\x06\0\0\0\x01\xff\xff" + ANSWERS[first:])
    assert meter.unread == 1
    assert meter.errors == {ErrorSeen(3, "broker", UNKNOWN_TOPIC): 1}


def test_requests_that_are_never_answered_are_forgotten():
    meter = WireMeter(())
    there, back = meter.connection(CLIENT, 2)
    for number in range(PENDING_MAX + 5):
        there(encode_request(ProduceRequest(acks=0), 9, number, "app"))
    back(encode_response(produced(0), 9, PENDING_MAX + 4))
    back(encode_response(produced(0), 9, 5))
    assert meter.unread == 0, "the oldest within the bound"
    back(encode_response(produced(0), 9, 4))
    assert meter.unread == 1


def test_error_codes_lie_anywhere_in_a_message():
    assert list(error_codes(produced(0, 3, 6))) == [0, 3, 6]
    assert list(error_codes(MetadataRequest())) == []


def test_messages_through_a_proxy_are_counted():
    real, proxy = take_free_ports(2)
    links = Links({2: real})
    links.meter = WireMeter(())

    async def read(stream, count):
        received = b""
        while len(received) < count:
            received += await stream.receive_some()
        return received

    async def serve(stream):
        assert await read(stream, len(REQUESTS)) == REQUESTS
        await stream.send_all(ANSWERS)

    async def main():
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, serve, real, host=HOST))
            await nursery.start(links.serve, {2: proxy})
            with trio.fail_after(60):
                async with await trio.open_tcp_stream(HOST, proxy) as stream:
                    await stream.send_all(REQUESTS)
                    assert await read(stream, len(ANSWERS)) == ANSWERS
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert links.meter.messages == COUNTS
    assert links.meter.errors == ERRORS


# -- what a run keeps of it -------------------------------------------------------------------------------------------


def metered():
    meter = WireMeter(())
    there, back = meter.connection(CLIENT, 2)
    there(REQUESTS)
    back(ANSWERS)
    partition = PartitionSeries(
        name="t-0",
        states=(PartitionState(0.5, 1, 3, (1, 2), 3),),
        high_watermarks=((0.5, 4.0), (1.5, None)),
    )
    return observed(meter, (partition,))


def test_observations_survive_json():
    seen = metered()
    assert from_json(json.loads(json.dumps(to_json(seen)))) == seen
    assert from_json(None) == Observed()
    assert observed(None, ()).messages_missing == NO_PROXIES
    assert Observed().messages_missing


def test_rows_count_requests_answers_and_error_codes():
    rows = {row.name: row for row in metered().message_rows() if row.requests}
    assert sorted(rows) == ["Metadata", "Produce"]
    produce = rows["Produce"]
    assert (produce.requests, produce.responses, produce.versions_seen) == (2, 2, (7, 9))
    assert produce.errors == {"NOT_LEADER_OR_FOLLOWER": 2}
    assert any(not row.requests for row in metered().message_rows()), (
        "rows of requests that were never sent are included"
    )


def test_a_request_has_one_answer():
    """A second one with its number is no answer to it, and the connection is not followed any further."""
    meter = WireMeter(range(101, 104))
    there, back = meter.connection(CLIENT, 2)
    there(REQUESTS)
    back(ANSWERS)
    before = Counter(meter.messages)
    back(ANSWERS)
    assert (meter.messages, meter.unread) == (before, 1)
