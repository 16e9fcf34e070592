"""The producers of a log at an offset that only the object store has: a snapshot, and the batches behind it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import CorruptRecordError, iterate_batches
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.files.batches import CONTROL_BIT, batch_problem
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_broker.log.producers.producer_state import ProducerStateManager, decode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable


class ProducersAt:
    """Producers of a log at ``offset``; moves forward with the batches of remote segments."""

    def __init__(self, offset: int, snapshot: bytes | None) -> None:
        """``snapshot`` is that at ``offset``; None at the log start offset, below which no producer counts.

        Raises:
            LogError: CORRUPT_MESSAGE, the snapshot is damaged.
        """
        self.offset = offset
        self._state = ProducerStateManager(0, 0)
        self._state.reset(offset)
        if snapshot is not None:
            try:
                self._state.load_snapshot(decode_snapshot(f"producers at {offset}", snapshot), offset)
            except CorruptLogFileError as error:
                raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def apply(self, data: bytes, epoch_for_offset: Callable[[int], int]) -> None:
        """Applies whole batches, the first of which ends at or above ``offset``.

        A segment of another lineage holds batches of this log up to where the two part: by Raft's log matching, a batch
        belongs to it if its leader epoch is that of the log at its offset (``epoch_for_offset``).

        Raises:
            LogError: CORRUPT_MESSAGE, a batch is damaged or of another log.
        """
        try:
            for position, header in iterate_batches(data):
                batch = data[position : position + header.size_bytes]
                problem = batch_problem(header, batch)
                if epoch_for_offset(header.base_offset) != header.partition_leader_epoch:
                    problem = f"leader epoch {header.partition_leader_epoch} is not that of this log"
                if problem is not None:
                    raise LogError(ErrorCode.CORRUPT_MESSAGE, f"remote batch at offset {header.base_offset}: {problem}")
                if header.producer_id >= 0 and header.last_offset >= self.offset:
                    marker = decode_marker(header, batch) if header.attributes & CONTROL_BIT else None
                    self._state.replay(header, marker)
                self.offset = header.next_offset
        except CorruptRecordError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    def snapshot(self) -> bytes:
        """Returns the snapshot at ``offset``."""
        return self._state.encode_snapshot()
