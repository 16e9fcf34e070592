"""Goal: a follower whose log differs from the leader's keeps exactly the records that both have (KIP-595).

Method: all short histories of four leader epochs, in which each leader begins with a part of an earlier log. The real
leader says where the logs diverge, and the real follower truncates, until they agree.
"""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.runtime.tasks.sync import Signal
from moldau.values import BrokerId
from moldau_broker.log.files.checkpoint import EpochEntry
from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
from moldau_broker.log.values import EpochEndOffset, TopicPartition
from moldau_broker.replication.follower import Followed
from moldau_broker.server.data_path.follower_positions import FollowerPositions
from moldau_broker.server.replicas.replica_fetcher import _Source
from moldau_jepsen.world.world import run_world
from support.cluster.fetchers import fetchers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_jepsen.world.world import World

History = tuple[int, ...]
"""The leader epoch of each record of a log."""
KEY, TOPIC_ID = TopicPartition("t", 0), UUID(int=7)
LEADERS, RECORDS_MAX = 4, 2
"""Leader epochs, and the records that one leader appends at most."""


class Log:
    """A log that has leader epochs, and no records."""

    log_start_offset = 0
    is_settled = True

    def __init__(self, history: History) -> None:
        self.history = history

    @property
    def log_end_offset(self) -> int:
        return len(self.history)

    @property
    def storage(self) -> Log:
        return self

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest_epoch

    @property
    def epochs(self) -> LeaderEpochCache:
        disk: Any = None
        starts = [(epoch, self.history.index(epoch)) for epoch, _ in groupby(self.history)]
        return LeaderEpochCache(
            disk, "", [EpochEntry(leader_epoch=epoch, start_offset=offset) for epoch, offset in starts]
        )

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)


def prefixes(history: History) -> list[History]:
    return [history[:length] for length in range(len(history) + 1)]


def logs_of_leaders(former: tuple[History, ...] = ()) -> Iterator[tuple[History, ...]]:
    """Yields the logs of all leaders in turn, each of which begins with a part of an earlier one."""
    epoch = len(former) + 1
    if epoch > LEADERS:
        yield former
        return
    for start in dict.fromkeys(start for log in former or ((),) for start in prefixes(log)):
        for count in range(1, RECORDS_MAX + 1):
            yield from logs_of_leaders((*former, start + (epoch,) * count))


def histories() -> dict[tuple[History, History], None]:
    """Returns the log of the newest leader, and a log that a follower may have: a part of the log of any leader."""
    return {(logs[-1], held): None for logs in logs_of_leaders() for log in logs for held in prefixes(log)}


def in_common(one: History, other: History) -> int:
    """Returns the number of records that two logs share; records of one epoch and offset are the same."""
    return next(
        (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def agreed(source: _Source, positions: FollowerPositions, partition: Any, leader: History) -> int:
    """Lets the follower truncate until the logs agree; returns how often it did."""
    led: Any = SimpleNamespace(log=Log(leader))
    for count in range(len(leader) + 3):
        log = partition.log
        wanted: Any = SimpleNamespace(last_fetched_epoch=log.latest_epoch, fetch_offset=log.log_end_offset)
        diverging = positions.diverging(led, wanted)
        if diverging is None:
            return count
        followed = Followed(
            KEY,
            TOPIC_ID,
            leader_epoch=LEADERS,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.latest_epoch,
            log_start_offset=0,
        )
        source.core.add(followed)
        epoch, end_offset = diverging
        step: Any = SimpleNamespace(
            followed=followed, answer=SimpleNamespace(diverging_epoch=epoch, diverging_end_offset=end_offset)
        )
        source._truncate(partition, step)
    raise AssertionError("the logs never agree")


def test_a_follower_keeps_what_it_has_in_common_with_its_leader() -> None:
    """It may have records of a leader of which the new one has none, and the other way round."""

    def truncate(partition: Any, offset: int) -> None:
        assert 0 <= offset <= len(partition.log.history)
        partition.log = Log(partition.log.history[:offset])

    async def main(world: World) -> int:
        replicas: Any = SimpleNamespace(settled=Signal(), follower_truncated=truncate)
        source, positions = _Source(fetchers_of(world, replicas), BrokerId(2)), FollowerPositions(replicas)
        longest = 0
        for leader, held in histories():
            partition: Any = SimpleNamespace(key=KEY, log=Log(held))
            rounds = agreed(source, positions, partition, leader)
            case = f"{held} follows {leader}"
            assert partition.log.history == held[: in_common(leader, held)], case
            assert rounds <= len(set(held)), f"{case}: a round for each epoch is enough"
            longest = max(longest, rounds)
        return longest

    assert run_world(main, 1) == 2, "the histories need one in which an answer does not lead to the end at once"
