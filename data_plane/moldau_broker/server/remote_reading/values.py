"""Values that pass between the reader of remote segments and its users, and its errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau_broker.log.errors import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.values import Buffer


class RemoteRange(NamedTuple):
    """The part of a partition that one read may return."""

    offset: int
    max_bytes: int
    """The first batch is returned whole even if it is larger (KIP-74)."""
    upper_bound_offset: int
    """Exclusive: the high watermark of the replica, or its last stable offset."""
    reads_committed: bool
    """Whether the aborted transactions of the range are needed."""


class RemoteRecords(NamedTuple):
    """The result of a read: whole batches, of which the first holds the offset or follows it."""

    records: bytes
    """Empty if there is no batch below the upper bound."""
    aborted: Sequence[tuple[int, int]]
    """Producer id and first offset of the aborted transactions that a ``read_committed`` consumer needs."""
    gap_end: int | None = None
    """Offset at which the local log goes on, if remote segments end without a batch from the wanted offset on."""


class RemoteStorageError(LogError):
    """The object store did not answer, or refused; the same request may succeed later.

    Kafka answers UNKNOWN_SERVER_ERROR, because its ``RemoteStorageException`` has no code of its own, and the Java
    consumer tries again. Other clients report that code to the application. All of them try KAFKA_STORAGE_ERROR again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


class RemoteSegmentMissingError(LogError):
    """The store holds no segment of this log with that offset, even by a listing that was made for the question."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


def first_batches(records: bytes, max_bytes: int, *, min_one_batch: bool) -> Buffer:
    """Returns the whole batches at the beginning of ``records`` that fit into ``max_bytes``.

    ``min_one_batch``: the first one is returned even if it is larger (KIP-74).
    """
    if len(records) <= max_bytes:
        return records
    end = 0
    for position, header in iterate_batches(records):
        behind = position + header.size_bytes
        if behind > max_bytes and not (min_one_batch and position == 0):
            break
        end = behind
    return memoryview(records)[:end]
