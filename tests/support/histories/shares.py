"""A small share-partition: two members, its leaders one after the other, and the share coordinator of its state.

Each action is one step: a member acquires, accepts, releases, or ends its session; a lock expires; a write reaches the
coordinator, is committed, loses its answer, is repeated, or arrives after its sender gave it up; another leader takes
over, and the former one still serves a member; another coordinator loads the log.

A record whose acceptance was confirmed is never delivered again. A record is held by one member at a time, is delivered
at most as often as allowed, and is done only if a member said so or it was delivered that often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.share.core.requests import Initialize, Read, Write
from moldau_broker.server.share.core.share_partition import SharePartition
from moldau_broker.server.share.core.values import (
    AcknowledgementBatch,
    AcknowledgeType,
    AcquireMode,
    Effects,
    Persist,
    RecordState,
    ShareLimits,
    StateBatch,
)
from support.coordinator.share_world import ShareDriver, batches_of, key
from support.coordinator.share_world import write as write_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from support.histories.explorer import Action

LOG_END, DELIVERIES_MAX, LOCK_MS = 2, 2, 100
LIMITS = ShareLimits(delivery_count_max=DELIVERIES_MAX, record_locks_max=10, lock_duration_ms=LOCK_MS)
LEADERS_MAX = 2
LATE_MAX = 1
ACQUISITIONS_MAX = 5
MEMBERS = ("A", "B")


class Leader:
    """A leader of the partition, and what its members asked of it."""

    def __init__(self, partition: SharePartition, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.write: Write | None = None
        """The write under way; ``sent`` names the request with which the coordinator knows it."""
        self.sent: int | None = None
        self.asked: dict[int, list[tuple[str, int, AcknowledgeType | None]]] = {}
        """By token: member, offset and verdict of each record; None for the end of a session."""
        self.holds: dict[int, tuple[str, float]] = {}
        """By offset: the member that holds the record, and until when."""


class ShareDelivery:
    """The world."""

    def __init__(self) -> None:
        self.coordinator = ShareDriver(auto_commit=False)
        self.coordinator.send((key(), Initialize(state_epoch=0, start_offset=0)))
        self.coordinator.commit()
        self.now = 0.0
        self.leader = self._new_leader(0)
        self.former: Leader | None = None
        self.late: list[Write] = []
        """Copies of writes that their senders do not wait for any more."""
        self.accepted: set[int] = set()
        """Offsets whose acceptance was confirmed."""
        self.verdicts: set[int] = set()
        """Offsets that a member accepted, whatever the answer was."""
        self.deliveries = dict.fromkeys(range(LOG_END), 0)
        self.acquisitions = self.failovers = self.lates = 0

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        leader, former = self.leader, self.former
        if self.acquisitions < ACQUISITIONS_MAX:
            found += [("acquire", member) for member in MEMBERS]
        for offset, (member, _) in sorted(leader.holds.items()):
            found += [("accept", member, offset), ("release", member, offset)]
        found += [("end_session", member) for member in MEMBERS if member in {who for who, _ in leader.holds.values()}]
        if leader.holds:
            found.append(("expire",))
        if leader.write is not None and leader.sent is None:
            found.append(("deliver",))
        if leader.write is not None:
            found.append(("give_up",))
            if self.lates < LATE_MAX:
                found.append(("repeat",))
        if self.late:
            found.append(("deliver_late",))
        if self.coordinator.uncommitted:
            found.append(("commit",))
        if leader.epoch < LEADERS_MAX:
            found.append(("change_leader",))
        if former is not None:
            found += [("accept_at_former", member, offset) for offset, (member, _) in sorted(former.holds.items())]
            if former.write is not None and former.sent is None:
                found.append(("deliver_of_former",))
        if not self.failovers:
            found += [("fail_over", False), ("fail_over", True)]
        return found

    def acquire(self, member: str) -> None:
        """A member takes the next record."""
        self.acquisitions += 1
        leader = self.leader
        offset = leader.partition.next_fetch_offset
        found = leader.partition.acquire(
            member,
            [(each, each + 1) for each in range(offset, LOG_END)],
            fetch_offset=offset,
            records_max=1,
            batch_size=1,
            mode=AcquireMode.RECORD_LIMIT,
            now_ms=self.now,
        )
        for each in found:
            for taken in range(each.first, each.last + 1):
                assert taken not in self.accepted, f"record {taken} is delivered after its acceptance was confirmed"
                assert taken not in leader.holds, f"record {taken} is held by {leader.holds[taken][0]} and by {member}"
                assert each.delivery_count <= DELIVERIES_MAX, f"record {taken} is delivered too often"
                self.deliveries[taken] += 1
                leader.holds[taken] = (member, self.now + LOCK_MS)

    def accept(self, member: str, offset: int) -> None:
        self._acknowledge(self.leader, member, offset, AcknowledgeType.ACCEPT)

    def release(self, member: str, offset: int) -> None:
        self._acknowledge(self.leader, member, offset, AcknowledgeType.RELEASE)

    def accept_at_former(self, member: str, offset: int) -> None:
        """A member that does not know of the new leader accepts at the former one."""
        assert self.former is not None
        self._acknowledge(self.former, member, offset, AcknowledgeType.ACCEPT)

    def end_session(self, member: str) -> None:
        """The session of a member ends, and releases what it holds."""
        stored = {offset for asked in self.leader.asked.values() for _, offset, _ in asked}
        # A record whose verdict is being stored is not part of the release: it follows from the fate of the verdict.
        held = [
            (member, offset, None)
            for offset, (who, _) in self.leader.holds.items()
            if who == member and offset not in stored
        ]
        answer = self.leader.partition.release(member)
        if answer.token is not None:
            self.leader.asked[answer.token] = held  # type: ignore[assignment]
        self._perform(self.leader, answer.effects)

    def expire(self) -> None:
        """The locks of all records run out, unless a verdict is being stored."""
        self.now += LOCK_MS
        for leader in (self.leader, self.former):
            if leader is None:
                continue
            effects = leader.partition.on_timer(self.now)
            stored = {offset for asked in leader.asked.values() for _, offset, _ in asked}
            leader.holds = {
                offset: hold for offset, hold in leader.holds.items() if hold[1] > self.now or offset in stored
            }
            self._perform(leader, effects)

    def deliver(self) -> None:
        """The write of the leader reaches the coordinator."""
        self._send(self.leader)

    def deliver_of_former(self) -> None:
        """The write of the former leader reaches the coordinator."""
        assert self.former is not None
        self._send(self.former)

    def repeat(self) -> None:
        """The connection breaks: the leader sends its write again, and the first copy is still on its way."""
        assert self.leader.write is not None
        self.lates += 1
        if self.leader.sent is None:
            self.late.append(self.leader.write)
        self.leader.sent = None

    def give_up(self) -> None:
        """The leader gives its write up; if it was not delivered, it is still on its way."""
        leader = self.leader
        assert leader.write is not None
        if leader.sent is None and self.lates < LATE_MAX:
            self.lates += 1
            self.late.append(leader.write)
        self._outcome(leader, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def deliver_late(self) -> None:
        """A write reaches the coordinator after its sender gave it up."""
        self.coordinator.send((key(), self.late.pop(0)))
        self._learn()

    def commit(self) -> None:
        """The oldest write of the coordinator is committed."""
        self.coordinator.commit(1)
        self._learn()

    def change_leader(self) -> None:
        """Another broker becomes the leader: it reads the state, which fences the former one."""
        self.former = self.leader
        self.leader = self._new_leader(self.former.epoch + 1)
        self._learn()

    def fail_over(self, kept: bool) -> None:
        """Another coordinator loads the log; writes without an answer are sent again."""
        self.failovers += 1
        self.coordinator.fail_over(keeps=kept)
        self._learn()

    def settle(self) -> None:
        """All disturbances end: a new leader delivers what is not done, and all of it gets done."""
        while self.late:
            self.deliver_late()
        self.coordinator.commit()
        self._learn()
        self.coordinator.auto_commit = True
        self.former = None
        self.leader = self._new_leader(self.leader.epoch + 1)
        for _ in range(LOG_END * (DELIVERIES_MAX + 1)):
            self.acquire("C")
            for offset in list(self.leader.holds):
                self.accept("C", offset)
                self.deliver()
        done = self.leader.partition.start_offset
        assert done == LOG_END, f"record {done} is never done: {self.leader.partition.snapshot()}"
        for offset, count in self.deliveries.items():
            assert offset in self.verdicts or count >= DELIVERIES_MAX, f"record {offset} is lost"

    # --- what follows

    def _new_leader(self, epoch: int) -> Leader:
        request_id = self.coordinator.send((key(), Read(leader_epoch=epoch)))
        self.coordinator.commit()
        answer = self.coordinator.answers[request_id][key()]
        batches = [StateBatch(first, last, RecordState(state), n) for first, last, state, n in batches_of(answer)]
        partition = SharePartition.restore(
            LIMITS,
            batches,
            leader_epoch=epoch,
            state_epoch=0,
            start_offset=answer.start_offset,  # type: ignore[attr-defined]
            log_start_offset=0,
        )
        return Leader(partition, epoch)

    def _acknowledge(self, leader: Leader, member: str, offset: int, kind: AcknowledgeType) -> None:
        batch = AcknowledgementBatch(offset, offset, (kind,))
        answer = leader.partition.acknowledge(member, [batch], now_ms=self.now)
        if answer.token is None:
            return
        if kind is AcknowledgeType.ACCEPT:
            self.verdicts.add(offset)
        leader.asked[answer.token] = [(member, offset, kind)]
        self._perform(leader, answer.effects)

    def _perform(self, leader: Leader, effects: Effects) -> None:
        for settled in effects.settled:
            for _, offset, kind in leader.asked.pop(settled.token, ()):
                if settled.error is not ErrorCode.NONE:
                    continue
                leader.holds.pop(offset, None)
                if kind is AcknowledgeType.ACCEPT:
                    self.accepted.add(offset)
        if effects.persist is not None:
            assert leader.write is None, "a leader begins a write while another one is under way"
            leader.write, leader.sent = _ask(effects.persist), None
        if leader.partition.closed:
            leader.write, leader.holds, leader.asked = None, {}, {}

    def _send(self, leader: Leader) -> None:
        assert leader.write is not None
        leader.sent = self.coordinator.send((key(), leader.write))
        self._learn()

    def _learn(self) -> None:
        """Lets leaders take the answers of the coordinator."""
        for leader in (self.leader, self.former):
            if leader is None or leader.sent is None or leader.sent not in self.coordinator.answers:
                continue
            (code,) = self.coordinator.codes(leader.sent)
            if code is ErrorCode.NOT_COORDINATOR:
                leader.sent = None  # it is sent again, to the next coordinator
            else:
                self._outcome(leader, code)

    def _outcome(self, leader: Leader, code: ErrorCode) -> None:
        leader.write = leader.sent = None
        self._perform(leader, leader.partition.persisted(code))
        # A verdict that failed is undone; a lock that ran out meanwhile ends now.
        self._perform(leader, leader.partition.on_timer(self.now))
        stored = {offset for asked in leader.asked.values() for _, offset, _ in asked}
        leader.holds = {o: hold for o, hold in leader.holds.items() if hold[1] > self.now or o in stored}

    # --- rules

    def check(self) -> None:
        """Asserts that the coordinator calls a record done only if that was asked, or it was delivered that often."""
        for state in self.coordinator.core.states.values():
            done = set(range(state.start_offset))
            done |= {o for first, last, what, _ in state.batches if what for o in range(first, last + 1)}
            for offset in sorted(done - self.verdicts):
                assert self.deliveries[offset] >= DELIVERIES_MAX, f"record {offset} is done, and no member said so"
            for offset in sorted(self.accepted - done):
                raise AssertionError(f"the acceptance of record {offset} was confirmed, and is not stored")

    def key(self) -> Hashable:
        """Returns the state of leaders, members, coordinator and writes."""
        states = tuple((s.start_offset, s.leader_epoch, s.batches) for s in self.coordinator.core.states.values())
        pending = tuple((each.records[0].key, each.records[0].value) for each in self.coordinator.uncommitted)
        return (
            states,
            pending,
            tuple(self.late),
            _leader_key(self.leader, self.now),
            None if self.former is None else _leader_key(self.former, self.now),
            tuple(sorted(self.accepted)),
            tuple(sorted(self.verdicts)),
            tuple(self.deliveries.values()),
            (self.acquisitions, self.failovers, self.lates),
        )


def _ask(write: Persist) -> Write:
    batches = ((batch.first, batch.last, int(batch.state), batch.delivery_count) for batch in write.batches)
    return write_of(
        *batches,
        start=write.start_offset,
        state_epoch=write.state_epoch,
        leader_epoch=write.leader_epoch,
        count=write.delivery_complete_count,
    )


def _leader_key(leader: Leader, now: float) -> Hashable:
    partition = leader.partition
    changes = tuple(run.change and (run.change.state, run.change.delivery_count) for run in partition._runs.runs)
    asked = tuple(tuple(each) for each in leader.asked.values())
    holds = tuple((offset, who, end - now) for offset, (who, end) in sorted(leader.holds.items()))
    waiting = (leader.write, leader.sent is None, len(partition._queued), tuple(partition._unstored))
    return (leader.epoch, partition.start_offset, partition.snapshot(), changes, asked, holds, waiting)


def held_records() -> ShareDelivery:
    """Returns a share-partition whose two records are held by one member."""
    world = ShareDelivery()
    world.acquire("A")
    world.acquire("A")
    return world


def accepted_first() -> ShareDelivery:
    """Returns a share-partition whose first record is accepted; the write of that is on its way twice."""
    world = held_records()
    world.accept("A", 0)
    world.repeat()
    world.deliver()
    world.commit()
    return world


def released_last() -> ShareDelivery:
    """Returns a share-partition whose last record was released; the write of that is on its way twice."""
    world = held_records()
    world.release("A", 1)
    world.repeat()
    world.deliver()
    world.commit()
    world.acquire("B")
    return world


def former_leader() -> ShareDelivery:
    """Returns a share-partition with a former leader that still serves its member."""
    world = held_records()
    world.change_leader()
    return world


SCENES = (ShareDelivery, held_records, accepted_first, released_last, former_leader)
