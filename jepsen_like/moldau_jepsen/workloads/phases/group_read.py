"""Reads whole topics as applications do: as the only member of a new group.

The member subscribes, finds its coordinator, joins, gets every partition and begins at the earliest offset, because the
group has committed none. The reader of ``final_read`` uses no group. The read ends when it has passed, in every
partition, the highest offset that was acknowledged or polled before it began; so other clients may continue meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.reach import GAP_MAX
from moldau_jepsen.history import Kind, Status, TopicPartition
from moldau_jepsen.workloads.phases.final_read import POLL_TIMEOUT_MS, RETRY_S, polled
from moldau_jepsen.workloads.recording.recorder import Rebalances

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.consumer import Consumer
    from moldau_jepsen.workloads.recording.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRead:
    """The result of one read."""

    seen: dict[TopicPartition, set[int]]
    """The values that it returned, by partition."""
    unread: str
    """Its positions at the time limit, if it did not finish."""


async def read_in_group(
    make_consumer: Callable[[Rebalances], Consumer],
    group: str,
    partitions: Sequence[TopicPartition],
    recorder: Recorder,
    timeout_s: float,
) -> GroupRead:
    """Reads every partition from its beginning, as the only member of ``group``, for at most ``timeout_s``.

    Args:
        make_consumer: Makes an unopened consumer of the group, which reads from the earliest offset, commits nothing,
            and reports its rebalances.
        group: Its id, for the history.
        partitions: All partitions of the topics that are subscribed to.
        recorder: Gets every poll; none of them counts as part of the final phase.
        timeout_s: Seconds.
    """
    process = recorder.new_process()
    reported = {partition: recorder.reported_end.get(partition, 0) for partition in partitions}
    position = dict.fromkeys(partitions, 0)
    seen: dict[TopicPartition, set[int]] = {partition: set() for partition in partitions}
    rebalances = Rebalances()
    joined = rebalances.count
    with trio.move_on_after(timeout_s):
        async with make_consumer(rebalances) as consumer:
            consumer.subscribe(dict.fromkeys(partition.topic for partition in partitions))
            while any(position[part] < reported[part] for part in partitions):
                begun = recorder.now_ms()
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError:
                    await trio.sleep(RETRY_S)  # bounded by the deadline above
                    continue
                moved, joined = rebalances.count != joined, rebalances.count
                if moved:  # without a generation: the owners of another group's partitions do not compete with these
                    owned = tuple(TopicPartition(*partition) for partition in consumer.assignment)
                    recorder.operation(process, Kind.SUBSCRIBE, Status.OK, begun, partitions=owned)
                if batches:
                    part = polled(batches, timed=recorder.timed)
                    recorder.operation(process, Kind.POLL, Status.OK, begun, part, rebalanced=moved, group=group)
                    for partition, pairs in part.records:
                        seen[partition].update(value for _, value in pairs)
                for partition in consumer.assignment:
                    place = TopicPartition(*partition)
                    reached = consumer.position_nowait(place) or 0
                    if reached < reported[place] + GAP_MAX:  # far behind the end it has not read what is before
                        position[place] = max(position[place], reached)
    behind = [
        f"{part.topic}-{part.partition} at {position[part]} of {reported[part]}"
        for part in partitions
        if position[part] < reported[part]
    ]
    text = f"a new member of group {group} read {', '.join(behind)} in {timeout_s:g} s" if behind else ""
    return GroupRead(seen=seen, unread=text)
