"""Queues ISR proposals for the controller: one request with all waiting proposals, one request at a time.

A leader's proposal waits until the request in flight is answered. A newer proposal of the same partition replaces a
waiting one, which its replica has dropped. The shell passes the answers to the replicas, which decide whether to
repeat a proposal. A repeated proposal waits for the back-off, so that an unavailable controller is not overloaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_broker.log.values import TopicPartition
    from moldau_broker.replication.replica import IsrProposal


class AlterPartitionQueue:
    """The proposals of one broker.

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
        """Adds the proposal of a replica."""
        self._waiting[key] = proposal

    def withdraw(self, key: TopicPartition) -> None:
        """Removes the proposal of a replica that is deleted or no longer led here."""
        self._waiting.pop(key, None)

    def next_request(self, now_ms: float) -> dict[TopicPartition, IsrProposal]:
        """Returns the proposals to send now, and counts them as in flight.

        Empty if none waits, while a request is in flight, and during the back-off.
        """
        if self._in_flight or not self._waiting or now_ms < self._not_before_ms:
            return {}
        for key in list(self._waiting)[: self._partitions_max]:
            self._in_flight[key] = self._waiting.pop(key)
        return dict(self._in_flight)

    def answered(self) -> None:
        """Ends the request in flight after its answer has been passed to the replicas."""
        self._in_flight = {}

    def failed(self, now_ms: float) -> dict[TopicPartition, IsrProposal]:
        """Queues the proposals of a failed request again, unless newer ones wait, and starts the back-off."""
        failed, self._in_flight = self._in_flight, {}
        for key, proposal in failed.items():
            self._waiting.setdefault(key, proposal)
        self.back_off(now_ms)
        return failed

    def back_off(self, now_ms: float) -> None:
        """Starts the back-off, during which no request is sent."""
        self._not_before_ms = now_ms + self._backoff_ms

    def next_deadline_ms(self) -> float | None:
        """Returns when ``next_request`` has proposals; None while none waits or a request is in flight."""
        return self._not_before_ms if self._waiting and not self._in_flight else None
