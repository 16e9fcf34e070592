"""Goal: a fetch offset counts as replicated if, and only if, the follower's log is a prefix of the leader's.

Method: all pairs of short logs that elections can bring about, with up to three leader epochs and four records. Two
logs that hold an epoch are equal up to its first record, because one leader wrote it (Raft's log matching).
"""

from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import OffsetOutOfRangeError
from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
from moldau_broker.replication.fetch_session import FetchPartition, FetchSession
from moldau_broker.replication.replica import PartitionState, Replica, Role
from moldau_broker.server.data_path.follower_positions import FollowerPositions

EPOCHS = (0, 1, 2)
RECORDS_MAX = 4
Log = tuple[int, ...]  # the leader epoch of each record


def logs() -> list[Log]:
    return [log for count in range(RECORDS_MAX + 1) for log in combinations_with_replacement(EPOCHS, count)]


def led(log: Log) -> Any:
    """Returns a partition whose leader has the log, and its epochs."""
    epochs = LeaderEpochCache(SimpleNamespace(), "epochs")  # type: ignore[arg-type]
    for offset, epoch in enumerate(log):
        epochs.assign(epoch, offset)
    end = len(log)
    return SimpleNamespace(
        log=SimpleNamespace(
            epochs=epochs,
            log_start_offset=0,
            log_end_offset=end,
            storage=SimpleNamespace(log_end_offset=end),
            end_offset_for_epoch=lambda epoch: epochs.end_offset_for(epoch, end),
        )
    )


def fetched(log: Log) -> FetchPartition:
    """Returns what a follower with the log asks for."""
    last = log[-1] if log else -1
    return FetchPartition(b"t", 0, len(log), 1 << 20, LeaderEpoch(9), last_fetched_epoch=last)


def possible(leader: Log, follower: Log) -> bool:
    return all(leader[: leader.index(epoch)] == follower[: follower.index(epoch)] for epoch in {*leader} & {*follower})


def test_only_a_prefix_agrees():
    positions = FollowerPositions(SimpleNamespace())  # type: ignore[arg-type]
    agreed = 0
    for leader, follower in product(logs(), repeat=2):
        if not possible(leader, follower):
            continue
        partition, wanted = led(leader), fetched(follower)
        is_prefix = leader[: len(follower)] == follower
        assert positions.agrees(partition, wanted) == is_prefix, (leader, follower)
        agreed += is_prefix
    assert agreed > len(logs())  # each log agrees with itself, and with longer ones


def test_a_diverging_follower_learns_an_earlier_place():
    """The answer keeps all that both logs share, and makes the follower's log shorter."""
    positions = FollowerPositions(SimpleNamespace())  # type: ignore[arg-type]
    diverged = 0
    for leader, follower in product(logs(), repeat=2):
        # A leader without the epoch, and without a later one, is not up to date: see the test below.
        if not leader or not follower or follower[-1] > leader[-1] or not possible(leader, follower):
            continue
        diverging = positions.diverging(led(leader), fetched(follower))
        if diverging is None:
            continue
        diverged += 1
        epoch, end_offset = diverging
        assert end_offset == sum(each <= epoch for each in leader)
        common = max(count for count in range(len(leader) + 1) if leader[:count] == follower[:count])
        kept = min(end_offset, sum(each <= epoch for each in follower))
        assert common <= kept < len(follower), (leader, follower)
    assert diverged > 20


@pytest.mark.parametrize("leader", [(), (0,), (0, 1)])
def test_a_later_epoch_than_all_of_the_leader_is_out_of_range(leader):
    positions = FollowerPositions(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(OffsetOutOfRangeError):
        positions.diverging(led(leader), fetched((2,)))
    assert not positions.agrees(led(leader), fetched((2,)))


def test_a_follower_with_as_many_other_records_is_answered():
    """Its fetch must not wait for news: the answer tells it where to truncate."""
    query: Any = SimpleNamespace(version=17)
    equal = 0
    for leader, follower in product(logs(), repeat=2):
        if len(leader) != len(follower) or not possible(leader, follower):
            continue
        partition, wanted = led(leader), fetched(follower)
        partition.error = ErrorCode.NONE
        partition.replica = SimpleNamespace(
            log_end_offset=len(leader), high_watermark=0, role=Role.LEADER, state=SimpleNamespace(leader_epoch=9)
        )
        wanted.sent_high_watermark = wanted.sent_log_start_offset = 0
        replicas: Any = SimpleNamespace(by_raw_id={(b"t", 0): partition})
        assert FollowerPositions(replicas).has_nothing_new(query, wanted) == (leader == follower), (leader, follower)
        equal += leader == follower
    assert equal == len(logs())


def test_a_follower_that_registered_again_is_looked_at_whole():
    """The present broker epoch must be known to the leader, or the follower cannot join the ISR."""
    replicas: Any = SimpleNamespace(lag_time_max_ms=8_000, by_raw_id={}, by_raw_name={})
    positions = FollowerPositions(replicas)
    session = FetchSession(1, privileged=True, uses_topic_ids=True, now_ms=0)
    wanted = [FetchPartition(b"t", number, 0, 1 << 20) for number in range(2)]
    for each in wanted:
        session.add(each)
        session.at_rest(each)
    session.confirmed_ms, session.replica_epoch = 1_000, 5
    query: Any = SimpleNamespace(replica_id=2, replica_epoch=5, version=17)
    assert list(positions.unconfirmed(query, session, session.due_partitions(), 1_500)) == []
    assert session.confirmed_ms == 1_500, "a fetch confirms what is at rest, also if nothing else is due"
    query.replica_epoch = 6
    assert list(positions.unconfirmed(query, session, session.due_partitions(), 1_500)) == wanted
    assert session.replica_epoch == 6


END, START, ALIVE = 5, 2, {1: 10, 2: 20}


class Resting:
    """A leader of one partition, and a session of a follower that has all of it."""

    def __init__(self) -> None:
        self.replica = Replica(1, high_watermark=0, log_end_offset=END, lag_time_max_ms=1e9, min_insync_replicas=1)
        self.replica.apply(self.state(), END, 0)
        self.replica.followed(2, 20, END, START, 0, ALIVE)
        assert self.replica.high_watermark == END
        self.partition: Any = SimpleNamespace(
            error=ErrorCode.NONE,
            replica=self.replica,
            log=SimpleNamespace(storage=SimpleNamespace(log_start_offset=START)),
        )
        self.wanted = FetchPartition(b"t", 0, END, 1 << 20, LeaderEpoch(1), log_start_offset=START)
        self.wanted.sent_high_watermark, self.wanted.sent_log_start_offset = END, START
        self.wanted.agreed_epoch = 1
        self.replicas: Any = SimpleNamespace(by_raw_id={(b"t", 0): self.partition})
        self.session = FetchSession(1, privileged=True, uses_topic_ids=True, now_ms=0)
        self.session.add(self.wanted)
        self.session.replica_epoch = 20

    def state(self, leader: int = 1, epoch: int = 1, version: int = 1, isr: tuple[int, ...] = (1, 2)) -> Any:
        numbers: Any = {"leader": leader, "leader_epoch": epoch, "partition_epoch": version, "isr": isr}
        return PartitionState(replicas=(1, 2), **numbers)

    def looks(self, broker_epoch: int = 20) -> bool:
        """Returns whether the leader looks at the partition for the next fetch."""
        query: Any = SimpleNamespace(replica_id=2, replica_epoch=broker_epoch, version=17)
        found = FollowerPositions(self.replicas).unconfirmed(query, self.session, self.session.due_partitions(), 1)
        assert bool(found) is bool(self.session.due), "what is not looked at is at rest"
        return bool(found)


def append(resting: Resting) -> None:
    resting.replica.log_end_moved(END + 1, 0, ALIVE)


def delete_records(resting: Resting) -> None:
    resting.partition.log.storage.log_start_offset += 1


def leave_out_the_high_watermark(resting: Resting) -> None:
    resting.wanted.sent_high_watermark -= 1


def end_the_replica(resting: Resting) -> None:
    resting.partition.error = ErrorCode.KAFKA_STORAGE_ERROR


def forget_the_replica(resting: Resting) -> None:
    resting.replicas.by_raw_id.clear()


def lead_in_a_new_epoch(resting: Resting) -> None:
    resting.replica.apply(resting.state(epoch=2, version=2), END, 0)


def follow_another(resting: Resting) -> None:
    resting.replica.apply(resting.state(leader=2, epoch=2, version=2), END, 0)


def shrink(resting: Resting) -> None:
    resting.replica.apply(resting.state(version=2, isr=(1,)), END, 0)


def be_behind(resting: Resting) -> None:
    resting.wanted.fetch_offset -= 1


def start_later(resting: Resting) -> None:
    resting.wanted.log_start_offset += 1


def be_unchecked(resting: Resting) -> None:
    resting.wanted.agreed_epoch = -1


@pytest.mark.parametrize(
    "change",
    [
        append,
        delete_records,
        leave_out_the_high_watermark,
        end_the_replica,
        forget_the_replica,
        lead_in_a_new_epoch,
        follow_another,
        shrink,
        be_behind,
        start_later,
        be_unchecked,
    ],
)
def test_a_partition_rests_only_while_nothing_is_new(change):
    """Between two fetches of a follower, any single change is enough for a look; without one there is none."""
    resting = Resting()
    assert not resting.looks()
    assert resting.wanted.progress is resting.replica.follower(2), "later fetches confirm it until something is new"
    assert Resting().looks(broker_epoch=21), "the follower has registered again"
    changed = Resting()
    change(changed)
    assert changed.looks()


class Noted(list[Any]):
    """Notes what is put into it, hashable or not."""

    def __setitem__(self, key: Any, _: object) -> None:
        self.append(key)


def test_only_what_agrees_counts_as_replicated():
    """The leader would else commit a record that the follower holds another one for, at the same offset.

    A follower that lacks records is looked at until it has them: no append may follow that would make the leader look.
    """
    replicas: Any = MagicMock()  # one for all: each takes longer than its case
    for leader, follower in product(logs(), repeat=2):
        if not possible(leader, follower):
            continue
        for access, start in product((ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH), (0, 2)):
            noted: list[int] = []
            partition = led(leader)
            partition.log.storage.log_start_offset = start
            partition.check_access = lambda *_, code=access, **__: code
            partition.replica = SimpleNamespace(
                followed=lambda *fetch, noted=noted: noted.append(fetch[2]) or SimpleNamespace(error=ErrorCode.NONE),
                state=SimpleNamespace(leader_epoch=9),
                log_end_offset=len(leader),
            )
            replicas.by_raw_name, replicas.may_lag = {(b"t", 0): partition}, Noted()
            query: Any = SimpleNamespace(version=12, replica_id=2, replica_epoch=5)
            errors, has_all = FollowerPositions(replicas).note(query, [fetched(follower)], 0.0)
            counts = access is ErrorCode.NONE and len(follower) >= start and leader[: len(follower)] == follower
            case = leader, follower, access, start
            assert noted == [len(follower)] * counts, case
            assert (errors, has_all) == ({}, counts and len(follower) == len(leader)), case
            assert replicas.may_lag == [partition] * (counts and not has_all), case


@pytest.mark.parametrize("refusal", ["unknown", "fenced", "below the log start", "diverging", "not a replica"])
def test_a_refused_partition_hides_no_other_one(refusal):
    """The high watermarks of the partitions behind it would stand still, and the follower would leave their ISRs."""
    noted: list[int] = []

    def partition(number: int) -> Any:
        found = led((0, 1))
        found.log.storage.log_start_offset = 0
        found.check_access = lambda *_, **__: ErrorCode.NONE
        answer = SimpleNamespace(error=ErrorCode.NONE)
        found.replica = SimpleNamespace(
            followed=lambda *_: noted.append(number) or answer,
            state=SimpleNamespace(leader_epoch=9),
            log_end_offset=2,
        )
        return found

    partitions = {(b"t", number): partition(number) for number in range(3)}
    refused = partitions[b"t", 1]
    if refusal == "unknown":
        del partitions[b"t", 1]
    elif refusal == "fenced":
        refused.check_access = lambda *_, **__: ErrorCode.FENCED_LEADER_EPOCH
    elif refusal == "below the log start":
        refused.log.storage.log_start_offset = 3
    elif refusal == "diverging":
        refused.log.end_offset_for_epoch = led((0, 0)).log.end_offset_for_epoch
        refused.log.epochs = led((0, 0)).log.epochs
    else:
        refused.replica.followed = lambda *_: SimpleNamespace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    wanted = [FetchPartition(b"t", number, 2, 1 << 20, LeaderEpoch(9), last_fetched_epoch=1) for number in range(3)]
    replicas: Any = MagicMock(by_raw_name=partitions)
    query: Any = SimpleNamespace(version=12, replica_id=2, replica_epoch=5)
    errors, has_all = FollowerPositions(replicas).note(query, wanted, 0.0)
    assert (noted, has_all) == ([0, 2], False)
    assert replicas.waits.follower_noted.called, "a low watermark may have moved"
    assert errors == ({1: ErrorCode.NOT_LEADER_OR_FOLLOWER} if refusal == "not a replica" else {})
