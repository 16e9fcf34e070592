"""The wait for records inside ``Consumer.poll``, and the short cut of iteration past it.

A poll rebalances first, then takes what the fetcher has buffered, and otherwise waits for the next arrival. Iteration
over single records polls only now and then: a poll per record would cost a pass of the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import trio

from moldau.cluster.interceptors import on_consume

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.interceptors import ConsumerInterceptor
    from moldau.consumer.core.positions import Positions
    from moldau.consumer.core.statistics import ConsumerStatistics
    from moldau.consumer.core.values import ConsumedBatch
    from moldau.consumer.decoding import Decoding
    from moldau.consumer.fetcher import Fetcher

T = TypeVar("T")

_RECORDS_PER_POLL = 256
_POLL_INTERVAL_MS = 50
"""Iteration polls (rebalances, commits, lets other tasks run) after as many records, or so much time."""


class Poller:
    """Takes records for one task at a time."""

    def __init__(
        self,
        client: ClusterClient,
        fetcher: Fetcher,
        positions: Positions,
        *,
        rebalance: Callable[[float], Awaitable[bool]],
        commit_when_due: Callable[[], float],
        decoding: Decoding | None,
        interceptors: Sequence[ConsumerInterceptor],
    ) -> None:
        """Takes what a poll does besides.

        ``rebalance`` does what the group demands, until a deadline; False if the consumer is in no group.
        ``commit_when_due`` begins automatic commits, and returns when to call it again.
        """
        self._client = client
        self._fetcher = fetcher
        self._positions = positions
        self.counters = fetcher.counters
        self._rebalance = rebalance
        self._commit_when_due = commit_when_due
        self._decoding = decoding
        self._interceptors = interceptors
        self._is_polled = False
        self._is_waiting = False
        self._since_poll = 0
        self.last_poll_ms = client.now_ms
        """When the application polled last, for ``max.poll.interval.ms``."""
        self.has_polled = False
        """Whether the application has polled at all."""

    def polling_ms(self) -> float:
        """Returns when the application polled last: now if a poll waits for records, however long."""
        return self._client.now_ms if self._is_waiting else self.last_poll_ms

    def refuse_second(self) -> None:
        """Refuses a call while another one polls.

        Raises:
            RuntimeError: another task polls.
        """
        if self._is_polled:
            raise RuntimeError("this consumer is being polled already, by another task or thread: one at a time may")

    async def poll(self, timeout_ms: float, take: Callable[[], list[T]]) -> list[T]:
        """Returns what ``take`` finds, or nothing after ``timeout_ms``.

        Raises:
            RuntimeError: another task polls.
            KafkaError: the application must decide; see ``Consumer.poll``.
        """
        self.refuse_second()
        self._is_polled = True
        began_ms = self._client.now_ms
        try:
            return await self._poll_until(began_ms + timeout_ms, take)
        finally:
            self._is_polled = self._is_waiting = False
            self.counters.polled_for(began_ms, self._client.now_ms)

    async def continue_poll(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns what ``work`` makes of polled records; no other task may poll meanwhile.

        Raises:
            RuntimeError: another task polls.
        """
        self.refuse_second()
        self._is_polled = True
        try:
            return await work()
        finally:
            self._is_polled = False
            self._fetcher.wake()  # records that were not decoded are fetched or taken again

    async def present(self, taken: list[ConsumedBatch]) -> list[ConsumedBatch[Any, Any]]:
        """Returns polled records as the application gets them: deserialized, counted and shown to the interceptors.

        The poll goes on while records are deserialized, so another task may not begin one.
        """
        batches = taken
        decoding = self._decoding
        if decoding is not None:
            batches = await self.continue_poll(lambda: decoding.decode(taken))
        self.count(sum(len(batch.records) for batch in batches))
        if self._interceptors and batches:
            return on_consume(self._interceptors, batches)
        return batches

    def count(self, records: int) -> None:
        """Counts records that reach the application."""
        self.counters.polled(records)

    async def _poll_until(self, deadline_ms: float, take: Callable[[], list[T]]) -> list[T]:
        client, fetcher = self._client, self._fetcher
        await trio.lowlevel.checkpoint()
        self.has_polled = True
        self.last_poll_ms = client.now_ms
        self._commit_when_due()
        while True:
            if await self._rebalance(deadline_ms):
                self.last_poll_ms = client.now_ms
            if (error := fetcher.next_error()) is not None:
                raise error
            if client.bootstrap_error is not None:
                raise client.bootstrap_error
            taken = self._take(take)
            if taken:
                return taken
            remaining_ms = deadline_ms - client.now_ms
            if remaining_ms <= 0 or client.is_closed:
                return []
            commit_ms = max(self._commit_when_due() - client.now_ms, _POLL_INTERVAL_MS)
            self._is_waiting = True
            with trio.move_on_after(min(remaining_ms, commit_ms) / 1000):
                await fetcher.arrived.wait()
            self._is_waiting = False

    def statistics(self) -> ConsumerStatistics:
        """Returns the consumer's numbers now."""
        last_poll_ms = self.last_poll_ms if self.has_polled else None
        return self.counters.statistics(self._positions.by_partition.values(), self._client.now_ms, last_poll_ms)

    def take_nowait(self, take: Callable[[], list[T]]) -> list[T]:
        """Returns what is buffered, without a poll; nothing if iteration has to poll now.

        Raises:
            RuntimeError: another task polls.
        """
        self._since_poll += 1
        if self._since_poll < _RECORDS_PER_POLL and self._client.now_ms - self.last_poll_ms < _POLL_INTERVAL_MS:
            self.refuse_second()
            return self._take(take)
        return []

    def iteration_polls(self) -> None:
        """Counts the records of iteration from here on."""
        self._since_poll = 0

    def _take(self, take: Callable[[], list[T]]) -> list[T]:
        chunks_ended = self._positions.chunks_ended
        taken = take()
        if self._positions.chunks_ended != chunks_ended:
            self._fetcher.wake()  # the buffers have room again
        return taken
