"""Fetch: reads requests and writes responses without an object per field and without copying records.

Versions 4 to 18.
"""

import struct
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from moldau.protocol.compiler import (
    ENTRIES_UNBOUNDED,
    DecodeError,
    TooManyEntriesError,
    UnsupportedVersionError,
    check_tagged_count,
    free_text,
    read_uvarint,
    uvarint,
)
from moldau.protocol.framing import decode_response, skip_tagged_section
from moldau.protocol.hot import wire
from moldau.protocol.hot.produce import STRING_BYTES_MAX, NodeEndpointResult, node_endpoints_section
from moldau.protocol.messages.fetch import FetchRequest, FetchResponse
from moldau.values import ZERO_UUID

P = TypeVar("P")
"""The placeholder of record bytes in a response: a buffer, or a range of a file."""

_VERSIONS = FetchRequest.__versions__
_FLEXIBLE = FetchRequest.__flexible__.first
_LAST = _VERSIONS.last
_TOPIC_IDS = 13
_ANSWER_BODY_AT = 5  # behind the correlation id and the tagged section of the header, which is empty as a rule
_NO_DIRECTORY = ZERO_UUID.bytes
_HIGH_WATERMARK_UNKNOWN = 0x7FFFFFFFFFFFFFFF

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
# replica id, max wait, min bytes, max bytes, isolation level, session id, session epoch
_HEAD_V4 = struct.Struct(">iiiib")
_HEAD_V7 = struct.Struct(">iiiibii")
_HEAD_V15 = struct.Struct(">iiibii")
_PARTITION_V4 = struct.Struct(">iqi")
_PARTITION_V5 = struct.Struct(">iqqi")
_PARTITION_V9 = struct.Struct(">iiqqi")
_PARTITION_V12 = struct.Struct(">iiqiqi")
_REPLICA_STATE = struct.Struct(">iq")

_SIZE_CORRELATION = struct.Struct(">ii")
_RESPONSE_HEAD_V7 = struct.Struct(">ihi")
_RESULT_V4 = struct.Struct(">ihqq")
_RESULT_V5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_OFFSET_TAG = struct.Struct(">BBiqB")
_LEADER_TAG = struct.Struct(">BBiiB")
_SNAPSHOT_TAG = struct.Struct(">BBqiB")


class FetchPartitionView(NamedTuple):
    """One partition of a request. -1 replaces epochs and offsets that the version or the sender omits."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: bytes = _NO_DIRECTORY
    high_watermark: int = _HIGH_WATERMARK_UNKNOWN


class FetchRequestView(NamedTuple):
    """A Fetch request. Topics are raw names, or raw 16-byte ids from version 13. ``replica_id`` is -1 for consumers."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[bytes, list[FetchPartitionView]]]
    forgotten_topics: list[tuple[bytes, tuple[int, ...]]]
    rack_id: str
    cluster_id: str | None


class FetchPartitionResult(NamedTuple, Generic[P]):
    """The answer for one partition: ``records`` are parts of ``records_size`` bytes in total.

    ``aborted_transactions`` are pairs of a producer id and its first offset, null when the reader is not
    read_committed. ``diverging_epoch`` is (epoch, end offset), ``current_leader`` (leader id, leader epoch),
    ``snapshot_id`` (end offset, epoch); left out where None and in versions before 12.
    """

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records_size: int = 0
    records: Sequence[P] = ()
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    snapshot_id: tuple[int, int] | None = None


class FetchedPartition(NamedTuple):
    """One partition of an answer to a follower. ``records`` is a view of the frame, empty where the answer has null."""

    topic_id: bytes
    partition: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging_epoch: int = -1
    diverging_end_offset: int = -1


class FetchAnswerView(NamedTuple):
    """The part of a Fetch response that a follower uses."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


class _Allowance:
    """How many topics and partitions a request may still name."""

    __slots__ = ("entries_max", "left")

    def __init__(self, entries_max: int) -> None:
        self.entries_max = self.left = entries_max

    def take(self, count: int) -> None:
        """Called before the entries of an array are read."""
        self.left -= count
        if self.left < 0:
            named = self.entries_max - self.left
            raise TooManyEntriesError(f"FetchRequest: {named} topics and partitions named; {self.entries_max} allowed")


def read_fetch_request(
    frame: memoryview, position: int, version: int, entries_max: int = ENTRIES_UNBOUNDED
) -> FetchRequestView:
    """Reads the body of a Fetch request that starts at ``position``. Nothing of the result borrows ``frame``.

    ``entries_max`` bounds topics and partitions, fetched and forgotten, together.

    Raises:
        DecodeError: the bytes are no such request.
        TooManyEntriesError: it names more than ``entries_max``.
        UnsupportedVersionError: there is no such version.
    """
    if _FLEXIBLE <= version <= _LAST:
        found = wire.read_fetch(
            frame,
            position,
            version,
            entries_max,
            FetchRequestView,
            FetchPartitionView,
            _NO_DIRECTORY,
            _HIGH_WATERMARK_UNKNOWN,
        )
        if found is not None:
            return found
    if version not in _VERSIONS:
        raise UnsupportedVersionError(f"FetchRequest has versions {_VERSIONS}, not {version}")
    try:
        if version >= _FLEXIBLE:
            return _read_flexible(frame, position, version, _Allowance(entries_max))
        return _read_plain(frame, position, version, _Allowance(entries_max))
    except (IndexError, struct.error) as error:
        raise DecodeError(f"FetchRequest v{version}: the message ends after {len(frame) - position} bytes") from error
    except UnicodeDecodeError as error:
        raise DecodeError(f"FetchRequest v{version}: a string is not UTF-8: {error}") from error


def _bounded_string(frame: memoryview, position: int, length: int, what: str) -> int:
    """Returns the end of a string, which may be shorter than the frame would allow."""
    if length > STRING_BYTES_MAX:
        raise DecodeError(f"FetchRequest: {what}: a string of {length} bytes; at most {STRING_BYTES_MAX} are allowed")
    return _bounded(frame, position, length, what)


def _bounded(frame: memoryview, position: int, length: int, what: str) -> int:
    """Returns the end of a run of ``length`` bytes."""
    if length < 0:
        raise DecodeError(f"FetchRequest: {what} may not be null")
    end = position + length
    if end > len(frame):
        raise DecodeError(f"FetchRequest: {what}: {length} bytes announced, {len(frame) - position} are left")
    return end


def _topic(frame: memoryview, position: int, version: int) -> tuple[bytes, int]:
    """Returns a raw topic of a flexible version, and the position after it."""
    if version >= _TOPIC_IDS:
        end = _bounded(frame, position, 16, "topic id")
        return bytes(frame[position:end]), end
    length, position = read_uvarint(frame, position)
    end = _bounded_string(frame, position, length - 1, "topic name")
    topic = bytes(frame[position:end])
    if not topic.isascii():
        topic.decode()
    return topic, end


def _count(frame: memoryview, position: int, what: str, allowance: _Allowance) -> tuple[int, int]:
    """Returns the length of an array of a flexible version; each turn of a loop over it consumes bytes of the frame."""
    count, position = read_uvarint(frame, position)
    if not count:
        raise DecodeError(f"FetchRequest: {what} may not be null")
    allowance.take(count - 1)
    return count - 1, position


def _read_flexible(frame: memoryview, position: int, version: int, allowance: _Allowance) -> FetchRequestView:
    replica_id = replica_epoch = -1
    if version >= 15:
        head = _HEAD_V15.unpack_from(frame, position)
        position += _HEAD_V15.size
    else:
        values = _HEAD_V7.unpack_from(frame, position)
        replica_id, head = values[0], values[1:]
        position += _HEAD_V7.size
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = head
    topic_count, position = _count(frame, position, "topics", allowance)
    topics: list[tuple[bytes, list[FetchPartitionView]]] = []
    for _ in range(topic_count):
        topic, position = _topic(frame, position, version)
        count, position = _count(frame, position, "partitions", allowance)
        partitions: list[FetchPartitionView] = []
        for _ in range(count):
            values = _PARTITION_V12.unpack_from(frame, position)
            position += 32
            if frame[position]:
                partition, position = _partition_tags(frame, position, values, version)
            else:
                position += 1
                partition = FetchPartitionView(*values)
            partitions.append(partition)
        position = skip_tagged_section(frame, position) if frame[position] else position + 1
        topics.append((topic, partitions))
    forgotten_count, position = _count(frame, position, "forgotten topics", allowance)
    forgotten: list[tuple[bytes, tuple[int, ...]]] = []
    for _ in range(forgotten_count):
        topic, position = _topic(frame, position, version)
        count, position = _count(frame, position, "forgotten partitions", allowance)
        end = _bounded(frame, position, 4 * count, "forgotten partitions")
        forgotten.append((topic, struct.unpack_from(f">{count}i", frame, position)))
        position = skip_tagged_section(frame, end) if frame[end] else end + 1
    length, position = read_uvarint(frame, position)
    end = _bounded_string(frame, position, length - 1, "rack id")
    rack_id = free_text(frame[position:end])
    cluster_id: str | None = None
    if frame[end]:
        cluster_id, state = _request_tags(frame, end, version)
        if state is not None:
            replica_id, replica_epoch = state
    return FetchRequestView(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        cluster_id,
    )


def _tags(frame: memoryview, position: int) -> tuple[list[tuple[int, int, int]], int]:
    """Returns the tagged section as (tag, start, end), and the position after it."""
    count, position = read_uvarint(frame, position)
    check_tagged_count(count)
    tags: list[tuple[int, int, int]] = []
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        end = _bounded(frame, position, size, f"tagged field {tag}")
        tags.append((tag, position, end))
        position = end
    return tags, position


def _sized(tag: int, start: int, end: int, size: int) -> None:
    if end - start != size:
        raise DecodeError(f"FetchRequest: tagged field {tag} announces {end - start} bytes but holds {size}")


def _partition_tags(
    frame: memoryview, position: int, values: tuple[int, ...], version: int
) -> tuple[FetchPartitionView, int]:
    tags, position = _tags(frame, position)
    directory = _NO_DIRECTORY
    high_watermark = _HIGH_WATERMARK_UNKNOWN
    for tag, start, end in tags:
        if tag == 0 and version >= 17:
            _sized(tag, start, end, 16)
            directory = bytes(frame[start:end])
        elif tag == 1 and version >= 18:
            _sized(tag, start, end, 8)
            (high_watermark,) = _INT64.unpack_from(frame, start)
    index, leader_epoch, offset, fetched_epoch, start_offset, max_bytes = values
    view = FetchPartitionView(
        index, leader_epoch, offset, fetched_epoch, start_offset, max_bytes, directory, high_watermark
    )
    return view, position


def _request_tags(frame: memoryview, position: int, version: int) -> tuple[str | None, tuple[int, int] | None]:
    tags, _ = _tags(frame, position)
    cluster_id: str | None = None
    state: tuple[int, int] | None = None
    for tag, start, end in tags:
        if tag == 0:
            length, start = read_uvarint(frame, start)
            if length:
                _bounded_string(frame, start, length - 1, "cluster id")
                _sized(tag, start, end, length - 1)
                cluster_id = str(frame[start:end], "utf-8")
            else:
                _sized(tag, start, end, 0)
                cluster_id = None
        elif tag == 1 and version >= 15:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, start)
            state = (replica_id, replica_epoch)
            inner = skip_tagged_section(frame, start + _REPLICA_STATE.size)
            _sized(tag, start, end, inner - start)
    return cluster_id, state


def _read_plain(frame: memoryview, position: int, version: int, allowance: _Allowance) -> FetchRequestView:
    session_id, session_epoch = 0, -1
    if version >= 7:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = (
            _HEAD_V7.unpack_from(frame, position)
        )
        position += _HEAD_V7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_V4.unpack_from(frame, position)
        position += _HEAD_V4.size
    count, position = _plain_count(frame, position, "topics", allowance)
    topics: list[tuple[bytes, list[FetchPartitionView]]] = []
    for _ in range(count):
        topic, position = _plain_topic(frame, position)
        partition_count, position = _plain_count(frame, position, "partitions", allowance)
        partitions: list[FetchPartitionView] = []
        for _ in range(partition_count):
            leader_epoch = start_offset = -1
            if version >= 9:
                index, leader_epoch, offset, start_offset, max_bytes_here = _PARTITION_V9.unpack_from(frame, position)
                position += _PARTITION_V9.size
            elif version >= 5:
                index, offset, start_offset, max_bytes_here = _PARTITION_V5.unpack_from(frame, position)
                position += _PARTITION_V5.size
            else:
                index, offset, max_bytes_here = _PARTITION_V4.unpack_from(frame, position)
                position += _PARTITION_V4.size
            partitions.append(FetchPartitionView(index, leader_epoch, offset, -1, start_offset, max_bytes_here))
        topics.append((topic, partitions))
    forgotten: list[tuple[bytes, tuple[int, ...]]] = []
    if version >= 7:
        count, position = _plain_count(frame, position, "forgotten topics", allowance)
        for _ in range(count):
            topic, position = _plain_topic(frame, position)
            partition_count, position = _plain_count(frame, position, "forgotten partitions", allowance)
            end = _bounded(frame, position, 4 * partition_count, "forgotten partitions")
            forgotten.append((topic, struct.unpack_from(f">{partition_count}i", frame, position)))
            position = end
    rack_id = ""
    if version >= 11:
        (length,) = _INT16.unpack_from(frame, position)
        end = _bounded(frame, position + 2, length, "rack id")
        rack_id = free_text(frame[position + 2 : end])
    return FetchRequestView(
        replica_id,
        -1,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        None,
    )


def _plain_count(frame: memoryview, position: int, what: str, allowance: _Allowance) -> tuple[int, int]:
    (count,) = _INT32.unpack_from(frame, position)
    if count < 0:
        raise DecodeError(f"FetchRequest: {what} may not be null")
    allowance.take(count)
    return count, position + 4


def _plain_topic(frame: memoryview, position: int) -> tuple[bytes, int]:
    (length,) = _INT16.unpack_from(frame, position)
    end = _bounded(frame, position + 2, length, "topic name")
    topic = bytes(frame[position + 2 : end])
    if not topic.isascii():
        topic.decode()
    return topic, end


def read_fetch_answer(frame: memoryview, version: int) -> FetchAnswerView:
    """Reads a response frame (without its size prefix) of a version that names topics by id.

    Raises:
        DecodeError: the bytes are no such response.
    """
    assert version >= _TOPIC_IDS, "followers name topics by id"
    if len(frame) > _ANSWER_BODY_AT and not frame[_ANSWER_BODY_AT - 1]:
        found = wire.read_fetch_answer(frame, _ANSWER_BODY_AT, FetchAnswerView, FetchedPartition)
        if found is not None:
            return found
    _, answer = decode_response(FetchResponse, version, frame)
    partitions = [
        FetchedPartition(
            topic.topic_id.bytes,
            each.partition_index,
            each.error_code,
            each.high_watermark,
            each.log_start_offset,
            memoryview(each.records or b""),
            each.diverging_epoch.epoch,
            each.diverging_epoch.end_offset,
        )
        for topic in answer.responses
        for each in topic.partitions
    ]
    return FetchAnswerView(answer.throttle_time_ms, answer.error_code, answer.session_id, partitions)


def write_fetch_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, Sequence[FetchPartitionResult[P]]]],
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpointResult] = (),
) -> list[bytes | P]:
    """Writes a whole response frame as parts: bytes written here, and the unchanged parts of the records.

    The first part starts with the size prefix, which counts the bytes of the records too. A topic is named as the
    request named it (raw name or id).

    Raises:
        UnsupportedVersionError: there is no such version.
    """
    if _FLEXIBLE <= version <= _LAST and not node_endpoints:
        usual = wire.write_fetch(version, correlation_id, topics, throttle_time_ms, error_code, session_id)
        if usual is not None:
            return usual
    if version not in _VERSIONS:
        raise UnsupportedVersionError(f"FetchResponse has versions {_VERSIONS}, not {version}")
    flexible = version >= _FLEXIBLE
    parts: list[bytes | P] = []
    size = 4
    out: list[bytes] = [b"\0"] if flexible else []
    if version >= 7:
        out.append(_RESPONSE_HEAD_V7.pack(throttle_time_ms, error_code, session_id))
    else:
        out.append(_INT32.pack(throttle_time_ms))
    out.append(uvarint(len(topics) + 1) if flexible else _INT32.pack(len(topics)))
    for topic, partitions in topics:
        if not flexible:
            out += (_INT16.pack(len(topic)), topic, _INT32.pack(len(partitions)))
        elif version >= _TOPIC_IDS:
            assert len(topic) == 16, "Fetch names topics by id from version 13"
            out += (topic, uvarint(len(partitions) + 1))
        else:
            out += (uvarint(len(topic) + 1), topic, uvarint(len(partitions) + 1))
        for result in partitions:
            _write_result(out, result, version)
            if result.records_size:
                written = b"".join(out)
                parts.append(written)
                parts += result.records
                size += len(written) + result.records_size
                out = []
            if flexible:
                out.append(_result_tags(result))
        if flexible:
            out.append(b"\0")
    if flexible:
        out.append(node_endpoints_section(node_endpoints) if node_endpoints and version >= 16 else b"\0")
    tail = b"".join(out)
    size += len(tail)
    if not parts:
        return [_SIZE_CORRELATION.pack(size, correlation_id) + tail]
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = _SIZE_CORRELATION.pack(size, correlation_id) + first
    if tail:
        parts.append(tail)
    return parts


def _write_result(out: list[bytes], result: FetchPartitionResult[P], version: int) -> None:
    """Writes the fields of a partition up to and including the length of its records."""
    flexible = version >= _FLEXIBLE
    if version >= 5:
        out.append(
            _RESULT_V5.pack(
                result.partition,
                result.error_code,
                result.high_watermark,
                result.last_stable_offset,
                result.log_start_offset,
            )
        )
    else:
        out.append(
            _RESULT_V4.pack(result.partition, result.error_code, result.high_watermark, result.last_stable_offset)
        )
    aborted = result.aborted_transactions
    if aborted is None:
        out.append(b"\0" if flexible else b"\xff\xff\xff\xff")
    else:
        out.append(uvarint(len(aborted) + 1) if flexible else _INT32.pack(len(aborted)))
        for producer_id, first_offset in aborted:
            out.append(_ABORTED.pack(producer_id, first_offset))
            if flexible:
                out.append(b"\0")
    if version >= 11:
        out.append(_INT32.pack(result.preferred_read_replica))
    out.append(uvarint(result.records_size + 1) if flexible else _INT32.pack(result.records_size))


def _result_tags(result: FetchPartitionResult[P]) -> bytes:
    diverging, leader, snapshot = result.diverging_epoch, result.current_leader, result.snapshot_id
    if diverging is None and leader is None and snapshot is None:
        return b"\0"
    fields: list[bytes] = []
    if diverging is not None:
        fields.append(_EPOCH_OFFSET_TAG.pack(0, 13, *diverging, 0))
    if leader is not None:
        fields.append(_LEADER_TAG.pack(1, 9, *leader, 0))
    if snapshot is not None:
        fields.append(_SNAPSHOT_TAG.pack(2, 13, *snapshot, 0))
    return bytes((len(fields),)) + b"".join(fields)
