"""The proposals and linearizable reads of one node whose outcome is not known yet. Both engines use it.

``OpenProposals`` is bounded in number and bytes, ``OpenReads`` in number. Each operation ends exactly once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from moldau_quorum.log.port import LogBusyError, LogPosition, MetadataLogError, NotLeaderError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

READS_WAITING_MAX: Final = 10_000


class Pending:
    """A proposal or a read in progress. ``notify`` is called once, after ``done`` has become true."""

    __slots__ = ("_notify", "done", "error", "position", "size_bytes")

    def __init__(self, position: LogPosition, size_bytes: int, notify: Callable[[], None]) -> None:
        """``position`` of a read is set when it is known."""
        self.position = position
        self.size_bytes = size_bytes
        self.done = False
        self.error: MetadataLogError | None = None
        self._notify = notify

    def finish(self, error: MetadataLogError | None = None) -> None:
        """Ends the operation."""
        assert not self.done, "a proposal ends once"
        self.done = True
        self.error = error
        self._notify()


class OpenProposals:
    """Proposals by log index. Invariant: ``_bytes`` is the sum of their sizes."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        """Starts empty."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._by_index: dict[int, Pending] = {}
        self._bytes = 0

    def check_room(self, size_bytes: int) -> None:
        """Checks that one more proposal fits.

        Raises:
            LogBusyError: too many proposals or bytes wait to be committed.
        """
        if len(self._by_index) >= self._count_max or self._bytes + size_bytes > self._bytes_max:
            raise LogBusyError(f"{len(self._by_index)} proposals, {self._bytes} bytes wait to be committed")

    def add(self, position: LogPosition, size_bytes: int, notify: Callable[[], None]) -> Pending:
        """Adds a proposal that was appended at ``position``."""
        pending = self._by_index[position.index] = Pending(position, size_bytes, notify)
        self._bytes += size_bytes
        return pending

    def applied(self, index: int, epoch: int) -> None:
        """Ends the proposal at ``index``; it fails if the applied entry is of another epoch."""
        if index in self._by_index:
            pending = self._remove(index)
            pending.finish(None if pending.position.epoch == epoch else NotLeaderError(-1, epoch))

    def leadership_settled(self, epoch: int | None) -> None:
        """Fails the proposals of other epochs; ``epoch`` is None while this node does not lead."""
        for index in [index for index, pending in self._by_index.items() if pending.position.epoch != epoch]:
            reason = f"leadership was lost before index {index} was committed"
            self._remove(index).finish(OutcomeUnknownError(reason))

    def replaced_by_snapshot(self, last_index: int) -> None:
        """Fails the proposals up to ``last_index``, whose entries a leader's snapshot has replaced."""
        for index in [index for index in self._by_index if index <= last_index]:
            self._remove(index).finish(OutcomeUnknownError(f"index {index} was replaced by a snapshot"))

    def close(self) -> None:
        """Fails all proposals, because the node stops."""
        for pending in self._by_index.values():
            pending.finish(OutcomeUnknownError("this node stops"))
        self._by_index.clear()
        self._bytes = 0

    def _remove(self, index: int) -> Pending:
        pending = self._by_index.pop(index)
        self._bytes -= pending.size_bytes
        return pending


class OpenReads:
    """Linearizable reads: first unconfirmed, then confirmed at an index that is not applied yet.

    Invariant: ``_confirmed`` is in the order of its indexes.
    """

    def __init__(self) -> None:
        """Starts empty."""
        self._unconfirmed: dict[int, Pending] = {}
        self._confirmed: deque[Pending] = deque()
        self._next_id = 1

    @property
    def next_id(self) -> int:
        """The id of the next read.

        Raises:
            LogBusyError: too many reads wait.
        """
        if len(self._unconfirmed) + len(self._confirmed) >= READS_WAITING_MAX:
            raise LogBusyError(f"{READS_WAITING_MAX} reads wait already")
        return self._next_id

    def add(self, epoch: int, notify: Callable[[], None]) -> Pending:
        """Adds the read with the id ``next_id``."""
        pending = self._unconfirmed[self._next_id] = Pending(LogPosition(index=0, epoch=epoch), 0, notify)
        self._next_id += 1
        return pending

    def confirm(self, read_id: int, index: int, epoch: int) -> None:
        """Records that a read is served at ``index``; a negative index means that leadership was lost."""
        pending = self._unconfirmed.pop(read_id)
        if index < 0:
            pending.finish(NotLeaderError(-1, epoch))
            return
        pending.position = LogPosition(index=index, epoch=pending.position.epoch)
        self._confirmed.append(pending)

    def applied(self, applied_index: int) -> None:
        """Ends the reads whose index is applied."""
        while self._confirmed and self._confirmed[0].position.index <= applied_index:
            self._confirmed.popleft().finish()

    def close(self) -> None:
        """Fails all reads, because the node stops."""
        for pending in [*self._unconfirmed.values(), *self._confirmed]:
            pending.finish(OutcomeUnknownError("this node stops"))
        self._unconfirmed.clear()
        self._confirmed.clear()
