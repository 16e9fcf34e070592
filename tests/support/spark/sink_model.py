"""A model of cluster, Spark and failures around the sink's protocol, and the search through all of its interleavings.

The protocol's cores are the production code. Around them the model has: the transaction coordinator (epochs, one open
transaction for each id, time-outs, lost answers), committed offsets (decision and markers), Spark's driver (runs of the
query, attempts of tasks, its commit log), and everything that goes on after its driver or its task was given up: old
tasks and old commits keep running and may take their next step at any time. A query may also rest until the brokers
have forgotten everything that expires; nothing of it is left running then.

A state is one tuple, so that ``explore`` visits each once. The budgets in ``Scope`` bound the search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_moldau.sink.core.effects import (
    AbortOrphans,
    Decision,
    EndDecided,
    Ended,
    Entry,
    Fence,
    FenceDriver,
    FindEnded,
    HandOver,
    Kind,
    NoteBegun,
    NoteDone,
    Notes,
    ReadDecision,
    ReadMarker,
    ReadNotes,
    Report,
    SkipRows,
    StageMarker,
    WriteDecision,
    WriteRows,
)
from pyspark_moldau.sink.core.protocol import MARKER_AGE_MAX_MS, DriverCore, TaskCore
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError, TryAgainError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark_moldau.sink.core.effects import Effect

ROWS = 2
DRIVER = "driver"

Row = tuple[int, int]
"""A row of the query: its batch, and its number there."""


@dataclass(frozen=True)
class Scope:
    """How far the search goes."""

    batches: int = 1
    partitions: tuple[int, ...] = (2, 2)  # of each run of the query; there are as many runs as numbers
    shifts: tuple[int, ...] = (0, 0)  # of each run: how far rows are moved to other partitions (0: as in run 0)
    more_attempts: int = 1  # attempts beyond the first one of each task
    timeouts: int = 1  # transactions that the coordinator aborts
    lost_answers: int = 1  # answers to a driver's commit that do not arrive, and kill that commit
    has_notes: bool = True  # whether tasks and drivers read and write notes, as those of a query do
    rests: int = 0  # times that the query rests after its driver has died until what expires has expired


class Transaction(NamedTuple):
    """The newest transaction of a transactional id."""

    epoch: int = -1
    state: str = "empty"  # empty, open, committed, aborted
    rows: tuple[Row, ...] = ()
    marker: tuple[str, int] | tuple[()] = ()


class Task(NamedTuple):
    """One attempt of a task, alive or a zombie."""

    run: int
    batch: int
    partition: int
    attempt: int
    core: TaskCore
    epoch: int = -1
    is_over: bool = False


class Commit(NamedTuple):
    """One commit of a batch on the driver, alive or a zombie."""

    run: int
    core: DriverCore
    epoch: int = -1
    is_over: bool = False


class World(NamedTuple):
    """One state."""

    run: int = 0
    is_alive: bool = True  # whether the driver of the run lives
    is_stopped: bool = False  # the protocol refused, an operator has to act
    done: int = 0  # batches in Spark's commit log
    tasks: tuple[Task, ...] = ()
    commits: tuple[Commit, ...] = ()
    ids: tuple[tuple[str, Transaction], ...] = ()
    decision: Decision | None = None
    markers: tuple[tuple[str, int], ...] = ()
    log: tuple[Row, ...] = ()  # committed rows, sorted
    more_attempts: int = 0
    timeouts: int = 0
    lost_answers: int = 0
    notes: Notes = Notes()
    rests: int = 0
    now_ms: int = 0


class Violation(AssertionError):
    """An invariant does not hold."""


def rows_of(scope: Scope, run: int, batch: int, partition: int) -> tuple[Row, ...]:
    """The rows that a task of a run gets."""
    count = scope.partitions[run]
    return tuple((batch, row) for row in range(ROWS) if (row + scope.shifts[run]) % count == partition)


class Model:
    """The steps of the world. Planted bugs override methods, or come as other cores."""

    task_core: type[TaskCore] = TaskCore
    driver_core: type[DriverCore] = DriverCore

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.result: object = None

    def begin(self) -> World:
        return World(
            more_attempts=self.scope.more_attempts,
            timeouts=self.scope.timeouts,
            lost_answers=self.scope.lost_answers,
            rests=self.scope.rests,
        )

    # --- what can happen next

    def steps(self, world: World) -> Iterator[World]:
        """Yields every next state."""
        for index, task in enumerate(world.tasks):
            if not task.is_over and task.core.effect is not None:
                yield self.step_task(world, index, task)
        for index, commit in enumerate(world.commits):
            if not commit.is_over and commit.core.effect is not None:
                yield self.step_commit(world, index, commit)
                if world.lost_answers and isinstance(commit.core.effect, WriteDecision | EndDecided):
                    # The cluster carries it out, and the answer is lost: this commit fails.
                    after = self.step_commit(world, index, commit)
                    gone = after.commits[index]._replace(is_over=True)
                    yield after._replace(
                        commits=(*after.commits[:index], gone, *after.commits[index + 1 :]),
                        lost_answers=world.lost_answers - 1,
                    )
        for name, transaction in world.ids:
            if world.timeouts and transaction.state == "open":
                aborted = transaction._replace(state="aborted", epoch=transaction.epoch + 1)
                yield with_id(world, name, aborted)._replace(timeouts=world.timeouts - 1)
        if world.is_alive and not world.is_stopped and world.done < self.scope.batches:
            yield from self.spark(world)

    def spark(self, world: World) -> Iterator[World]:
        """Takes a step of the live driver, or its death."""
        mine = [task for task in world.tasks if (task.run, task.batch) == (world.run, world.done)]
        commits = [commit for commit in world.commits if (commit.run, commit.core.batch) == (world.run, world.done)]
        if not commits:
            for partition in range(self.scope.partitions[world.run]):
                attempts = [task for task in mine if task.partition == partition]
                has_report = any(task.core.report is not None for task in attempts)
                if not attempts:
                    yield self.launch(world, partition, 0)
                elif world.more_attempts and not has_report:
                    # A retry, or a speculative copy: the other attempt goes on independently.
                    yield self.launch(world, partition, len(attempts))._replace(more_attempts=world.more_attempts - 1)
            reports = self.reports(world, mine)
            if reports is not None:
                core = self.driver_core(
                    batch=world.done,
                    run=f"run{world.run}",
                    reports=reports,
                    now_ms=world.now_ms,
                    has_notes=self.scope.has_notes,
                )
                yield world._replace(commits=(*world.commits, Commit(run=world.run, core=core)))
        elif commits[-1].core.effect is None and not commits[-1].is_over:
            yield world._replace(done=world.done + 1)
        if world.run + 1 < len(self.scope.partitions):
            yield world._replace(run=world.run + 1)  # the driver dies; what it started goes on
            if world.rests:
                yield from self.rested(world._replace(run=world.run + 1, rests=world.rests - 1))

    def rested(self, world: World) -> Iterator[World]:
        """Ends all that runs and all open transactions; then the markers expire, and with or after them the decision.

        Transactional ids expire too, so their epochs begin again; the ids of tasks are new ones in each run.
        """
        rested = world._replace(
            tasks=tuple(task._replace(is_over=True) for task in world.tasks),
            commits=tuple(commit._replace(is_over=True) for commit in world.commits),
            ids=(),
            markers=(),
            now_ms=world.now_ms + MARKER_AGE_MAX_MS + 1,
        )
        yield rested
        yield rested._replace(decision=None)

    def launch(self, world: World, partition: int, attempt: int) -> World:
        core = self.task_core(
            batch=world.done, partition=partition, now_ms=world.now_ms, has_notes=self.scope.has_notes
        )
        task = Task(run=world.run, batch=world.done, partition=partition, attempt=attempt, core=core)
        return world._replace(tasks=tuple(sorted((*world.tasks, task), key=task_key)))

    def reports(self, world: World, mine: Sequence[Task]) -> tuple[Report, ...] | None:
        """The first report of each partition, or None while one is missing."""
        found = []
        for partition in range(self.scope.partitions[world.run]):
            each = [task.core.report for task in mine if task.partition == partition and task.core.report]
            if not each:
                return None
            found.append(each[0])
        return tuple(found)

    # --- tasks

    def id_of(self, task: Task) -> str:
        return f"run{task.run}-{task.partition}-{task.attempt}"

    def step_task(self, world: World, index: int, task: Task) -> World:
        name = self.id_of(task)
        effect = task.core.effect
        try:
            world, task, result = self.perform_task(world, task, name, effect)
            task = task._replace(core=task.core.on(result))
        except (Fenced, ProtocolRefusedError):
            task = task._replace(is_over=True)
        return world._replace(tasks=(*world.tasks[:index], task, *world.tasks[index + 1 :]))

    def perform_task(self, world: World, task: Task, name: str, effect: Effect | None) -> tuple[World, Task, object]:
        transaction = id_of(world, name)
        match effect:
            case Fence():
                state = "aborted" if transaction.state == "open" else transaction.state
                fresh = Transaction(epoch=transaction.epoch + 1, state="empty" if state != "open" else state)
                return with_id(world, name, fresh), task._replace(epoch=fresh.epoch), None
            case WriteRows():
                rows = rows_of(self.scope, task.run, task.batch, task.partition)
                if rows:
                    world = with_id(world, name, self.opened(transaction, task.epoch, rows=rows))
                return world, task, (len(rows), hash_of(rows))
            case StageMarker(batch):
                return with_id(world, name, self.opened(transaction, task.epoch, marker=(name, batch))), task, None
            case HandOver(rows, fingerprint):
                self.opened(transaction, task.epoch)
                entry = Entry(
                    transactional_id=name,
                    producer_id=0,
                    producer_epoch=task.epoch,
                    rows=rows,
                    fingerprint=fingerprint,
                )
                return world, task, entry
            case SkipRows():
                return world, task, None
        world = self.perform(world, effect)
        return world, task, self.result

    def opened(self, transaction: Transaction, epoch: int, **changes: Any) -> Transaction:
        if transaction.epoch != epoch or transaction.state not in ("empty", "open"):
            raise Fenced
        return transaction._replace(state="open", **changes)

    # --- the driver

    def step_commit(self, world: World, index: int, commit: Commit) -> World:
        effect = commit.core.effect
        try:
            transaction = id_of(world, DRIVER)
            if isinstance(effect, FenceDriver):
                fresh = Transaction(epoch=transaction.epoch + 1)
                world, commit, self.result = with_id(world, DRIVER, fresh), commit._replace(epoch=fresh.epoch), None
            elif isinstance(effect, WriteDecision):
                if transaction.epoch != commit.epoch:
                    raise Fenced
                world, self.result = world._replace(decision=effect.decision), None
            else:
                world = self.perform(world, effect)
            commit = commit._replace(core=commit.core.on(self.result))
        except (Fenced, TryAgainError):
            commit = commit._replace(is_over=True)
        except ProtocolRefusedError:
            commit = commit._replace(is_over=True)
            if commit.run == world.run:
                world = world._replace(is_stopped=True)
        return world._replace(commits=(*world.commits[:index], commit, *world.commits[index + 1 :]))

    # --- what both do

    def perform(self, world: World, effect: Effect | None) -> World:
        self.result = None
        match effect:
            case ReadDecision():
                self.result = world.decision
            case ReadMarker(name):
                self.result = dict(world.markers).get(name, -1)
            case ReadNotes():
                self.result = world.notes
            case NoteBegun(batch):
                world = world._replace(notes=replace(world.notes, begun=batch))
            case NoteDone(batch):
                world = world._replace(notes=replace(world.notes, done=batch))
            case EndDecided(entry):
                world = self.end(world, entry)
            case FindEnded(decision):
                self.result = tuple(entry for entry in decision.entries if entry and not is_open(world, entry))
            case AbortOrphans(kept):
                for name, transaction in world.ids:
                    if transaction.state == "open" and name not in kept and name != DRIVER:
                        aborted = transaction._replace(state="aborted", epoch=transaction.epoch + 1)
                        world = with_id(world, name, aborted)
        return world

    def end(self, world: World, entry: Entry) -> World:
        transaction = id_of(world, entry.transactional_id)
        self.result = Ended.DEAD
        if transaction.epoch != entry.producer_epoch or transaction.state in ("empty", "aborted"):
            return world
        self.result = Ended.COMMITTED
        if transaction.state == "committed":
            return world
        markers = dict(world.markers)
        if transaction.marker:
            markers[transaction.marker[0]] = transaction.marker[1]
        world = with_id(world, entry.transactional_id, transaction._replace(state="committed"))
        log = tuple(sorted((*world.log, *transaction.rows)))
        return world._replace(markers=tuple(sorted(markers.items())), log=log)

    # --- invariants

    def check(self, world: World) -> None:
        """Raises ``Violation`` where a row is there twice, or a finished batch lacks one."""
        if len(set(world.log)) != len(world.log):
            raise Violation(f"rows twice: {world.log}")
        for batch in range(world.done):
            missing = {(batch, row) for row in range(ROWS)}.difference(world.log)
            if missing:
                raise Violation(f"batch {batch} is in the commit log without {sorted(missing)}")


class Fenced(Exception):
    """The epoch of a transaction is over."""


def hash_of(rows: Iterable[Row]) -> int:
    return sum(1 + 7 * batch + 3 * row for batch, row in rows)


def task_key(task: Task) -> tuple[int, int, int, int]:
    return (task.run, task.batch, task.partition, task.attempt)


def id_of(world: World, name: str) -> Transaction:
    return dict(world.ids).get(name, Transaction())


def is_open(world: World, entry: Entry) -> bool:
    transaction = id_of(world, entry.transactional_id)
    return (transaction.state, transaction.epoch) == ("open", entry.producer_epoch)


def with_id(world: World, name: str, transaction: Transaction) -> World:
    ids = dict(world.ids)
    ids[name] = transaction
    return world._replace(ids=tuple(sorted(ids.items())))


def explore(model: Model, states_max: int = 2_000_000) -> tuple[int, int, int]:
    """Visits every reachable state; returns the numbers of states, of finished ends, and of ends that an operator has
    to look at.
    """
    first = model.begin()
    seen = {first}
    stack = [first]
    finished = stopped = 0
    while stack:
        world = stack.pop()
        model.check(world)
        finished += world.done == model.scope.batches
        stopped += world.is_stopped
        for after in model.steps(world):
            if after not in seen:
                seen.add(after)
                stack.append(after)
        assert len(seen) <= states_max, "the scope is too large"
    return len(seen), finished, stopped


__all__ = ["Kind", "Model", "Report", "Scope", "Violation", "explore"]
