"""Runs a trio program so that the same seed gives the same run, in any process and on any machine.

Only this module uses trio's private names. trio's event loop is a generator that yields when it would wait for the
operating system. This module never waits, but resumes the generator at once: when no task can run, the virtual clock
moves to the next deadline or to the next call of the agenda. The kernel is polled only every ``TURNS_BETWEEN_POLLS``
turns, because of signals and other threads.

trio orders each batch of runnable tasks at random; with ``_ALLOW_DETERMINISTIC_SCHEDULING`` it sorts the batch by task
number first and shuffles it with ``_r``, which is replaced here by a seeded stream for the thread of the run; trio in
other threads of the process (a blocking client, link proxies) still draws from its own. The cyclic garbage
collector is off during a run, so that no finalizer runs at a moment that depends on allocation counts. The extra
``kit`` pins trio because of these names; another release is refused when a simulation starts.
"""

from __future__ import annotations

import gc
import inspect
import math
import threading
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, cast

import sniffio
import trio
import trio._core._run as _trio_run
from trio._core._instrumentation import Instruments
from trio._util import NoPublicConstructor

from moldau_jepsen.world.time.alarms import Alarms
from moldau_jepsen.world.time.gate import MACHINE
from moldau_jepsen.world.time.timeline import Agenda

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, MutableSequence

    from moldau_jepsen.world.time.gate import TaskGate

T = TypeVar("T")

TURNS_BETWEEN_POLLS = 512
TURNS_AT_ONE_INSTANT_MAX = 200_000
"""After so many turns without time advancing, a run is a busy loop; a cluster's own guard ends its run much earlier."""
STUCK_POLL_SECONDS = 1.0
STUCK_POLLS_MAX = 5
"""So many polls without a signal from outside end a run in which no task waits for a moment of virtual time."""
WIND_DOWN_TURNS_MAX = 100_000
"""A run that was broken off is cancelled, and abandoned if its tasks have not ended after so many turns."""
STUCK_TASKS_SHOWN = 5
GARBAGE_MAX = 50_000
"""How many objects may be left from earlier runs when a run starts; a small cluster leaves some 5,000."""


TRIO_SERIES = "0.35"
"""The release series of trio whose event loop this module drives."""


class TrioVersionError(RuntimeError):
    """The installed trio is not of the release series whose event loop the simulation can drive."""


def check_trio(version: str = trio.__version__) -> None:
    """Refuses a trio release whose private names may differ.

    Raises:
        TrioVersionError: ``version`` is not of the series that this release was tested with.
    """
    if version.split(".")[:2] != TRIO_SERIES.split("."):
        raise TrioVersionError(
            f"the simulation drives the event loop of trio {TRIO_SERIES}, and trio {version} is installed; "
            "run: pip install 'moldau[kit]'"
        )


class StuckError(RuntimeError):
    """A run would never end: all its tasks wait for each other, or tasks run without time advancing."""


class _ThreadStream(Random):
    """Random numbers of trio's scheduler: one stream for the creating thread, another one for all other threads."""

    def __init__(self, own: Random, others: Random) -> None:
        self._owner = threading.get_ident()
        self._own = own
        self._others = others
        super().__init__()

    def random(self) -> float:
        """Returns the next number of the calling thread's stream."""
        return self._stream().random()

    def getrandbits(self, k: int) -> int:
        """Returns the next bits of the calling thread's stream."""
        return self._stream().getrandbits(k)

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Shuffles with the calling thread's stream."""
        if len(x) > 1:
            self._stream().shuffle(x)

    def seed(self, *_: object) -> None:
        """Does nothing, because the streams are seeded when they are made."""

    def _stream(self) -> Random:
        return self._own if threading.get_ident() == self._owner else self._others


class _Instruments(dict[str, dict[trio.abc.Instrument, None]]):
    """Trio's instruments in a dict: trio looks for them six times per step, which takes longer in its ``UserDict``."""

    data = property(lambda self: self)  # trio's functions below ask for it
    add_instrument = Instruments.add_instrument
    remove_instrument = Instruments.remove_instrument
    call = Instruments.call


class _DeadlineChange:
    """Registers the deadline of a cancel scope again if the block changed it.

    Each scope does that three times. Trio's own context manager is a generator, which makes three times as many calls.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        scope = self._scope
        old = scope._registered_deadline
        new = math.inf if scope._cancel_status is None or scope._cancel_called else scope._deadline
        if old == new:
            return
        scope._registered_deadline = new
        runner = _trio_run.GLOBAL_RUN_CONTEXT.runner
        next_deadline = runner.deadlines.next_deadline() if runner.is_guest else None
        if old != math.inf:
            runner.deadlines.remove(old, scope)
        if new != math.inf:
            runner.deadlines.add(new, scope)
        if runner.is_guest and runner.deadlines.next_deadline() != next_deadline:
            runner.force_guest_tick_asap()


@contextmanager
def _short_ways() -> Iterator[None]:
    """Replaces parts of trio by ones that do the same in fewer calls; trio in other threads uses them meanwhile.

    Trio's ``Cancelled`` has the metaclass of abstract classes. So Python calls a function of that metaclass in each
    frame that handles a cancellation, to compare the class with itself.
    """
    scope: Any = trio.CancelScope
    metaclass: Any = NoPublicConstructor
    name = "_might_change_registered_deadline"
    generator = getattr(scope, name)
    setattr(scope, name, lambda changed: _DeadlineChange(changed))
    metaclass.__subclasscheck__ = type.__subclasscheck__
    metaclass.__instancecheck__ = type.__instancecheck__
    try:
        yield
    finally:
        setattr(scope, name, generator)
        del metaclass.__subclasscheck__, metaclass.__instancecheck__


def run_deterministic(
    main: Callable[[], Awaitable[T]], seed: int, agenda: Agenda | None = None, gate: TaskGate | None = None
) -> T:
    """Runs ``main`` to its end on virtual time, with the order of tasks drawn from ``seed``; returns its result.

    Time is the ``agenda``'s, and its calls are made between turns; the ``gate`` may hold tasks back. The function is
    not reentrant and not for use in two threads at once; trio may run in other threads meanwhile.

    An exception raised between two steps of tasks, as by a signal handler, cancels all tasks and passes through.

    Raises:
        TrioVersionError: The installed trio is not the one that this module drives.
        StuckError: No task can ever run again, or tasks run without time advancing.
    """
    check_trio()
    chosen = agenda if agenda is not None else Agenda()
    previous = _trio_run._ALLOW_DETERMINISTIC_SCHEDULING
    shared = _trio_run._r
    library = sniffio.thread_local.name
    collecting = gc.isenabled()
    gc.disable()
    if gc.get_count()[0] > GARBAGE_MAX:
        gc.collect()
    _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _trio_run._r = _ThreadStream(Random(seed), shared)
    sniffio.thread_local.name = "trio"
    try:
        runner = _trio_run.setup_runner(chosen.clock, (), False, True)
        runner.instruments = cast("Instruments", _Instruments(_all={}))
        if gate is not None:
            runner.runq = gate.queue
        loop = _trio_run.unrolled_run(runner, main, ())
        alarms = Alarms()
        with _short_ways(), alarms.delayed():
            try:
                _drive(runner, loop, chosen, alarms)
            except BaseException:
                _wind_down(runner, loop, chosen)
                raise
    finally:
        sniffio.thread_local.name = library
        _trio_run._ALLOW_DETERMINISTIC_SCHEDULING = previous  # type: ignore[misc]
        _trio_run._r = shared
        if collecting:
            gc.enable()
    assert runner.main_task_outcome is not None, "the loop ends when the main task has"
    return cast("T", runner.main_task_outcome.unwrap())


def _drive(runner: _trio_run.Runner, loop: Generator[float, Any, None], agenda: Agenda, alarms: Alarms) -> None:
    """Turns the event loop until it ends."""
    clock, deadlines, runnable = agenda.clock, runner.deadlines, runner.runq
    poll, turn, notify_watchers, watchers = (
        runner.io_manager.get_events,
        loop.send,
        agenda.notify_watchers,
        agenda.watchers,
    )
    next_moment, make_due_calls, ran = agenda.next_moment, agenda.make_due_calls, agenda.ran
    waiting = alarms.waiting
    turns = advanced = stuck = 0
    events: Any = None  # The first value sent to a generator must be None.
    while True:
        if watchers:
            # All tasks of the turn are in the queue at this point, because no deadline has passed.
            deadlines.expire(clock.now)
            ran.clear()
            for task in runnable:
                ran[task.context.get(MACHINE, "")] = None
        try:
            turn(events)
        except StopIteration:
            alarms.strike()
            return
        if waiting:
            alarms.strike()
        if watchers:
            notify_watchers()
        if next_moment() <= clock.now:
            make_due_calls()
        turns += 1
        if turns % TURNS_BETWEEN_POLLS:
            events = ()
        elif turns - advanced > TURNS_AT_ONE_INSTANT_MAX:
            raise StuckError(f"busy loop at {clock.now:.6f} s, time does not advance: {_named(runner, runnable)}")
        else:
            events = poll(0.0)
        # Tasks in wait_all_tasks_blocked are woken by the loop itself when nothing else can run.
        while not runnable and not events and not runner.waiting_for_idle:
            deadline, moment = deadlines.next_deadline(), next_moment()
            advanced = turns
            if moment <= deadline and moment < math.inf:
                clock.now = max(clock.now, moment)
                make_due_calls()
            elif deadline < math.inf:
                clock.now = max(clock.now, deadline)
                break
            else:  # Only a signal or another thread can make a task runnable.
                if waiting:
                    alarms.strike()  # not after the poll: the events would be lost, and trio needs them to end
                events = poll(STUCK_POLL_SECONDS)
                stuck = 0 if events or _waits_for_thread() else stuck + 1
                if stuck == STUCK_POLLS_MAX:
                    named = _named(runner, runner.tasks)
                    raise StuckError(f"deadlock at {clock.now:.6f} s, no task waits for a moment of time: {named}")


def _named(runner: _trio_run.Runner, tasks: Iterable[trio.lowlevel.Task]) -> str:
    """Returns where the tasks of a program stand, for an error message; trio's own tasks and the agenda's are left out.

    The names of functions are in the order of their calls, each with the number of its line.
    """
    own = [
        task
        for task in sorted(tasks, key=lambda one: one._counter)
        if task.parent_nursery is not None
        and (task is runner.main_task or task.parent_nursery.parent_task is not runner.init_task)
        and getattr(task.coro, "cr_code", None) is not Agenda.run.__code__
    ]
    texts = []
    for task in own[:STUCK_TASKS_SHOWN]:
        machine = task.context.get(MACHINE, "")
        frames = [
            f"{frame.f_code.co_qualname}:{line}"
            for frame, line in task.iter_await_frames()
            if not frame.f_globals.get("__name__", "").startswith("trio.")
        ]
        texts.append(f"{f'{machine}: ' if machine else ''}{' > '.join(frames) or task.name}")
    return "; ".join([*texts, *([f"and {len(own) - len(texts)} more"] if len(own) > len(texts) else [])])


def _waits_for_thread() -> bool:
    """Returns whether a thread works for a task, which runs again when the thread is done."""
    return trio.to_thread.current_default_thread_limiter().borrowed_tokens > 0


def _wind_down(runner: _trio_run.Runner, loop: Generator[float, Any, None], agenda: Agenda) -> None:
    """Cancels the tasks of a run that was broken off between two steps, and turns the loop until they have ended.

    Without this the tasks would be collected as garbage, with a warning for each of them.
    """
    main = runner.main_task
    if inspect.getgeneratorstate(loop) != inspect.GEN_SUSPENDED or main is None or main.parent_nursery is None:
        return  # The loop has ended by itself, or has run nothing yet.
    main.parent_nursery.cancel_scope.cancel()
    for _ in range(WIND_DOWN_TURNS_MAX):
        try:
            loop.send(runner.io_manager.get_events(0.0))  # trio ends with a signal to itself
        except StopIteration:
            return
        moments = runner.deadlines.next_deadline(), agenda.next_moment()
        if not runner.runq and not runner.waiting_for_idle and min(moments) < math.inf:
            agenda.clock.now = max(agenda.clock.now, min(moments))
        agenda.make_due_calls()
