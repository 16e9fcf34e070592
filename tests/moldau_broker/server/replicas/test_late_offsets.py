"""Goal: offsets that a former leader sends late change no log: they are about a leadership that has ended meanwhile.

Method: the reset of two followed partitions alone. Each of them may move, in every way, while either question is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.runtime.tasks.sync import Signal
from moldau.values import BrokerId
from moldau_broker.log.values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from moldau_broker.replication.follower import Followed
from moldau_broker.server.replicas.replica_fetcher import _Source
from moldau_jepsen.world.world import run_world
from support.cluster.fetchers import fetchers_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_jepsen.world.world import World

TOPIC_ID, LEADER = UUID(int=7), BrokerId(2)
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
LOG_START, LOG_END = 4, 9
SHORTER, LATER, BEFORE = (0, 6), (20, 30), (0, 2)
"""Start and end of the leader's log: it demands a truncation, or that the follower's log starts over."""


@dataclass
class Follower:
    """The partitions that a broker follows from one leader, and those whose logs a reset has changed."""

    source: _Source
    partitions: dict[TopicPartition, Any]
    changed: list[TopicPartition] = field(default_factory=list)

    def change(self, partition: Any, *_: object) -> None:
        self.changed.append(partition.key)


def partition_of(key: TopicPartition) -> Any:
    log = SimpleNamespace(log_end_offset=LOG_END, latest_epoch=1, log_start_offset=LOG_START, is_settled=True)
    return SimpleNamespace(key=key, replica=SimpleNamespace(is_leader=False), log=log)


def followed(key: TopicPartition, leader_epoch: int) -> Followed:
    return Followed(
        key,
        TOPIC_ID,
        leader_epoch=leader_epoch,
        fetch_offset=LOG_END,
        last_fetched_epoch=1,
        log_start_offset=LOG_START,
    )


def follower_of(world: World) -> Follower:
    replicas: Any = SimpleNamespace(settled=Signal(), partitions={key: partition_of(key) for key in (FIRST, SECOND)})
    follower = Follower(_Source(fetchers_of(world, replicas), LEADER), replicas.partitions)
    replicas.follower_truncated = replicas.follower_restarted = follower.change
    return follower


def stays(follower: Follower, key: TopicPartition) -> None:
    """Nothing happens."""


def gets_another_leader(follower: Follower, key: TopicPartition) -> None:
    follower.source.core.remove(key)


def gets_the_leader_again(follower: Follower, key: TopicPartition) -> None:
    follower.source.core.add(followed(key, leader_epoch=2))


def is_led_here(follower: Follower, key: TopicPartition) -> None:
    follower.source.core.remove(key)
    follower.partitions[key].replica.is_leader = True


def is_deleted(follower: Follower, key: TopicPartition) -> None:
    follower.source.core.remove(key)
    del follower.partitions[key]


MOVES = (stays, gets_another_leader, gets_the_leader_again, is_led_here, is_deleted)


async def logs_changed(
    world: World,
    moves: dict[TopicPartition, Callable[[Follower, TopicPartition], None]],
    question: int,
    offsets: tuple[int, int],
) -> list[TopicPartition]:
    """Resets both partitions, which move while ``question`` is asked; returns those whose logs were changed."""
    follower = follower_of(world)
    entries = {key: followed(key, leader_epoch=1) for key in moves}
    for entry in entries.values():
        follower.source.core.add(entry)

    class Connection:
        async def request_as(self, response_class: type, request: ListOffsetsRequest, *_: object, **__: object) -> Any:
            await trio.lowlevel.checkpoint()
            timestamp = request.topics[0].partitions[0].timestamp
            if timestamp == question:
                for key, move in moves.items():
                    move(follower, key)
            found = [
                ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, offset=offsets[timestamp == LATEST_TIMESTAMP]
                )
                for each in request.topics[0].partitions
            ]
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=found)])

    connection: Any = Connection()
    steps: Any = [SimpleNamespace(followed=entry) for entry in entries.values()]
    await follower.source._reset(connection, steps)
    return list(dict.fromkeys(follower.changed))


def test_late_offsets_change_no_log_that_has_moved() -> None:
    """The next leader counts the records that the log holds by then; a cut would lose those that it has acknowledged.

    The log of the other partition is reset all the same.
    """

    async def main(world: World) -> None:
        questions, leaders = (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP), (SHORTER, LATER, BEFORE)
        for first, second, question, offsets in product(MOVES, MOVES, questions, leaders):
            moves = {FIRST: first, SECOND: second}
            expected = [key for key, move in moves.items() if move is stays]
            case = f"{first.__name__}, {second.__name__} at question {question}, leader's log {offsets}"
            assert await logs_changed(world, moves, question, offsets) == expected, case

    run_world(main, 1)
