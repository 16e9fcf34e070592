"""Writes a history while clients run: numbers, times and values are given out in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.history import Kind, MicroOperation, Operation, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.environment import Clock


class Recorder:
    """The history of one run, as it grows. Belongs to one event loop."""

    def __init__(self, clock: Clock, sink: Callable[[Operation], None]) -> None:
        """``sink`` gets every operation as it ends. Times count from now."""
        self._clock = clock
        self._sink = sink
        self._started_ms = clock.monotonic_ms()
        self._next_index = 0
        self._next_process = 0
        self._next_value: dict[TopicPartition, int] = {}
        self.acknowledged_end: dict[TopicPartition, int] = {}
        """Per partition the highest acknowledged offset plus one: a final read must come at least so far."""
        self.polled_end: dict[TopicPartition, int] = {}
        """Per partition the highest polled offset plus one. What was polled is committed, whoever sent it: a final read
        must come so far, too."""
        self.acknowledged = 0
        self.polled = 0

    def now_ms(self) -> float:
        """Milliseconds since the recorder began."""
        return self._clock.monotonic_ms() - self._started_ms

    def new_process(self) -> int:
        """A number that no client had before."""
        self._next_process += 1
        return self._next_process - 1

    def new_value(self, partition: TopicPartition) -> int:
        """The next value of a partition; values are dense from 0."""
        value = self._next_value.get(partition, 0)
        self._next_value[partition] = value + 1
        return value

    def operation(
        self,
        process: int,
        kind: Kind,
        status: Status,
        begun_ms: float,
        *parts: MicroOperation,
        aborted: bool = False,
        rebalanced: bool = False,
        final: bool = False,
        partitions: tuple[TopicPartition, ...] = (),
        generation: int = -1,
        group: str = "",
        error: str = "",
    ) -> None:
        """Adds an operation that has just ended."""
        operation = Operation(
            index=self._next_index,
            process=process,
            kind=kind,
            status=status,
            begun_ms=begun_ms,
            ended_ms=self.now_ms(),
            operations=parts,
            aborted=aborted,
            rebalanced=rebalanced,
            final=final,
            partitions=partitions,
            generation=generation,
            group=group,
            error=error,
        )
        self._next_index += 1
        if status is Status.OK and not aborted:
            for send in operation.sends:
                self.acknowledged += 1
                if send.offset is not None:
                    end = self.acknowledged_end.get(send.partition, 0)
                    self.acknowledged_end[send.partition] = max(end, send.offset + 1)
        for poll in operation.polls:
            for partition, pairs in poll.records:
                self.polled += len(pairs)
                end = max((offset for offset, _ in pairs), default=-1) + 1
                self.polled_end[partition] = max(end, self.polled_end.get(partition, 0))
        self._sink(operation)


class Rebalances:
    """Counts what a consumer is told about its partitions, by callbacks.

    The generation does not tell: a member that lost its partitions and joins again is given the same generation when
    nothing else has changed, and its positions start over from the committed offsets.
    """

    def __init__(self) -> None:
        """Nothing was told."""
        self.count = 0

    async def told(self, _partitions: Sequence[TopicPartition]) -> None:
        """For ``on_assigned`` and ``on_revoked``."""
        self.count += 1
