"""Produce: read requests and write responses without an object per field. Versions 3 to 13."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from moldau.protocol.compiler import (
    ENTRIES_UNBOUNDED,
    DecodeError,
    TooManyEntriesError,
    UnsupportedVersionError,
    read_uvarint,
    uvarint,
)
from moldau.protocol.framing import skip_tagged_section
from moldau.protocol.hot import wire
from moldau.protocol.messages.produce import ProduceRequest

_VERSIONS = ProduceRequest.__versions__
_FLEXIBLE = ProduceRequest.__flexible__.first
_LAST = _VERSIONS.last
_TOPIC_IDS = 13
STRING_BYTES_MAX = 32767
_NULL_RECORDS = memoryview(b"")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_TIMEOUT = struct.Struct(">hi")
_INDEX_SIZE = struct.Struct(">ii")
_SIZE_CORRELATION = struct.Struct(">ii")

# index, error code, base offset, then by version: log append time, log start offset
_RESULT_V3 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
# ... record errors (empty), error message (null), and for flexible versions the tagged section (empty)
_PLAIN_V8 = struct.Struct(">ihqqqih")
_PLAIN_V9 = struct.Struct(">ihqqqBBB")
_LEADER = struct.Struct(">BBBiiB")


class ProduceRequestView(NamedTuple):
    """A Produce request.

    ``topics`` holds pairs of the raw topic (name or id) and its partitions. A partition is its index and its records, a
    memoryview into the frame (empty where the request has null).
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[bytes, list[tuple[int, memoryview]]]]


class ProducePartitionResult(NamedTuple):
    """The outcome of an append.

    ``record_errors`` are pairs of an index and a message; a ``leader_id`` of -1 leaves the hint out.
    """

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1


class NodeEndpointResult(NamedTuple):
    """Where the leader named in a partition's hint can be reached (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def _admit(entries: int, entries_max: int) -> None:
    """Called before the entries of an array are read, with the number announced so far."""
    if entries > entries_max:
        raise TooManyEntriesError(f"{entries} topics and partitions are named; at most {entries_max} are allowed")


def read_produce_request(
    frame: memoryview, position: int, version: int, entries_max: int = ENTRIES_UNBOUNDED
) -> ProduceRequestView:
    """Reads the body of a Produce request that starts at ``position``.

    The record memoryviews borrow ``frame``. ``entries_max`` bounds topics and partitions together.

    Raises:
        DecodeError: the bytes are no such request.
        TooManyEntriesError: it names more than ``entries_max``.
        UnsupportedVersionError: there is no such version.
    """
    if _FLEXIBLE <= version <= _LAST:
        found = wire.read_produce(frame, position, version >= _TOPIC_IDS, entries_max, ProduceRequestView)
        if found is not None:
            return found
    if version not in _VERSIONS:
        raise UnsupportedVersionError(f"ProduceRequest has versions {_VERSIONS}, not {version}")
    try:
        if version >= _FLEXIBLE:
            return _read_flexible(frame, position, version >= _TOPIC_IDS, entries_max)
        return _read_plain(frame, position, entries_max)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"ProduceRequest v{version}: the message ends after {len(frame) - position} bytes") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"ProduceRequest v{version}: a string is not UTF-8: {error}") from error


def _bounded_string(frame: memoryview, position: int, length: int, what: str) -> int:
    """Returns the end of a string, which may be shorter than the frame would allow."""
    if length > STRING_BYTES_MAX:
        raise DecodeError(f"ProduceRequest: {what}: a string of {length} bytes; at most {STRING_BYTES_MAX} are allowed")
    return _bounded(frame, position, length, what)


def _bounded(frame: memoryview, position: int, length: int, what: str) -> int:
    """Returns the end of a run of ``length`` bytes."""
    if length < 0:
        raise DecodeError(f"ProduceRequest: {what} may not be null")
    end = position + length
    if end > len(frame):
        raise DecodeError(f"ProduceRequest: {what}: {length} bytes announced, {len(frame) - position} are left")
    return end


def _read_flexible(frame: memoryview, position: int, topic_ids: bool, entries_max: int) -> ProduceRequestView:
    length, position = read_uvarint(frame, position)
    transactional_id: str | None = None
    if length:
        end = _bounded_string(frame, position, length - 1, "transactional id")
        transactional_id = str(frame[position:end], "utf-8")
        position = end
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    position += 6
    topic_count, position = read_uvarint(frame, position)
    if not topic_count:
        raise DecodeError("ProduceRequest: topic data may not be null")
    entries = topic_count
    _admit(entries, entries_max)
    topics: list[tuple[bytes, list[tuple[int, memoryview]]]] = []
    for _ in range(topic_count - 1):
        if topic_ids:
            end = _bounded(frame, position, 16, "topic id")
        else:
            length, position = read_uvarint(frame, position)
            end = _bounded_string(frame, position, length - 1, "topic name")
        topic = bytes(frame[position:end])
        if not topic_ids and not topic.isascii():
            topic.decode()
        count, position = read_uvarint(frame, end)
        if not count:
            raise DecodeError("ProduceRequest: partition data may not be null")
        entries += count
        _admit(entries, entries_max)
        partitions: list[tuple[int, memoryview]] = []
        for _ in range(count - 1):
            (index,) = _INT32.unpack_from(frame, position)
            length, position = read_uvarint(frame, position + 4)
            if length:
                end = _bounded(frame, position, length - 1, "records")
                partitions.append((index, frame[position:end]))
                position = end
            else:
                partitions.append((index, _NULL_RECORDS))
            position = skip_tagged_section(frame, position) if frame[position] else position + 1
        position = skip_tagged_section(frame, position) if frame[position] else position + 1
        topics.append((topic, partitions))
    skip_tagged_section(frame, position)
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def _read_plain(frame: memoryview, position: int, entries_max: int) -> ProduceRequestView:
    (length,) = _INT16.unpack_from(frame, position)
    position += 2
    transactional_id: str | None = None
    if length != -1:
        end = _bounded(frame, position, length, "transactional id")
        transactional_id = str(frame[position:end], "utf-8")
        position = end
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    position += 6
    (topic_count,) = _INT32.unpack_from(frame, position)
    position += 4
    if topic_count < 0:
        raise DecodeError("ProduceRequest: topic data may not be null")
    entries = topic_count
    _admit(entries, entries_max)
    topics: list[tuple[bytes, list[tuple[int, memoryview]]]] = []
    for _ in range(topic_count):
        (length,) = _INT16.unpack_from(frame, position)
        position += 2
        end = _bounded(frame, position, length, "topic name")
        topic = bytes(frame[position:end])
        if not topic.isascii():
            topic.decode()
        (count,) = _INT32.unpack_from(frame, end)
        position = end + 4
        if count < 0:
            raise DecodeError("ProduceRequest: partition data may not be null")
        entries += count
        _admit(entries, entries_max)
        partitions: list[tuple[int, memoryview]] = []
        for _ in range(count):
            index, length = _INDEX_SIZE.unpack_from(frame, position)
            position += 8
            if length == -1:
                partitions.append((index, _NULL_RECORDS))
                continue
            end = _bounded(frame, position, length, "records")
            partitions.append((index, frame[position:end]))
            position = end
        topics.append((topic, partitions))
    return ProduceRequestView(transactional_id, acks, timeout_ms, topics)


def write_produce_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[ProducePartitionResult]]],
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[NodeEndpointResult] = (),
) -> bytes:
    """Writes a whole response frame, size prefix included. A topic is named as the request named it (raw name or id).

    Raises:
        UnsupportedVersionError: there is no such version.
    """
    if _FLEXIBLE <= version <= _LAST and not node_endpoints:
        written = wire.write_produce(version, correlation_id, topics, throttle_time_ms)
        if written is not None:
            return written
    if version not in _VERSIONS:
        raise UnsupportedVersionError(f"ProduceResponse has versions {_VERSIONS}, not {version}")
    flexible = version >= _FLEXIBLE
    out: list[bytes] = [b"", b"\0" + uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics))]
    for topic, partitions in topics:
        if not flexible:
            out += (_INT16.pack(len(topic)), topic, _INT32.pack(len(partitions)))
        elif version >= _TOPIC_IDS:
            assert len(topic) == 16, "Produce names topics by id from version 13"
            out += (topic, uvarint(len(partitions) + 1))
        else:
            out += (uvarint(len(topic) + 1), topic, uvarint(len(partitions) + 1))
        for result in partitions:
            _write_result(out, result, version)
        if flexible:
            out.append(b"\0")
    out.append(_INT32.pack(throttle_time_ms))
    if flexible:
        if node_endpoints and version >= 10:
            out.append(node_endpoints_section(node_endpoints))
        else:
            out.append(b"\0")
    out[0] = _SIZE_CORRELATION.pack(sum(map(len, out)) + 4, correlation_id)
    return b"".join(out)


def _write_result(out: list[bytes], result: ProducePartitionResult, version: int) -> None:
    index, error_code, base_offset, append_time, start_offset, record_errors, message, leader_id, leader_epoch = result
    plain = not record_errors and message is None
    if version >= _FLEXIBLE:
        if plain and leader_id < 0:
            out.append(_PLAIN_V9.pack(index, error_code, base_offset, append_time, start_offset, 1, 0, 0))
            return
        out.append(_RESULT_V5.pack(index, error_code, base_offset, append_time, start_offset))
        out.append(uvarint(len(record_errors) + 1))
        for batch_index, text in record_errors:
            out += (_INT32.pack(batch_index), compact_string(text), b"\0")
        out.append(compact_string(message))
        if leader_id >= 0 and version >= 10:
            out.append(_LEADER.pack(1, 0, 9, leader_id, leader_epoch, 0))
        else:
            out.append(b"\0")
    elif version == 8:
        if plain:
            out.append(_PLAIN_V8.pack(index, error_code, base_offset, append_time, start_offset, 0, -1))
            return
        out.append(_RESULT_V5.pack(index, error_code, base_offset, append_time, start_offset))
        out.append(_INT32.pack(len(record_errors)))
        for batch_index, text in record_errors:
            out += (_INT32.pack(batch_index), plain_string(text))
        out.append(plain_string(message))
    elif version >= 5:
        out.append(_RESULT_V5.pack(index, error_code, base_offset, append_time, start_offset))
    else:
        out.append(_RESULT_V3.pack(index, error_code, base_offset, append_time))


def compact_string(text: str | None) -> bytes:
    """Returns a nullable string of the flexible encoding."""
    if text is None:
        return b"\0"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def plain_string(text: str | None) -> bytes:
    """Returns a nullable string of the encoding before KIP-482; cut at 32767 bytes."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()[:32767]
    return _INT16.pack(len(data)) + data


def node_endpoints_section(endpoints: Sequence[NodeEndpointResult]) -> bytes:
    """Returns a tagged section whose field 0 is the array of endpoints; the same in Produce and Fetch."""
    parts = [uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        parts += (_INT32.pack(node_id), compact_string(host), _INT32.pack(port), compact_string(rack), b"\0")
    data = b"".join(parts)
    return b"\x01\x00" + uvarint(len(data)) + data
