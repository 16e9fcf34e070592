"""Checks that clients make progress after the faults: a cluster that looks healthy may still fail to serve clients.

Operations that began under faults do not count, because an earlier state of the cluster may have answered them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau_jepsen.history import Kind, Poll, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_jepsen.history import Operation, TopicPartition


class Liveness:
    """Watches operations as they end. It belongs to one event loop."""

    def __init__(
        self,
        since_ms: float,
        partitions: Iterable[TopicPartition],
        transactions_in: str = "",
        read_by_group: Iterable[TopicPartition] = (),
    ) -> None:
        """Nothing was seen.

        Args:
            since_ms: On the recorder's clock; only what was begun at that moment or later counts.
            partitions: In each of these a record must be acknowledged.
            transactions_in: A topic; a transaction that sends to it or reads it must be committed. Empty for none.
            read_by_group: In each of these a member of a group must read a record that was acknowledged since. So the
                group has members that own what they own, and no transaction holds its records back.
        """
        self._since_ms = since_ms
        self._unsent = set(partitions)
        self._transactions_in = transactions_in
        self._unread = set(read_by_group)
        self._first_acknowledged: dict[TopicPartition, int] = {}
        self._polled: set[TopicPartition] = set()  # by a group, in the present stretch of ``wait``
        self._done = trio.Event()
        self._look()

    def _look(self) -> None:
        if not self._unsent and not self._transactions_in and not self._unread:
            self._done.set()

    def saw(self, operation: Operation) -> None:
        """Takes an operation that has ended."""
        if self._done.is_set() or operation.begun_ms < self._since_ms:
            return
        if operation.status is not Status.OK or operation.aborted:
            return
        for send in operation.sends:
            self._unsent.discard(send.partition)
            if send.offset is not None:
                self._first_acknowledged.setdefault(send.partition, send.offset)
        if operation.kind is Kind.POLL and operation.group:
            self._polled |= {partition for poll in operation.polls for partition, _ in poll.records}
            self._unread -= {partition for poll in operation.polls for partition in self._new_in(poll)}
        if operation.kind is Kind.TRANSACTION and self._transactions_in in _topics(operation):
            self._transactions_in = ""
        self._look()

    def _new_in(self, poll: Poll) -> list[TopicPartition]:
        """Returns the partitions of which a poll returned a record that was acknowledged since."""
        first = self._first_acknowledged
        return [
            partition
            for partition, records in poll.records
            if partition in first and any(record[0] >= first[partition] for record in records)
        ]

    async def wait(self, seconds: float, *, at_most_s: float = 0.0) -> str:
        """Returns an empty string once all requirements are met, or after ``seconds`` a text that names the others.

        If only reads of new records by a group are missing, and the group has read older records of all those
        partitions meanwhile, it gets the same time again, but at most ``at_most_s`` in all: members that went back to
        the beginning of a long run have much to read.
        """
        began = trio.current_time()
        while True:
            self._polled.clear()
            with trio.move_on_after(seconds):
                await self._done.wait()
            if self._done.is_set():
                return ""
            waited_s = trio.current_time() - began
            reads_on = not self._unsent and not self._transactions_in and self._unread <= self._polled
            if not reads_on or waited_s + seconds > at_most_s:
                break
        missing = []
        if self._unsent:
            places = ", ".join(f"{each.topic}-{each.partition}" for each in sorted(self._unsent))
            missing.append(f"no record was acknowledged in {places}")
        if self._transactions_in:
            missing.append(f"no transaction was committed in {self._transactions_in}")
        unread = sorted(self._unread - self._unsent)
        if unread:
            places = ", ".join(f"{each.topic}-{each.partition}" for each in unread)
            missing.append(f"no member of a group read what was acknowledged in {places}")
        return f"{' and '.join(missing)} for {round(waited_s, 1):g} s after the cluster was healthy"


def _topics(operation: Operation) -> set[str]:
    topics = {send.partition.topic for send in operation.sends}
    for part in operation.operations:
        if isinstance(part, Poll):
            topics |= {partition.topic for partition, _ in part.records}
    return topics
