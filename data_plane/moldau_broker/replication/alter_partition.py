"""Which ISR changes travel to the controller: all that wait go in one request, one request at a time.

A leader's proposal waits here until the request in flight is answered; a newer proposal of the same partition replaces
a waiting one (the older was dropped by its replica). What comes back is handed to the replicas, which say whether to
send again; a repeated proposal waits for the back-off, so that a controller that cannot answer is not hammered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.replica import IsrProposal


class AlterPartitionQueue:
    """Proposals of one broker.

    Invariant: at most one request is in flight; it holds at most ``partitions_max`` proposals.
    """

    __slots__ = ("_backoff_ms", "_in_flight", "_not_before_ms", "_partitions_max", "_waiting")

    def __init__(self, *, partitions_max: int, backoff_ms: float) -> None:
        self._waiting: dict[TopicPartition, IsrProposal] = {}
        self._in_flight: dict[TopicPartition, IsrProposal] = {}
        self._partitions_max = partitions_max
        self._backoff_ms = backoff_ms
        self._not_before_ms = float("-inf")

    def submit(self, key: TopicPartition, proposal: IsrProposal) -> None:
        """A replica wants its ISR changed."""
        self._waiting[key] = proposal

    def withdraw(self, key: TopicPartition) -> None:
        """The replica is gone (deleted, no longer led here)."""
        self._waiting.pop(key, None)

    def next_request(self, now_ms: float) -> dict[TopicPartition, IsrProposal]:
        """What to send now;

        empty if there is nothing, a request is in flight, or the back-off lasts. Takes it in flight.
        """
        if self._in_flight or not self._waiting or now_ms < self._not_before_ms:
            return {}
        for key in list(self._waiting)[: self._partitions_max]:
            self._in_flight[key] = self._waiting.pop(key)
        return dict(self._in_flight)

    def answered(self) -> None:
        """The request in flight was answered; its proposals went to their replicas."""
        self._in_flight = {}

    def failed(self, now_ms: float) -> dict[TopicPartition, IsrProposal]:
        """The request in flight got no usable answer:

        its proposals wait again unless newer ones do, after the back-off.
        """
        failed, self._in_flight = self._in_flight, {}
        for key, proposal in failed.items():
            self._waiting.setdefault(key, proposal)
        self.back_off(now_ms)
        return failed

    def back_off(self, now_ms: float) -> None:
        """Sends nothing for the length of the back-off."""
        self._not_before_ms = now_ms + self._backoff_ms

    def next_deadline_ms(self) -> float | None:
        """When ``next_request`` will have something; None while nothing waits or a request is in flight."""
        return self._not_before_ms if self._waiting and not self._in_flight else None
