"""Goal: a share-partition does what its specification says, for every short history and for long random ones.

Method: all histories of two members over three records, up to a depth, and random histories over a dozen. After each
step the runs, the answers and the writes are compared with a model that keeps one entry for each record. In passing the
tests check that no record is ever held by two members, and that each step wakes the fetches that can go on with it.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moldau.protocol.errors import ErrorCode
from moldau_broker.server.share.core.share_partition import SharePartition
from moldau_broker.server.share.core.values import (
    AcknowledgementBatch,
    AcquireMode,
    DeadLetters,
    Effects,
    RecordState,
    ShareLimits,
    StateBatch,
)
from support.proof import examples
from support.share.model import LIMIT, LOCK_MS, Model

Step = tuple[str, tuple[int | str, ...]]


@dataclass
class Pair:
    """The share-partition and its model, moved in step."""

    log_end: int
    locks_max: int
    batch: int = 1
    writes_dead_letters: bool = False

    def __post_init__(self):
        limits = ShareLimits(
            delivery_count_max=LIMIT,
            record_locks_max=self.locks_max,
            lock_duration_ms=LOCK_MS,
            writes_dead_letters=self.writes_dead_letters,
        )
        self.real = SharePartition(limits, leader_epoch=1, state_epoch=1, start_offset=0)
        self.model = Model(self.locks_max, writes_dead_letters=self.writes_dead_letters)
        self.letters: list[DeadLetters] = []
        self.now = 0.0

    def key(self):
        deadlines = tuple(run.lock_deadline_ms and run.lock_deadline_ms - self.now for run in self.real._runs.runs)
        changes = tuple(run.change and run.change.state for run in self.real._runs.runs)
        waiting = (self.real._writing, self.real._queued, self.real._unstored)
        shape = tuple(tuple((bool(t), b) for t, b in entries or ()) for entries in waiting)
        idle = self.real._writing is None
        return (self.real.start_offset, self.real.snapshot(), deadlines, changes, shape, idle, tuple(self.letters))

    def apply(self, step: Step) -> None:
        name, arguments = step
        getattr(self, name)(*arguments)
        self.check()

    @property
    def has_records(self):
        """Whether a fetch would find records now; one that found none waits until the effects of a step wake it."""
        return self.real.can_acquire and self.real.next_fetch_offset < self.log_end

    def compare_wake(self, effects: Effects, could_acquire):
        assert effects.acquirable or could_acquire or not self.has_records, "a fetch that waits is not woken"

    def acquire(self, member, most):
        offset = self.real.next_fetch_offset
        assert offset == self.model.next_fetch()
        could = self.real.can_acquire
        fetched = [(each, each + 1) for each in range(offset, self.log_end)]
        found = self.real.acquire(
            member,
            fetched,
            fetch_offset=offset,
            records_max=most,
            batch_size=self.batch,
            mode=AcquireMode.RECORD_LIMIT,
            now_ms=self.now,
        )
        expected = self.model.acquire(member, self.log_end, most, self.now)
        assert [(o, r.delivery_count) for r in found for o in range(r.first, r.last + 1)] == expected
        assert could or not expected

    def acknowledge(self, member, first, *kinds):
        batch = AcknowledgementBatch(first, first + len(kinds) - 1, kinds)
        writing, could_acquire = self.model.writing, self.has_records
        answer = self.real.acknowledge(member, [batch], now_ms=self.now)
        wanted = [(first + index, kind) for index, kind in enumerate(kinds)]
        assert (answer.error, answer.token) == self.model.acknowledge(member, wanted, self.now)
        self.compare_write(answer.effects, writing)
        self.compare_wake(answer.effects, could_acquire)

    def release(self, member):
        writing, could_acquire = self.model.writing, self.has_records
        answer = self.real.release(member)
        assert answer.token == self.model.release(member)
        self.compare_write(answer.effects, writing)
        self.compare_wake(answer.effects, could_acquire)

    def persisted(self, error):
        if self.model.writing is None:
            return
        could_acquire = self.has_records
        effects = self.real.persisted(error)
        assert [each.token for each in effects.settled] == self.model.persisted(error)
        assert all(each.error is error for each in effects.settled)
        self.letters += effects.dead_letters
        due = [offset for each in self.letters for offset in range(each.first, each.last + 1)]
        assert sorted(due) == sorted(self.model.letters)
        self.compare_write(effects, None)
        self.compare_wake(effects, could_acquire)

    def wait(self, elapsed_ms):
        self.now += elapsed_ms
        writing, could_acquire = self.model.writing, self.has_records
        effects = self.real.on_timer(self.now)
        self.model.expire(self.now)
        self.compare_write(effects, writing)
        self.compare_wake(effects, could_acquire)

    def letters_written(self):
        """The shell writes the oldest dead letters."""
        if not self.letters:
            return
        oldest = self.letters.pop(0)
        writing, could_acquire = self.model.writing, self.has_records
        effects = self.real.dead_letters_written(oldest.first, oldest.last)
        self.model.letters_written(list(range(oldest.first, oldest.last + 1)))
        self.compare_write(effects, writing)
        self.compare_wake(effects, could_acquire)

    def restarted(self):
        """Another leader takes what is stored, and finds each dead letter that is left."""
        if self.model.writing is not None or self.real.is_behind:
            return
        batches = [
            StateBatch(run.first, run.end - 1, run.state, run.delivery_count)
            for run in self.real._runs.runs
            if run.state is not RecordState.ACQUIRED
        ]
        start = self.real.start_offset
        following = SharePartition.restore(
            self.real.limits, batches, leader_epoch=2, state_epoch=1, start_offset=start, log_start_offset=start
        )
        left = following.unfinished_dead_letters(batches).dead_letters
        found = {offset for each in left for offset in range(each.first, each.last + 1)}
        assert found == {offset for offset in self.model.letters if offset >= start}

    def move_log_start(self, offset):
        could_acquire = self.has_records
        self.compare_wake(self.real.move_log_start(offset), could_acquire)
        self.model.move_log_start(offset)

    def compare_write(self, effects: Effects, before):
        begun = self.model.writing is not None and self.model.writing is not before
        assert (effects.persist is not None) == begun
        if effects.persist is None:
            return
        write = effects.persist
        states = {o: (b.state, b.delivery_count) for b in write.batches for o in range(b.first, b.last + 1)}
        assert sum(b.last - b.first + 1 for b in write.batches) == len(states)
        assert (write.start_offset, write.delivery_complete_count, states) == self.model.stored()

    def check(self):
        real = {
            offset: (run.state, run.delivery_count, run.member, run.lock_deadline_ms)
            for run in self.real._runs.runs
            for offset in range(run.first, run.end)
        }
        expected = {o: (r.state, r.count, r.member, r.deadline) for o, r in self.model.records.items()}
        assert real == expected
        assert (self.real.start_offset, self.real.end_offset) == (self.model.start, self.model.end)
        waiting = [r.deadline for r in self.model.records.values() if r.deadline is not None and r.change is None]
        assert self.real.next_deadline_ms() == min(waiting, default=None)
        runs = self.real._runs.runs
        assert all(not left.equals(right) for left, right in pairwise(runs))
        assert not runs or runs[0].state not in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


def every_step(records: int) -> list[Step]:
    steps: list[Step] = [("wait", (LOCK_MS,)), ("wait", (LOCK_MS // 2,)), ("move_log_start", (1,))]
    steps += [("persisted", (ErrorCode.NONE,)), ("persisted", (ErrorCode.COORDINATOR_NOT_AVAILABLE,))]
    for member in ("A", "B"):
        steps += [("acquire", (member, 1)), ("acquire", (member, records)), ("release", (member,))]
    for kind in range(1, 5):
        steps += [("acknowledge", ("A", offset, kind)) for offset in range(records)]
    steps += [("acknowledge", ("B", 0, 1)), ("acknowledge", ("B", 0, 2)), ("acknowledge", ("A", 0, 1, 2, 0))]
    return steps


@pytest.mark.parametrize("writes_dead_letters", [False, True])
@pytest.mark.parametrize(
    ("length", "least"),
    [(4, 500), pytest.param(5, 1700, marks=pytest.mark.proof), pytest.param(6, 5000, marks=pytest.mark.proof)],
)
def test_every_short_history(length, least, writes_dead_letters):
    """All histories of two members over three records; situations that are equal are continued once."""
    steps = every_step(3)
    if writes_dead_letters:
        steps += [("letters_written", ()), ("restarted", ())]
    level = [Pair(log_end=3, locks_max=2, writes_dead_letters=writes_dead_letters)]
    seen = {level[0].key()}
    for _ in range(length):
        following = []
        for pair in level:
            for step in steps:
                reached = copy.deepcopy(pair)
                reached.apply(step)
                if reached.key() not in seen:
                    seen.add(reached.key())
                    following.append(reached)
        level = following
    assert len(seen) > least


members = st.sampled_from(["A", "B", "C"])
random_steps = st.one_of(
    st.tuples(st.just("acquire"), st.tuples(members, st.integers(1, 12))),
    st.tuples(st.just("acquire"), st.tuples(members, st.integers(1, 12))),
    st.builds(
        lambda member, first, kinds: ("acknowledge", (member, first, *kinds)),
        members,
        st.integers(0, 11),
        st.lists(st.integers(0, 4), min_size=1, max_size=6),
    ),
    st.tuples(st.just("release"), st.tuples(members)),
    st.tuples(st.just("persisted"), st.tuples(st.sampled_from([ErrorCode.NONE] * 3 + [ErrorCode.NOT_COORDINATOR]))),
    st.tuples(st.just("wait"), st.tuples(st.sampled_from([1, 50, 100]))),
    st.tuples(st.just("move_log_start"), st.tuples(st.integers(0, 12))),
    st.tuples(st.sampled_from(["letters_written", "restarted"]), st.just(())),
)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(random_steps, max_size=40), st.integers(3, 12), st.sampled_from([0, 1, 5]), st.booleans())
def test_random_histories(history: list[Step], locks_max: int, batch_size: int, writes_dead_letters: bool):
    """Long histories over twelve records: the same comparison after each step."""
    pair = Pair(log_end=12, locks_max=locks_max, batch=batch_size, writes_dead_letters=writes_dead_letters)
    for step in history:
        pair.apply(step)
