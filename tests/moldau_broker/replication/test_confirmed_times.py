"""Goal: a leader knows as much of a follower whose partitions are at rest as if it looked at them with each fetch.

Method: the same random fetches, appends and metadata: once with a look at each partition in each fetch, and once with a
fetch session, in which partitions at rest are not looked at.
"""

from __future__ import annotations

import random

import pytest

from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.replication.fetch_session import FetchPartition, FetchSession, FetchSessionCache, SessionIndex
from moldau_broker.replication.replica import NO_EFFECTS, PartitionState, Replica

LAG_MS = 1_000.0
ALIVE = {BrokerId(1): 10, BrokerId(2): 20}
PARTITIONS = 3


def led(partition_epoch: int = 0) -> PartitionState:
    return PartitionState(
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(1),
        partition_epoch=partition_epoch,
        replicas=(BrokerId(1), BrokerId(2)),
        isr=(BrokerId(1), BrokerId(2)),
    )


def leader() -> Replica:
    subject = Replica(
        BrokerId(1), high_watermark=Offset(0), log_end_offset=Offset(0), lag_time_max_ms=LAG_MS, min_insync_replicas=1
    )
    subject.apply(led(), Offset(0), 0.0)
    return subject


def look(subject: Replica, offset: int, now: float) -> bool:
    """Handles a fetch of the follower; returns whether it only confirmed the last one."""
    if subject.confirmed(BrokerId(2), 20, offset, 0, 1, now):
        return True
    subject.followed(BrokerId(2), 20, Offset(offset), Offset(0), now, ALIVE)
    return False


def times(subject: Replica) -> tuple[float, float]:
    progress = subject.follower(BrokerId(2))
    assert progress is not None
    return progress.last_caught_up_ms, progress.last_fetch_ms


class Lazy:
    """Leaders of some partitions, and the session of their follower."""

    def __init__(self) -> None:
        self.leaders = [leader() for _ in range(PARTITIONS)]
        self.index = SessionIndex()
        self.cache = FetchSessionCache(slots_max=2, index=self.index)
        self.session: FetchSession | None = None
        self.made = self.looks = 0

    def fetch(self, named: dict[int, int], forgotten: list[int], offsets: list[int], now: float) -> None:
        """A fetch that names some partitions with their offsets; the first one opens the session."""
        self.made += 1
        begins = self.session is None
        context = self.cache.open(
            0 if self.session is None else self.session.session_id,
            0 if self.session is None else self.session.epoch,
            [
                FetchPartition(b"t", each, offset, 1, LeaderEpoch(1), log_start_offset=0)
                for each, offset in named.items()
            ],
            [(b"t", each) for each in forgotten],
            privileged=True,
            uses_topic_ids=True,
            now_ms=now,
            fresh_id=self.made,
        )
        self.session = context.session
        assert self.session is not None
        due = self.session.due_partitions()
        self.session.confirmed_ms = now
        for wanted in due:
            subject = self.leaders[wanted.partition]
            self.looks += 1
            assert wanted.fetch_offset == offsets[wanted.partition]
            if look(subject, wanted.fetch_offset, now) and not begins:
                self.session.at_rest(wanted, subject.follower(BrokerId(2)))

    def changed(self, number: int) -> None:
        self.index.changed((b"t", number), (b"name", number))


@pytest.mark.parametrize("seed", range(20))
def test_times_are_known_when_they_count(seed: int) -> None:
    drawn, now = random.Random(seed), 0.0
    lazy, eager = Lazy(), [leader() for _ in range(PARTITIONS)]
    offsets, epochs = [0] * PARTITIONS, [0] * PARTITIONS
    followed = set(range(PARTITIONS))
    named = dict(enumerate(offsets))
    for _ in range(300):
        now += drawn.choice([1, 10, 100, LAG_MS])
        number = drawn.randrange(PARTITIONS)
        pair = lazy.leaders[number], eager[number]
        kind = drawn.random()
        if kind < 0.15:
            for subject in pair:
                subject.log_end_moved(Offset(subject.log_end_offset + 1), now, ALIVE)
            lazy.changed(number)
            assert times(pair[0]) == times(pair[1]), "the lag counts from now on"
        elif kind < 0.2:
            epochs[number] += 1
            for subject in pair:
                subject.apply(led(epochs[number]), subject.log_end_offset, now)
            lazy.changed(number)
        elif kind < 0.25 and lazy.session is not None:
            lazy.cache.close(lazy.session.session_id)
            lazy.session, named = None, {each: offsets[each] for each in followed}
            assert [times(subject) for subject in lazy.leaders] == [times(subject) for subject in eager]
        elif kind < 0.35:
            followed ^= {number}
            if number in followed:
                named[number] = offsets[number]
        else:
            for each in followed:
                end = eager[each].log_end_offset
                if offsets[each] != end and drawn.random() < 0.7:
                    offsets[each] = named[each] = end  # an answer brought the records
                elif end > 0 and drawn.random() < 0.02:
                    offsets[each] = named[each] = end - 1  # the follower has lost its last record
            if not followed:
                continue
            known = set() if lazy.session is None else {each for _, each in lazy.session.partitions}
            lazy.fetch(
                {each: named[each] for each in sorted(named) if each in followed},
                sorted(known - followed),
                offsets,
                now,
            )
            named = {}
            for each in sorted(followed):
                look(eager[each], offsets[each], now)
        for subject, other in zip(lazy.leaders, eager, strict=True):
            if not subject.may_lag:
                assert subject.tick(now, ALIVE) is NO_EFFECTS
            elif times(subject) != times(other):
                raise AssertionError("a follower lacks records, and its lag is not known")
    assert lazy.looks < 300 * PARTITIONS * 0.6


def test_a_session_at_rest_is_not_looked_at() -> None:
    lazy = Lazy()
    lazy.fetch(dict.fromkeys(range(PARTITIONS), 0), [], [0] * PARTITIONS, 1.0)
    lazy.fetch({}, [], [0] * PARTITIONS, 2.0)
    looks = lazy.looks
    for now in range(3, 100):
        lazy.fetch({}, [], [0] * PARTITIONS, float(now))
    assert lazy.looks == looks
    assert times(lazy.leaders[0]) == (2.0, 2.0)
    lazy.changed(0)
    assert [times(subject)[0] for subject in lazy.leaders] == [99.0, 2.0, 2.0]
