"""Defines the history of a run, which holds the requests and the results of every client, and its file format.

Workloads (in simulation or against real processes) append an ``Operation`` whenever a client operation ends; checkers
are pure functions over the sequence. The shape follows Jepsen's Kafka tests: an operation holds one or more
micro-operations, sends and polls, and a transaction is an operation whose micro-operations take effect together.

An operation ends in one of three ways. ``OK``: it took effect and its results are known. ``FAIL``: it certainly took
no effect. ``INFO``: its outcome is unknown (a timeout, a lost connection, a crashed client); its sends may appear at
any later time.

File format: a magic line, then frames of lz4 (frame format), each holding a run of msgpack arrays, one per operation.
After a crash the file is readable up to its last whole frame.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypedDict, cast

import lz4.frame
import msgpack

from moldau.cluster.metadata import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Audit",
    "Evidence",
    "HistoryError",
    "HistoryFile",
    "HistoryWriter",
    "Kind",
    "Lead",
    "MicroOperation",
    "Operation",
    "Poll",
    "Seek",
    "Send",
    "Status",
    "TopicPartition",
    "read_history",
    "write_history",
]

MAGIC = b"moldau-history 1\n"
FRAME_OPERATIONS = 4096
FRAME_RECORDS = 32_768
"""Bound on the records of a frame: a poll may return thousands, and readers hold a whole frame in memory."""
FRAME_BYTES_MAX = 256 * 1024 * 1024
_LENGTH_BYTES = 4
_FIELDS = 11
"""Number of fields that every operation in a file has; later fields may be missing."""
_LEFT_OUT: tuple[object, ...] = ("", (), None, ())
_POLL_FIELDS = 2
"""Number of fields of a poll without digests."""
_SEND_FIELDS = 5
"""Number of fields of a send without a digest."""


class Status(enum.Enum):
    """How an operation ended."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Kind(enum.Enum):
    """The client's action."""

    SEND = "send"  # one or more sends, each acknowledged on its own
    POLL = "poll"  # one poll of a consumer
    TRANSACTION = "txn"  # sends and polls that were committed or aborted together
    ASSIGN = "assign"  # the client assigned these partitions to its consumer; positions start over
    SUBSCRIBE = "subscribe"  # the consumer joined its group again; positions start over
    SEEK = "seek"  # the client set some positions of its consumer; the other positions stay
    AUDIT = "audit"  # a reader reported the balances of all accounts, as it had read them
    CRASH = "crash"  # the client was abandoned with its open operations
    CLAIM = "claim"  # nodes were asked what they lead, or a write of another kind was acknowledged by a leader


class Send(NamedTuple):
    """One record that was sent."""

    partition: TopicPartition
    value: int
    offset: int | None
    """Offset of the record, None if the client did not learn it."""
    digest: int = 0
    """Digest of key, value, headers and timestamp as they were sent: 1 to 2**32 - 1, or 0 if it was not computed."""
    says: tuple[int, ...] = ()
    """Further content of the record, as numbers that the sending workload defines."""


class Poll(NamedTuple):
    """The records that one poll returned."""

    records: tuple[tuple[TopicPartition, tuple[tuple[int, int], ...]], ...]
    """Per partition the (offset, value) pairs in the order of delivery."""
    digests: tuple[tuple[int, ...], ...] = ()
    """Per entry of ``records`` the digests of the received records, in the same order; empty if not computed."""


class Seek(NamedTuple):
    """One position that the client set."""

    partition: TopicPartition
    offset: int | None
    """The target: the next record must be the first at or after it. None for the beginning; for a time, what the
    cluster answered, -1 where it knew of no record."""
    timestamp: int | None = None
    """The time that was asked for, if the target was found by one; in milliseconds since the Unix epoch."""
    found_timestamp: int = -1
    """Timestamp of the record at ``offset``, as the cluster answered."""
    bound: int = -1
    """Offset of a record that the client had read before and that is not earlier than ``timestamp``: the answer must
    not be greater."""


class Audit(NamedTuple):
    """The balances of a bank's accounts as a reader found them."""

    positions: tuple[tuple[TopicPartition, int], ...]
    """Per partition the exclusive end offset of the reader."""
    balances: tuple[int, ...]
    """Balances of all accounts, in the order of their numbers."""


MicroOperation = Send | Poll


class Evidence(enum.Enum):
    """The way in which a node showed that it leads."""

    CLAIMED = "claimed to lead"  # its own metadata name it as the leader
    SERVED = "answered as the leader"  # a request names the epoch; only its leader answers
    ACKNOWLEDGED = "acknowledged a write"  # in the leader epoch that the client knew


class Lead(NamedTuple):
    """Evidence that a node leads a partition; ``checkers.split_brain`` defines what counts as evidence."""

    partition: TopicPartition
    """Partition; the name includes the topic's id if names are used again; ``__cluster_metadata``-0 is the quorum."""
    epoch: int
    """Leader epoch; for the quorum its epoch (term)."""
    leader: int
    """Id of the broker, or of the controller."""
    evidence: Evidence


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
    """Time on the run's clock, which all clients share."""
    ended_ms: float
    operations: tuple[MicroOperation, ...] = ()
    aborted: bool = False
    """Transactions only: the client chose to abort, so read_committed consumers must never see its sends."""
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
    nothing. Of SUBSCRIBE: the instance id of a static member."""
    error: str = ""
    """Reason if the operation did not end OK."""
    seeks: tuple[Seek, ...] = ()
    """SEEK only: the positions that were set."""
    audit: Audit | None = None
    """AUDIT only: the balances that were found."""
    leads: tuple[Lead, ...] = ()
    """Nodes that showed in this operation that they lead; evidence that the history already holds may be left out."""

    @property
    def sends(self) -> Iterator[Send]:
        """Yields the sends among the micro-operations, in order."""
        return (operation for operation in self.operations if isinstance(operation, Send))

    @property
    def polls(self) -> Iterator[Poll]:
        """Yields the polls among the micro-operations, in order."""
        return (operation for operation in self.operations if isinstance(operation, Poll))


class _More(TypedDict, total=False):
    """Fields of an operation that may be missing in a file."""

    group: str
    seeks: tuple[Seek, ...]
    audit: Audit | None
    leads: tuple[Lead, ...]


_KINDS = {kind.value: kind for kind in Kind}
_STATUSES = {status.value: status for status in Status}


class HistoryError(Exception):
    """A file is not a history, or is damaged before its end."""


def _pack_micro(part: MicroOperation) -> list[object]:
    if isinstance(part, Send):
        packed: list[object] = [0, part.partition.topic, part.partition.partition, part.value, part.offset]
        if part.digest or part.says:
            packed += [part.digest, *part.says]
        return packed
    packed = [1, [[tp.topic, tp.partition, pairs] for tp, pairs in part.records]]
    if part.digests:
        packed.append([struct.pack(f"<{len(digests)}I", *digests) for digests in part.digests])
    return packed


def _pack(operation: Operation) -> list[object]:
    flags = operation.aborted | operation.rebalanced << 1 | operation.final << 2
    packed: list[object] = [
        operation.index,
        operation.process,
        operation.kind.value,
        operation.status.value,
        operation.begun_ms,
        operation.ended_ms,
        [_pack_micro(part) for part in operation.operations],
        flags,
        [list(tp) for tp in operation.partitions],
        operation.generation,
        operation.error,
    ]
    audit = operation.audit
    more: list[object] = [
        operation.group,
        [[*seek.partition, *seek[1:]] for seek in operation.seeks],
        None if audit is None else [[[*tp, position] for tp, position in audit.positions], list(audit.balances)],
        [[*lead.partition, lead.epoch, lead.leader, lead.evidence.value] for lead in operation.leads],
    ]
    while more and not more[-1]:  # files from before there were these fields end sooner
        more.pop()
    return packed + more


def _unpack_micro(packed: Sequence[object]) -> MicroOperation:
    if packed[0] == 0:
        _, topic, partition, value, offset = cast("tuple[int, str, int, int, int | None]", packed[:_SEND_FIELDS])
        if len(packed) == _SEND_FIELDS:
            return Send(TopicPartition(topic, partition), value, offset)
        numbers = cast("tuple[int, ...]", packed[_SEND_FIELDS:])
        return Send(TopicPartition(topic, partition), value, offset, numbers[0], numbers[1:])
    records = cast("tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]", packed[1])
    digests = cast("tuple[bytes, ...]", packed[2]) if len(packed) > _POLL_FIELDS else ()
    return Poll(
        tuple((TopicPartition(t, p), pairs) for t, p, pairs in records),
        tuple(struct.unpack(f"<{len(each) // 4}I", each) for each in digests),
    )


def _unpack(packed: Sequence[object]) -> Operation:
    index, process, kind, status, begun, ended, micro, flags, partitions, generation, error = cast(
        "tuple[int, int, str, str, float, float, tuple[tuple[object, ...], ...], int, tuple[tuple[str, int], ...], "
        "int, str]",
        packed[:_FIELDS],
    )
    return Operation(
        index=index,
        process=process,
        kind=_KINDS[kind],
        status=_STATUSES[status],
        begun_ms=begun,
        ended_ms=ended,
        operations=tuple(map(_unpack_micro, micro)),
        aborted=bool(flags & 1),
        rebalanced=bool(flags & 2),
        final=bool(flags & 4),
        partitions=tuple(TopicPartition(t, p) for t, p in partitions) if partitions else (),
        generation=generation,
        error=error,
        **(_unpack_more(packed[_FIELDS:]) if len(packed) > _FIELDS else {}),
    )


def _unpack_more(packed: Sequence[object]) -> _More:
    group, seeks, audit, leads = cast(
        "tuple[str, tuple[tuple[str, int, int | None, int | None, int, int], ...], "
        "tuple[tuple[tuple[str, int, int], ...], tuple[int, ...]] | None, "
        "tuple[tuple[str, int, int, int, str], ...]]",
        (*packed, *_LEFT_OUT[len(packed) :]),
    )
    return _More(
        group=group,
        seeks=tuple(Seek(TopicPartition(seek[0], seek[1]), *seek[2:]) for seek in seeks),
        audit=None
        if audit is None
        else Audit(tuple((TopicPartition(t, p), position) for t, p, position in audit[0]), audit[1]),
        leads=tuple(
            Lead(TopicPartition(topic, number), epoch, leader, Evidence(evidence))
            for topic, number, epoch, leader, evidence in leads
        ),
    )


def _unpacked(data: bytes) -> tuple[object, ...]:
    """Decodes msgpack with arrays as tuples, which spares a second copy of the many pairs of a history."""
    return cast("tuple[object, ...]", msgpack.unpackb(data, strict_map_key=False, use_list=False))


class HistoryWriter:
    """Writes operations to a binary stream; operations are readable after a crash once ``flush`` has returned."""

    def __init__(self, stream: BinaryIO) -> None:
        """Writes the magic line at once."""
        self._stream = stream
        self._pending: list[object] = []
        self._records = 0
        stream.write(MAGIC)

    def add(self, operation: Operation) -> None:
        """Adds one operation; writes a frame at ``FRAME_OPERATIONS`` operations or ``FRAME_RECORDS`` records."""
        self._pending.append(_pack(operation))
        self._records += sum(len(pairs) for poll in operation.polls for _, pairs in poll.records)
        if len(self._pending) >= FRAME_OPERATIONS or self._records >= FRAME_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Writes the pending operations as a frame."""
        if self._pending:
            frame = lz4.frame.compress(msgpack.packb(self._pending), content_checksum=True)
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

    It ends without an error at an incomplete last frame.

    Raises:
        HistoryError: The stream is not a history, or a whole frame is damaged.
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
    """Returns one operation in the encoding of a frame."""
    packed: bytes = msgpack.packb(_pack(operation))
    return packed


def unpack_operation(packed: bytes) -> Operation:
    """Decodes the result of ``pack_operation``."""
    return _unpack(_unpacked(packed))


def frame_positions(path: Path) -> list[tuple[int, int]]:
    """Returns position and length of every whole frame of a history file, without reading the frames.

    Raises:
        HistoryError: The file is not a history, or is damaged.
        OSError: The file cannot be read.
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
    """Yields the operations of some frames of a file.

    Raises:
        HistoryError: A frame is damaged.
        OSError: The file cannot be read.
    """
    with path.open("rb") as stream:
        for position, length in positions:
            stream.seek(position)
            yield from _read_frame(stream.read(length), position)


def _read_frame(frame: bytes, position: int) -> Iterator[Operation]:
    try:
        unpacked = _unpacked(lz4.frame.decompress(frame))
        yield from (_unpack(packed) for packed in cast("tuple[tuple[object, ...], ...]", unpacked))
    except (ValueError, KeyError, RuntimeError, TypeError, struct.error, msgpack.UnpackException) as error:
        raise HistoryError(f"damaged at byte {position}: {error}") from error


class HistoryFile:
    """A history in a file; each ``iter`` reads the file from its beginning, one frame in memory at a time."""

    def __init__(self, path: Path) -> None:
        """Keeps the path; ``iter`` opens the file."""
        self._path = path

    @property
    def path(self) -> Path:
        """Returns the path of the file."""
        return self._path

    def __iter__(self) -> Iterator[Operation]:
        """Yields the operations.

        Raises:
            OSError: The file cannot be read.
            HistoryError: The file is not a history, or is damaged.
        """
        with self._path.open("rb") as stream:
            yield from read_history(stream)
