"""Goal: frames carry the right header for every API and version, and hostile headers are refused.

Method: every API and version is framed and read back; header bytes are compared with ones written by hand; headers
are cut.
"""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.protocol.api import APIS, ApiKey, request_header_version, response_header_version
from moldau.protocol.codec import DecodeError, EncodeError, decode
from moldau.protocol.compiler import fields_in, uvarint
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import (
    FrameTooLargeError,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    encode_response_in_steps,
    skip_tagged_section,
)
from moldau.protocol.hot import read_fetch_request
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.messages.share_fetch import PartitionData, ShareFetchableTopicResponse, ShareFetchResponse
from moldau.protocol.schema import Response
from support.protocol_samples import Sampler


def test_every_api_is_framed_and_read_back() -> None:
    for key, api in APIS.items():
        assert api.request.__api_key__ == api.response.__api_key__ == key == ApiKey(key)
        for version in range(api.versions.first, api.versions.last + 1):
            request = api.request()
            frame = encode_request(request, version, 12, "me")
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            header = decode_request_header(frame, 4)
            assert (header.api_key, header.api_version) == (key, version)
            assert (header.correlation_id, header.client_id) == (12, "me")
            assert decode(api.request, version, frame, header.body_offset) == request
            response = encode_response(api.response(), version, 13)
            assert int.from_bytes(response[:4], "big") == len(response) - 4
            assert decode_response(api.response, version, response[4:]) == (13, api.response())


def in_steps(response: Response, version: int, step: int, **more: int) -> tuple[bytes, int]:
    """Returns the frame of a response that is encoded in steps, and how often others could work meanwhile."""
    encoding = encode_response_in_steps(response, version, 5, step=step, **more)
    steps = 0
    while True:
        try:
            next(encoding)
        except StopIteration as end:
            (frame,) = end.value
            return frame, steps
        steps += 1


def test_every_response_is_the_same_in_steps() -> None:
    """With each of its arrays of structs as the long one, and without."""
    long_arrays = 0
    for key, api in APIS.items():
        for version in range(api.versions.first, api.versions.last + 1):
            sampler = Sampler(key * 100 + version)
            fields = fields_in(api.response, version)
            plain = sampler.message(api.response, version)
            assert isinstance(plain, Response)
            assert in_steps(plain, version, 50)[0] == encode_response(plain, version, 5), (api.response, version)
            for name, spec in fields:
                if not spec.is_array or spec.struct is None or spec.tag is not None:
                    continue
                response = sampler.message(api.response, version)
                assert isinstance(response, Response)
                elements = [sampler.message(spec.struct, version, 1) for _ in range(20)]
                setattr(response, name, elements * 10)
                long_arrays += 1
                others = [getattr(response, other) for other, _ in fields if other != name]
                is_long_alone = not any(isinstance(other, tuple) and len(other) > 50 for other in others)
                frame, steps = in_steps(response, version, 50)
                assert steps == (4 if is_long_alone else 0)
                assert frame == encode_response(response, version, 5), (api.response, version, name)
    assert long_arrays > 100


class Elsewhere:
    """Bytes that the encoder does not have."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize("step", [2, 100])
def test_a_field_may_hold_bytes_that_are_elsewhere(step: int) -> None:
    """Such as records in a file, of which the encoder needs the length alone."""

    def response(records: Any) -> ShareFetchResponse:
        topics = []
        for number in range(5):
            parts = [PartitionData(partition_index=at, records=records(number, at)) for at in range(2)]
            topics.append(ShareFetchableTopicResponse(partitions=parts))
        return ShareFetchResponse(responses=topics)

    def data(number: int, at: int) -> bytes:
        return bytes((number,)) * (200 * at)

    encoding = encode_response_in_steps(response(lambda *key: Elsewhere(len(data(*key)))), 2, 5, step=step)
    parts: list[Any] = []
    while not parts:
        try:
            next(encoding)
        except StopIteration as end:
            parts = end.value
    found = iter([data(number, at) for number in range(5) for at in range(2)])
    whole = b"".join(next(found) if isinstance(part, Elsewhere) else part for part in parts)
    assert whole == encode_response(response(data), 2, 5)
    assert sum(isinstance(part, Elsewhere) for part in parts) == 10


def test_a_response_in_steps_is_bounded() -> None:
    response = DescribeConfigsResponse(results=[DescribeConfigsResult(resource_name="r" * 100)] * 10)
    size = len(encode_response(response, 4, 5)) - 4
    assert in_steps(response, 4, 3, bytes_max=size)[1] == 4
    with pytest.raises(FrameTooLargeError):
        in_steps(response, 4, 3, bytes_max=size - 1)


def test_header_bytes() -> None:
    assert encode_request(HeartbeatRequest(), 3, 1, None)[4:14] == b"\0\x0c\0\x03\0\0\0\x01\xff\xff"
    assert encode_request(HeartbeatRequest(), 4, 1, "ab")[4:17] == b"\0\x0c\0\x04\0\0\0\x01\0\x02ab\0"
    assert encode_response(HeartbeatResponse(), 4, 2) == b"\0\0\0\x0c\0\0\0\x02\0" + bytes(6) + b"\0"
    assert request_header_version(ApiKey.HEARTBEAT, 4) == 2
    assert response_header_version(ApiKey.HEARTBEAT, 3) == 0


def test_api_versions_answers_with_header_zero_always() -> None:
    """KIP-511: a client that does not know the server yet must be able to read the answer."""
    response = ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)])
    for version in range(5):
        assert response_header_version(ApiKey.API_VERSIONS, version) == 0
        frame = encode_response(response, version, 9)
        assert frame[8:10] == b"\0\x23"
        assert decode_response(ApiVersionsResponse, version, frame[4:]) == (9, response)
    assert request_header_version(ApiKey.API_VERSIONS, 3) == 2


def test_headers_of_unknown_apis_are_read_as_version_1() -> None:
    """The dispatcher needs the header to answer the request or to refuse it by name."""
    frame = encode_request(ApiVersionsRequest(), 3, 7, "c")
    future = frame[4:6] + b"\0\x63" + frame[8:]
    header = decode_request_header(future)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (18, 99, 7, "c")
    header = decode_request_header(b"\x4e\x20\0\x01\0\0\0\x05\xff\xff")
    assert (header.api_key, header.client_id, header.body_offset) == (20000, None, 10)


def test_cut_headers_are_errors() -> None:
    frame = encode_request(MetadataRequest(), 12, 7, "client")[4:]
    end = decode_request_header(frame).body_offset
    for cut in range(end):
        with pytest.raises(DecodeError):
            decode_request_header(frame[:cut])
    with pytest.raises(DecodeError):
        decode_request_header(b"\0\x03\0\x01\0\0\0\x05\xff\xfe")
    with pytest.raises(DecodeError):
        decode_response(HeartbeatResponse, 4, b"\0\0")


@given(st.binary(max_size=60))
def test_random_headers_raise_only_decode_errors(data: bytes) -> None:
    try:
        header = decode_request_header(data)
    except DecodeError:
        return
    assert 10 <= header.body_offset <= len(data)


def test_a_client_id_of_other_bytes_is_read_as_java_does() -> None:
    """Such a client, of a Latin-1 system for example, could not connect. A text that fits no field is refused."""
    head = b"\0\x03\0\x01\0\0\0\x05"
    assert decode_request_header(head + b"\0\x04caf\xe9").client_id == "caf\ufffd"
    assert decode_request_header(head + b"\x2a\xaa" + b"\xff" * 10_922).client_id == "\ufffd" * 10_922
    with pytest.raises(DecodeError, match="UTF-8"):
        decode_request_header(head + b"\x2a\xab" + b"\xff" * 10_923)


def test_client_id_too_long() -> None:
    with pytest.raises(EncodeError):
        encode_request(MetadataRequest(), 1, 1, "x" * 40000)


def test_error_codes() -> None:
    assert ErrorCode(-1).name == "UNKNOWN_SERVER_ERROR"
    assert [int(code) for code in sorted(ErrorCode)] == list(range(-1, 134))
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.refreshes_metadata
    assert ErrorCode.PRODUCER_FENCED.fatal
    assert not any(code.fatal and code.retriable for code in ErrorCode)
    assert not any(code.refreshes_metadata and not code.retriable for code in ErrorCode)
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert all(code.message.endswith(".") for code in ErrorCode)
    error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer in 30000 ms")
    assert str(error) == "REQUEST_TIMED_OUT: no answer in 30000 ms"
    assert error.retriable


def test_error_codes_agree_with_kio() -> None:
    from kio.schema.errors import ErrorCode as KioErrorCode

    for theirs in KioErrorCode:
        ours = ErrorCode(int(theirs))
        assert ours.retriable == theirs.retriable, ours.name


@pytest.mark.parametrize("tagged", [0, 64, 65, 1_000_000])
def test_no_message_has_thousands_of_tagged_fields(tagged):
    """Of an array of structs, of the header, and of the hand-written reader alike."""
    section = uvarint(tagged) + b"".join(uvarint(1000 + tag) + b"\0" for tag in range(tagged))
    fetch_head = struct.pack(">iiibii", 0, 1, 1, 0, 0, -1) + b"\x01\x01\x01"  # no topics, none forgotten, no rack
    readers = [
        lambda: skip_tagged_section(memoryview(section), 0),
        lambda: decode(HeartbeatRequest, 4, b"\x02g" + struct.pack(">i", 1) + b"\x02m\x00" + section),
        lambda: read_fetch_request(memoryview(fetch_head + section), 0, 15),
    ]
    for read in readers:
        if tagged <= 64:
            read()
        else:
            with pytest.raises(DecodeError, match=f"{tagged} fields; at most 64"):
                read()
