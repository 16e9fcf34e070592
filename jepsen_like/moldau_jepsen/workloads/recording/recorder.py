"""Records a history while clients run, and assigns their numbers, times and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.log.reach import Reach
from moldau_jepsen.history import Evidence, Kind, Lead, MicroOperation, Operation, Status, TopicPartition
from moldau_jepsen.workloads.recording.payload import payload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from moldau.producer import Delivery
    from moldau.runtime.ports.environment import Clock
    from moldau_jepsen.history import Audit, Seek
    from moldau_jepsen.workloads.recording.payload import Payload


class Recorder:
    """The growing history of one run. It belongs to one event loop."""

    def __init__(
        self, clock: Clock, sink: Callable[[Operation], None], *, variety: bool = True, timed: bool = True
    ) -> None:
        """``sink`` gets every operation as it ends. Times count from now.

        ``variety``: records have keys and headers of all kinds, not only values. ``timed``: their timestamps come back
        as they were sent; brokers put on none of their own.
        """
        self._clock = clock
        self._sink = sink
        self._variety = variety
        self.timed = timed
        self._started_ms = clock.monotonic_ms()
        self._next_index = 0
        self._next_process = 0
        self._next_value: dict[TopicPartition, int] = {}
        self._led: set[Lead] = set()
        self.reported_end: dict[TopicPartition, int] = {}
        """Per partition the highest offset plus one that was acknowledged or polled: a read of everything must come at
        least so far. Every polled record is committed, also that of another client. An impossible offset, which a
        damaged batch may have, does not count: no reader can come there."""
        self._reaches: dict[TopicPartition, Reach] = {}
        self.acknowledged = 0
        self.polled = 0

    def now_ms(self) -> float:
        """Returns the milliseconds since the recorder began."""
        return self._clock.monotonic_ms() - self._started_ms

    def new_process(self) -> int:
        """Returns a number that no client had before."""
        self._next_process += 1
        return self._next_process - 1

    def new_value(self, partition: TopicPartition) -> int:
        """Returns the next value of a partition; values are dense from 0."""
        value = self._next_value.get(partition, 0)
        self._next_value[partition] = value + 1
        return value

    def payload(self, value: int, said: bytes = b"", padding_bytes: int = 0) -> Payload:
        """The record with this number, made now; ``said`` is what it holds beside the number."""
        now_ms = self._clock.wall_ms()
        return payload_of(value, now_ms, said, padding_bytes, variety=self._variety, timed=self.timed)

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
        leads: Iterable[Lead] = (),
        seeks: Iterable[Seek] = (),
        audit: Audit | None = None,
    ) -> None:
        """Adds an operation that has just ended; keeps only those ``leads`` that the history does not hold yet."""
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
            leads=self._unheard(leads),
            seeks=tuple(seeks),
            audit=audit,
        )
        self._next_index += 1
        self._led.update(operation.leads)
        if status is Status.OK and not aborted:
            for send in operation.sends:
                self.acknowledged += 1
                if send.offset is not None:
                    self._note_reported(send.partition, (send.offset,))
        for poll in operation.polls:
            for partition, pairs in poll.records:
                self.polled += len(pairs)
                self._note_reported(partition, (offset for offset, _ in pairs))
        self._sink(operation)

    def _note_reported(self, partition: TopicPartition, offsets: Iterable[int]) -> None:
        reach = self._reaches.setdefault(partition, Reach())
        for offset in offsets:
            reach.admits(offset)
        self.reported_end[partition] = reach.end

    def claim(self, process: int, begun_ms: float, leads: Iterable[Lead]) -> None:
        """Adds evidence of leaders, if any of it is new."""
        unheard = self._unheard(leads)
        if unheard:
            self.operation(process, Kind.CLAIM, Status.OK, begun_ms, leads=unheard)

    def _unheard(self, leads: Iterable[Lead]) -> tuple[Lead, ...]:
        return tuple(lead for lead in dict.fromkeys(leads) if lead not in self._led)


def acknowledgements(deliveries: Iterable[Delivery]) -> Iterable[Lead]:
    """Yields the leaders that acknowledged these records; skips records that were not acknowledged."""
    for delivery in deliveries:
        leader = delivery.acknowledged_by
        if leader is not None:
            partition = TopicPartition(delivery.topic, delivery.partition)
            yield Lead(partition, leader[1], leader[0], Evidence.ACKNOWLEDGED)


class Rebalances:
    """Counts a consumer's rebalances by its callbacks.

    The generation is not enough: a member that lost its partitions and joins again may get the same generation if
    nothing else has changed, and its positions start over from the committed offsets.
    """

    def __init__(self) -> None:
        """No answer came."""
        self.count = 0

    async def reported(self, _partitions: Sequence[TopicPartition]) -> None:
        """For ``on_assigned`` and ``on_revoked``."""
        self.count += 1
