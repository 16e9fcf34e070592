"""The history of a run: what every client asked for and what it was told, as values and as a file.

Workloads (in simulation or against real processes) append an ``Operation`` whenever a client operation ends; checkers
are pure functions over the sequence. The shape follows Jepsen's Kafka tests: an operation holds one or more
micro-operations, sends and polls, and a transaction is an operation whose micro-operations take effect together.

An operation ends in one of three ways. ``OK``: it took effect and its results are known. ``FAIL``: it certainly took
no effect. ``INFO``: nobody knows (a timeout, a lost connection, a crashed client); its sends may appear at any later
time.

File format: a magic line, then frames of lz4 (frame format), each holding a run of msgpack arrays, one per operation.
A file that a crash cut short is readable up to its last whole frame.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import lz4.frame
import msgpack

from moldau.cluster.metadata import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "HistoryError",
    "HistoryFile",
    "HistoryWriter",
    "Kind",
    "MicroOperation",
    "Operation",
    "Poll",
    "Send",
    "Status",
    "TopicPartition",
    "read_history",
    "write_history",
]

MAGIC = b"moldau-history 1\n"
FRAME_OPERATIONS = 4096
FRAME_RECORDS = 32_768
"""Polls may return thousands of records: a frame is in memory as a whole when it is read."""
FRAME_BYTES_MAX = 256 * 1024 * 1024
_LENGTH_BYTES = 4
_FIELDS = 11
"""Of every operation in a file; what follows may be left out."""


class Status(enum.Enum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Kind(enum.Enum):
    """What the client did."""

    SEND = "send"  # one or more sends, each acknowledged on its own
    POLL = "poll"  # one poll of a consumer
    TRANSACTION = "txn"  # sends and polls that were committed or aborted together
    ASSIGN = "assign"  # the consumer was given these partitions by hand; positions start over
    SUBSCRIBE = "subscribe"  # the consumer joined its group anew; positions start over
    CRASH = "crash"  # the client was abandoned with whatever it had under way


class Send(NamedTuple):
    """One record that was sent. ``offset`` is where it landed, None when the client was not told."""

    partition: TopicPartition
    value: int
    offset: int | None


class Poll(NamedTuple):
    """What one poll returned: per partition the (offset, value) pairs in the order of delivery."""

    records: tuple[tuple[TopicPartition, tuple[tuple[int, int], ...]], ...]


MicroOperation = Send | Poll


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One finished client operation."""

    index: int
    """Position in the history, dense from 0, in order of completion."""
    process: int
    """The client; a crashed client never acts again, its successor has a new number."""
    kind: Kind
    status: Status
    begun_ms: float
    """On the run's own clock, the same for all clients."""
    ended_ms: float
    operations: tuple[MicroOperation, ...] = ()
    aborted: bool = False
    """Of transactions: the client chose to abort, so its sends must never be seen by read_committed consumers."""
    rebalanced: bool = False
    """Partitions were assigned or revoked since this client's last poll: positions may move."""
    final: bool = False
    """Part of the last phase, in which everything is read from the beginning."""
    partitions: tuple[TopicPartition, ...] = ()
    """Of ASSIGN and SUBSCRIBE: what the consumer owns afterwards (SUBSCRIBE: as far as it knows)."""
    generation: int = -1
    """Of group members: generation of the assignment in ``partitions``."""
    group: str = ""
    """Of polls of a group's member: the group, if it begins at the earliest offset, so that its members together skip
    nothing."""
    error: str = ""
    """Why the operation did not end OK."""

    @property
    def sends(self) -> Iterator[Send]:
        """The sends among the micro-operations, in order."""
        return (operation for operation in self.operations if isinstance(operation, Send))

    @property
    def polls(self) -> Iterator[Poll]:
        """The polls among the micro-operations, in order."""
        return (operation for operation in self.operations if isinstance(operation, Poll))


class HistoryError(Exception):
    """A file is not a history, or is damaged before its end."""


def _pack(operation: Operation) -> list[object]:
    micro: list[object] = []
    for part in operation.operations:
        if isinstance(part, Send):
            micro.append([0, part.partition.topic, part.partition.partition, part.value, part.offset])
        else:
            micro.append([1, [[tp.topic, tp.partition, [list(pair) for pair in pairs]] for tp, pairs in part.records]])
    flags = operation.aborted | operation.rebalanced << 1 | operation.final << 2
    packed: list[object] = [
        operation.index,
        operation.process,
        operation.kind.value,
        operation.status.value,
        operation.begun_ms,
        operation.ended_ms,
        micro,
        flags,
        [list(tp) for tp in operation.partitions],
        operation.generation,
        operation.error,
    ]
    if operation.group:  # files from before groups had names end here
        packed.append(operation.group)
    return packed


def _unpack_micro(packed: list[object]) -> MicroOperation:
    if packed[0] == 0:
        _, topic, partition, value, offset = cast("tuple[int, str, int, int, int | None]", tuple(packed))
        return Send(TopicPartition(topic, partition), value, offset)
    _, records = cast("tuple[int, list[tuple[str, int, list[tuple[int, int]]]]]", tuple(packed))
    return Poll(tuple((TopicPartition(t, p), tuple((pair[0], pair[1]) for pair in pairs)) for t, p, pairs in records))


def _unpack(packed: list[object]) -> Operation:
    index, process, kind, status, begun, ended, micro, flags, partitions, generation, error = cast(
        "tuple[int, int, str, str, float, float, list[list[object]], int, list[tuple[str, int]], int, str]",
        tuple(packed[:_FIELDS]),
    )
    group = cast("list[str]", packed[_FIELDS:])
    return Operation(
        index=index,
        process=process,
        kind=Kind(kind),
        status=Status(status),
        begun_ms=begun,
        ended_ms=ended,
        operations=tuple(_unpack_micro(part) for part in micro),
        aborted=bool(flags & 1),
        rebalanced=bool(flags & 2),
        final=bool(flags & 4),
        partitions=tuple(TopicPartition(t, p) for t, p in partitions),
        generation=generation,
        group="".join(group[:1]),
        error=error,
    )


class HistoryWriter:
    """Writes operations to a binary stream; what ``flush`` has written can be read after a crash."""

    def __init__(self, stream: BinaryIO) -> None:
        """Writes the magic line at once."""
        self._stream = stream
        self._pending: list[object] = []
        self._records = 0
        stream.write(MAGIC)

    def add(self, operation: Operation) -> None:
        """Adds one operation; ``FRAME_OPERATIONS`` of them, or as many as hold ``FRAME_RECORDS``, go out as a frame."""
        self._pending.append(_pack(operation))
        self._records += sum(len(pairs) for poll in operation.polls for _, pairs in poll.records)
        if len(self._pending) >= FRAME_OPERATIONS or self._records >= FRAME_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is pending as a frame of its own."""
        if self._pending:
            frame = lz4.frame.compress(msgpack.packb(self._pending))
            self._stream.write(len(frame).to_bytes(_LENGTH_BYTES, "big"))
            self._stream.write(frame)
            self._pending.clear()
            self._records = 0
        self._stream.flush()


def write_history(stream: BinaryIO, operations: Iterable[Operation]) -> None:
    """Writes a whole history."""
    writer = HistoryWriter(stream)
    for operation in operations:
        writer.add(operation)
    writer.flush()


def read_history(stream: BinaryIO) -> Iterator[Operation]:
    """Yields the operations of a history file in order, one frame in memory at a time.

    Ends quietly where the writer was cut short in the middle of a frame. Raises ``HistoryError`` when the stream is no
    history or a whole frame is damaged.
    """
    if stream.read(len(MAGIC)) != MAGIC:
        raise HistoryError(f"not a history: it does not begin with {MAGIC.decode().strip()!r}")
    position = len(MAGIC)
    while True:
        prefix = stream.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "big")
        if len(prefix) < _LENGTH_BYTES:
            return
        if length > FRAME_BYTES_MAX:
            raise HistoryError(f"damaged at byte {position}: a frame of {length} bytes")
        frame = stream.read(length)
        if len(frame) < length:
            return
        yield from _read_frame(frame, position)
        position += _LENGTH_BYTES + length


def pack_operation(operation: Operation) -> bytes:
    """One operation as it stands in a frame."""
    packed: bytes = msgpack.packb(_pack(operation))
    return packed


def unpack_operation(packed: bytes) -> Operation:
    """The inverse of ``pack_operation``."""
    return _unpack(msgpack.unpackb(packed, strict_map_key=False))


def frame_positions(path: Path) -> list[tuple[int, int]]:
    """Position and length of every whole frame of a history file; nothing of them is read.

    Raises ``HistoryError`` and ``OSError``.
    """
    size = path.stat().st_size
    found: list[tuple[int, int]] = []
    with path.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise HistoryError(f"not a history: it does not begin with {MAGIC.decode().strip()!r}")
        position = len(MAGIC)
        while position + _LENGTH_BYTES <= size:
            stream.seek(position)
            length = int.from_bytes(stream.read(_LENGTH_BYTES), "big")
            if length > FRAME_BYTES_MAX:
                raise HistoryError(f"damaged at byte {position}: a frame of {length} bytes")
            position += _LENGTH_BYTES
            if position + length > size:
                break
            found.append((position, length))
            position += length
    return found


def read_frames(path: Path, positions: Iterable[tuple[int, int]]) -> Iterator[Operation]:
    """Yields the operations of some frames of a file. Raises ``HistoryError`` and ``OSError``."""
    with path.open("rb") as stream:
        for position, length in positions:
            stream.seek(position)
            yield from _read_frame(stream.read(length), position)


def _read_frame(frame: bytes, position: int) -> Iterator[Operation]:
    try:
        unpacked = msgpack.unpackb(lz4.frame.decompress(frame), strict_map_key=False)
        yield from (_unpack(packed) for packed in cast("Sequence[list[object]]", unpacked))
    except (ValueError, RuntimeError, TypeError, msgpack.UnpackException) as error:
        raise HistoryError(f"damaged at byte {position}: {error}") from error


class HistoryFile:
    """A history in a file, read anew from its beginning by every ``iter``; one frame is in memory at a time."""

    def __init__(self, path: Path) -> None:
        """The file is opened when it is read."""
        self._path = path

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def __iter__(self) -> Iterator[Operation]:
        """Yields the operations. Raises ``OSError`` and ``HistoryError``."""
        with self._path.open("rb") as stream:
            yield from read_history(stream)
