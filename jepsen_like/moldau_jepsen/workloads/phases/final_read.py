"""Runs the last phase: a reader of committed data reads every partition from its beginning.

It ends when the reader has passed every acknowledged or polled offset, and the log end offsets of the leaders. An open
transaction would hide its records from the reader for ever, so the end offsets count only if readers of committed and
of uncommitted data get the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.reach import GAP_MAX
from moldau_jepsen.history import Kind, Poll, Status, TopicPartition
from moldau_jepsen.workloads.recording.payload import digest_of_record, number_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.consumer import ConsumedBatch
    from moldau_jepsen.workloads.recording.recorder import Recorder

POLL_TIMEOUT_MS = 500.0
RETRY_S = 0.2
ENDS_S = 5.0
"""Time limit of the last look-up of end offsets, after the reader's own time limit."""

MakeConsumer = Callable[[str], Consumer]
"""Makes an unopened consumer without a group that reads with the given ``isolation.level``."""


async def read_everything(
    make_consumer: MakeConsumer,
    isolation: str,
    partitions: Sequence[TopicPartition],
    recorder: Recorder,
    timeout_s: float,
) -> None:
    """Reads every partition from its beginning to its end, with readers of the ``isolation`` level.

    Adds one operation that is not OK if that does not happen within ``timeout_s``. If the reader's positions equal the
    end offsets that the leaders report after that time, the read is complete: acknowledged records beyond are lost.
    """
    process = recorder.new_process()
    wanted = {partition: recorder.reported_end.get(partition, 0) for partition in partitions}
    begun = recorder.now_ms()
    position = dict.fromkeys(partitions, 0)
    is_settled = False
    with trio.move_on_after(timeout_s) as scope:
        async with make_consumer(isolation) as consumer:
            consumer.assign(partitions)
            ends = await settled_ends(make_consumer, partitions)
            is_settled = True
            wanted = {partition: max(wanted[partition], ends[partition]) for partition in partitions}
            while any(position[part] < wanted[part] for part in partitions):
                begun_poll = recorder.now_ms()
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError:
                    await trio.sleep(RETRY_S)  # bounded by the deadline above
                    continue
                if batches:
                    part = polled(batches, timed=recorder.timed)
                    recorder.operation(process, Kind.POLL, Status.OK, begun_poll, part, final=True)
                for partition in partitions:
                    reached = consumer.position_nowait(partition) or 0
                    if reached < wanted[partition] + GAP_MAX:  # a reader far behind the end has not read what is before
                        position[partition] = max(position[partition], reached)
    if scope.cancelled_caught and not (is_settled and await _is_at_the_ends(make_consumer, position)):
        missing = {
            f"{part.topic}-{part.partition}": f"at {position[part]} of {wanted[part]}"
            for part in partitions
            if position[part] < wanted[part]
        }
        unsettled = "" if is_settled else ", and a transaction was open or no leader answered with the ends"
        text = f"not at the end after {timeout_s} s{unsettled}: {missing}"
        recorder.operation(process, Kind.POLL, Status.INFO, begun, final=True, error=text)


async def _is_at_the_ends(make_consumer: MakeConsumer, position: Mapping[TopicPartition, int]) -> bool:
    with trio.move_on_after(ENDS_S):
        ends = await settled_ends(make_consumer, list(position))
        return all(position[partition] >= end for partition, end in ends.items())
    return False


async def settled_ends(make_consumer: MakeConsumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of the partitions when no transaction is open in them. Bounded by the caller's deadline."""
    async with make_consumer("read_committed") as committed, make_consumer("read_uncommitted") as uncommitted:
        while True:
            stable = await end_offsets(committed, partitions)
            ends = await end_offsets(uncommitted, partitions)
            if stable == ends:
                return ends
            await trio.sleep(RETRY_S)


async def end_offsets(consumer: Consumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Ends of what the consumer sees, which may lie beyond what was acknowledged. Bounded by the caller's deadline."""
    while True:
        try:
            ends = await consumer.end_offsets(partitions)
        except KafkaError:
            await trio.sleep(RETRY_S)
            continue
        return {partition: ends[partition] for partition in partitions}


def polled(batches: Sequence[ConsumedBatch], *, timed: bool) -> Poll:
    """Returns the result of a poll in the history's form. ``Recorder`` explains ``timed``."""
    records: dict[TopicPartition, list[tuple[int, int]]] = {}
    digests: dict[TopicPartition, list[int]] = {}
    for batch in batches:
        partition = TopicPartition(batch.topic, batch.partition)
        records.setdefault(partition, []).extend((record.offset, number_of(record.value)) for record in batch.records)
        digests.setdefault(partition, []).extend(digest_of_record(record, timed=timed) for record in batch.records)
    return Poll(
        tuple((partition, tuple(pairs)) for partition, pairs in records.items()),
        tuple(tuple(each) for each in digests.values()),
    )
