"""Every interleaving of a small scope: crashes, zombies, copies of tasks, time-outs, lost answers; and planted bugs.

The search visits each reachable state of ``support.spark.sink_model`` and checks in each that no committed row is there
twice, and that a batch in Spark's commit log has all of its rows. A search that finds nothing in broken code proves
nothing, so each planted bug must be found.
"""

from dataclasses import replace

import pytest

from pyspark_moldau.sink.core.effects import (
    AbortOrphans,
    Decision,
    EndDecided,
    Ended,
    FenceDriver,
    HandOver,
    NoteBegun,
    Notes,
    ReadDecision,
    ReadNotes,
    StageMarker,
)
from pyspark_moldau.sink.core.protocol import DriverCore, TaskCore
from support.proof import proof_beyond
from support.spark.sink_model import Model, Scope, Violation, explore

CRASH = Scope(more_attempts=0)
COPIES = Scope(partitions=(1, 1), more_attempts=1, timeouts=0)
WITHOUT_NOTES = replace(COPIES, lost_answers=0, has_notes=False)
SCOPES = {
    "the driver dies": Scope(more_attempts=0, timeouts=0, lost_answers=0),
    "and answers are lost": replace(CRASH, timeouts=0),
    "and the replay has fewer partitions": replace(CRASH, partitions=(2, 1)),
    "and the replay has more partitions": replace(CRASH, partitions=(1, 2)),
    "and the replay has other rows": replace(CRASH, shifts=(0, 1), timeouts=0, lost_answers=0),
    "the query rests until its decision expires": Scope(more_attempts=0, timeouts=0, lost_answers=0, rests=1),
    "two batches": Scope(batches=2, partitions=(1, 1), more_attempts=0),
    "copies of tasks": WITHOUT_NOTES,
    "and answers are lost, and transactions time out": CRASH,
    "and the replay has other rows in its partitions": replace(CRASH, shifts=(0, 1)),
    "three runs": Scope(partitions=(1, 1, 1), shifts=(0, 0, 0), more_attempts=0, timeouts=0),
    "copies of tasks, and answers are lost": COPIES,
    "and copies of tasks time out": Scope(partitions=(1, 1), more_attempts=1),
}
QUICK = (
    "and answers are lost",
    "and the replay has fewer partitions",
    "the query rests until its decision expires",
    "copies of tasks",
)
"""One scope for each kind of step; the others run in ``make test-proof``."""


@pytest.mark.parametrize("name", proof_beyond(len(QUICK), (*QUICK, *(name for name in SCOPES if name not in QUICK))))
def test_every_interleaving_is_exactly_once(name):
    states, finished, stopped = explore(Model(SCOPES[name]))
    assert states > 200
    assert finished > 0
    is_same_plan = len(set(SCOPES[name].partitions)) == 1 and not any(SCOPES[name].shifts)
    may_stop = not is_same_plan or SCOPES[name].rests
    assert stopped == 0 or may_stop, "an operator is needed only if the plan changed, or the query rested too long"


@pytest.mark.parametrize("scope", proof_beyond(1, [WITHOUT_NOTES, COPIES]))
def test_ids_shared_by_all_attempts_are_safe_too(scope):
    """An attempt that takes over the id of a decided transaction kills it; its rows are written again, once."""

    class Shared(Model):
        def id_of(self, task):
            return f"{task.partition}"

    explore(Shared(scope))


# --- planted bugs


class DecidesAgain(DriverCore):
    """Replaces the decision of a replayed batch."""

    def _on_decision(self, last):
        return DriverCore._on_decision(self, None)


class Unfenced(DriverCore):
    """Reads the decision without taking over the driver's id."""

    def on(self, result):
        if isinstance(self.effect, FenceDriver):
            return replace(DriverCore.on(self, result), effect=ReadDecision())
        return DriverCore.on(self, result)


class UnfencedModel(Model):
    """A cluster that lets any driver write; the bug is that of a driver that fences after it has read."""

    driver_core = Unfenced

    def step_commit(self, world, index, commit):
        if isinstance(commit.core.effect, FenceDriver):
            commit = commit._replace(core=commit.core.on(None))
            return world._replace(commits=(*world.commits[:index], commit, *world.commits[index + 1 :]))
        ids = dict(world.ids)
        if "driver" in ids:
            commit = commit._replace(epoch=ids["driver"].epoch)
        return super().step_commit(world, index, commit)


class TakesDeadForCommitted(DriverCore):
    """Does not look at the marker of a transaction that is dead."""

    def on(self, result):
        if isinstance(self.effect, EndDecided):
            return self._next()
        return DriverCore.on(self, result)


class ReturnsBeforeTheEnd(DriverCore):
    """Reports success when the decision is written."""

    def _finish(self, decision):
        return replace(self, decision=decision, effect=AbortOrphans(frozenset()))


class AmendsAnything(DriverCore):
    """Replaces dead transactions without a comparison of their rows."""

    def _amended(self):
        entries = list(self.decision.entries)
        for number in self.lost:
            entries[number] = self.reports[number].entry if number < len(self.reports) else None
        return Decision(batch=self.batch, run=self.run, entries=tuple(entries))


class AmendsLiving(DriverCore):
    """Replaces the transactions of a decided batch although they may have been committed."""

    def on(self, result):
        is_recovery = self.decision is not None and self.decision.run != self.run
        if isinstance(self.effect, EndDecided) and is_recovery:
            return replace(self, lost=(*self.lost, self.ended))._next()
        return DriverCore.on(self, result)


class NotesAreLost(Model):
    """Notes cannot be read, so a batch without a decision passes for a new one."""

    def perform(self, world, effect):
        world = super().perform(world, effect)
        if isinstance(effect, ReadNotes):
            self.result = Notes()
        return world


class NotesNothing(DriverCore):
    """Begins to commit without a note."""

    def _finish(self, decision):
        return replace(self, decision=decision, ended=-1, lost=())._next()


class CommitsWithoutANote(TaskCore):
    """Commits what a dead driver decided, which may have left no note."""

    def on(self, result):
        after = TaskCore.on(self, result)
        return after.on(None) if isinstance(after.effect, NoteBegun) else after


class TrustsOldMarkers(DriverCore):
    """Takes the absence of an old marker for an aborted transaction."""

    def on(self, result):
        return DriverCore.on(replace(self, now_ms=0), result)


class WritesAgain(TaskCore):
    """Writes the rows of a decided batch again."""

    def _on_decision(self, decision):
        return TaskCore._on_decision(self, None)


class LeavesOutTheMarker(TaskCore):
    """Hands the transaction over without its marker."""

    def on(self, result):
        after = TaskCore.on(self, result)
        if isinstance(after.effect, StageMarker):
            return replace(after, effect=HandOver(after.rows, after.fingerprint))
        return after


class CommitsEarly(Model):
    """Tasks commit for themselves when they hand over."""

    def perform_task(self, world, task, name, effect):
        world, task, result = super().perform_task(world, task, name, effect)
        if isinstance(effect, HandOver):
            world = self.end(world, result)
        return world, task, result


class KillsTheKept(Model):
    """The search for orphans aborts everything that is open, before the decided transactions are committed."""

    def end(self, world, entry):
        world = super().end(world, entry)
        kept = self.result
        world = self.perform(world, AbortOrphans(frozenset()))
        self.result = kept
        return world


class DeadIsCommitted(Model):
    """The cluster's answer for a dead transaction is taken for a commit."""

    def end(self, world, entry):
        world = super().end(world, entry)
        self.result = Ended.COMMITTED
        return world


def with_driver(core):
    return type(core.__name__, (Model,), {"driver_core": core})


def with_task(core):
    return type(core.__name__, (Model,), {"task_core": core})


class Trusting(Model):
    """Neither tasks nor drivers know how old a decision is."""

    driver_core = TrustsOldMarkers

    def launch(self, world, partition, attempt):
        return super().launch(world._replace(now_ms=0), partition, attempt)._replace(now_ms=world.now_ms)


REST = SCOPES["the query rests until its decision expires"]
REST_IN_RUN_3 = replace(REST, partitions=(1, 1, 1), shifts=(0, 0, 0))
SHARED = {"id_of": lambda self, task: f"{task.partition}"}
BUGS = {
    "the driver decides a decided batch again": (with_driver(DecidesAgain), CRASH),
    "two drivers decide": (UnfencedModel, CRASH),
    "a dead transaction passes for a committed one": (with_driver(TakesDeadForCommitted), CRASH),
    "the cluster's answer is misread": (DeadIsCommitted, CRASH),
    "success is reported before the commits": (with_driver(ReturnsBeforeTheEnd), CRASH),
    "a replay with other rows is accepted": (with_driver(AmendsAnything), replace(CRASH, shifts=(0, 1))),
    "a replay with fewer partitions is accepted": (with_driver(AmendsAnything), replace(CRASH, partitions=(2, 1))),
    "living transactions are replaced": (with_driver(AmendsLiving), replace(CRASH, timeouts=1)),
    "tasks commit for themselves": (CommitsEarly, CRASH),
    "copies of a task commit for themselves": (CommitsEarly, Scope(partitions=(1,), shifts=(0,), more_attempts=1)),
    "notes are not read": (NotesAreLost, REST),
    "the driver writes no note": (with_driver(NotesNothing), REST),
    "tasks commit without a note": (with_task(CommitsWithoutANote), REST_IN_RUN_3),
    "old markers count as lost transactions": (Trusting, REST),
    "no marker is written": (
        type("Shared", (with_task(LeavesOutTheMarker),), SHARED),
        Scope(partitions=(1, 1), more_attempts=1),
    ),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name):
    model, scope = BUGS[name]
    with pytest.raises(Violation):
        explore(model(scope))
