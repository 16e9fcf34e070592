"""Runs seeds in worker processes, which always end with the campaign that started them.

An interrupt from a terminal reaches all processes at once. Workers ignore it; only the campaign handles it. When the
campaign leaves the block early, by an interrupt or an exception, it kills its workers, so that it does not wait for
seeds whose results are not needed. When the campaign's process dies, the workers notice and end as well.

``run_each`` is for campaigns: tasks without number, workers that are replaced now and then, a task that never ends.
``workers`` is a plain pool for a list of tasks. (``ProcessPoolExecutor`` can replace workers too, by
``max_tasks_per_child``. In CPython 3.11 it does not replace one that has reached its limit while it counts another as
idle, so that the last tasks of a campaign may wait for ever, and a shutdown with them.)

Workers are forks of one server process, which has imported the code of simulated runs and ignores interrupts. The
campaign starts it with its first worker, and it ends with the campaign.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import enum
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerContext

A = TypeVar("A")
R = TypeVar("R")

LOOK_S = 5.0
"""A campaign looks at its workers at least so often, and counts no more than this at once: where it stood still itself,
as on a terminal's Ctrl-Z, its workers did too."""
START_S = 300.0
"""How long a worker may take until it has imported what it is to run."""


class NotYet(enum.Enum):
    """The type of ``NOT_YET``."""

    NOT_YET = "not yet"


NOT_YET = NotYet.NOT_YET
"""In place of an argument of ``run_each``: the next one is known only after another outcome."""
PRELOADED = ("moldau_jepsen.simulation.campaign.runner", "moldau_jepsen.workers", "moldau_jepsen.preloaded")
"""Modules that the server process imports, so that no worker has to."""
OF_PYTEST = "pytest"
"""Each worker runs the main module of its campaign's process; where that is pytest's, it would import all of that."""


@contextlib.contextmanager
def workers(processes: int | None, *, tasks: int | None = None) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """Provides a pool of ``processes`` (default: one per core), but not more than ``tasks``.

    If a worker dies, the futures of the pool raise ``concurrent.futures.BrokenExecutor``.
    """
    count = processes if processes is not None else (os.cpu_count() or 1)
    context = _context()
    campaign, hold = context.Pipe(duplex=False)  # nothing is ever sent: it is closed
    pool = concurrent.futures.ProcessPoolExecutor(
        max(1, min(count, tasks if tasks is not None else count)),
        mp_context=context,
        initializer=_settle_in,
        initargs=(campaign,),
    )
    try:
        yield pool
    except BaseException:
        hold.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        hold.close()
        campaign.close()


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*((OF_PYTEST,) if OF_PYTEST in sys.modules else ()), *PRELOADED])
    return context


def run_each(
    function: Callable[[A], R],
    arguments: Iterable[A | NotYet],
    *,
    processes: int | None,
    tasks_per_worker: int,
    seconds_max: float,
) -> Generator[tuple[A, R | Exception], None, None]:
    """Calls a function with each of the arguments, in worker processes; yields outcomes as they come.

    Arguments are taken as workers become free, so they may be without number. An error of the function is an outcome
    like what it returns. When the iterator is closed, or interrupted, all workers are killed where they are.

    Args:
        function: Is pickled, as arguments and outcomes are.
        arguments: One task each. ``NOT_YET`` stands for one that depends on an outcome still to come: the iterator is
            asked again after the next outcome has been yielded.
        processes: How many run side by side; default: one per core.
        tasks_per_worker: After so many a worker is replaced.
        seconds_max: Real time for one task. One that takes longer ends as ``TimeoutError``, and its worker is killed.

    Where a worker dies, its task ends as ``BrokenProcessPool`` and no more tasks are begun.
    """
    count = processes if processes is not None else (os.cpu_count() or 1)
    context = _context()
    remaining = iter(arguments)
    more = True
    idle: list[_Worker[A, R]] = []
    busy: dict[object, _Worker[A, R]] = {}
    ended: list[tuple[A, R | Exception]] = []
    try:
        while True:
            yield from ended  # before others are begun, so that an interrupt leaves as little as possible unreported
            ended.clear()
            while more and len(busy) < count:
                try:
                    argument = next(remaining)
                except StopIteration:
                    more = False
                    break
                if argument is NOT_YET:
                    assert busy, "an argument depends on an outcome, but nothing runs"
                    break
                worker = idle.pop() if idle else _Worker[A, R](context)
                busy[worker.connection] = worker
                worker.begin(function, argument)
            if not busy:
                return
            for worker in _heard_of(busy.values(), seconds_max):
                if not worker.ended:
                    continue
                del busy[worker.connection]
                (outcome,) = worker.ended
                ended.append((worker.argument, outcome))
                more = more and not isinstance(outcome, BrokenProcessPool)
                if worker.is_running and worker.tasks < tasks_per_worker:
                    idle.append(worker)
                elif worker.is_running:
                    worker.end()
    finally:
        for worker in (*idle, *busy.values()):
            if worker.is_running:
                worker.end()


def _heard_of(busy: Iterable[_Worker[A, R]], seconds_max: float) -> list[_Worker[A, R]]:
    """Waits for a while; returns the workers that reported something, died, or were killed for being late."""
    waiting = {worker.connection: worker for worker in busy}
    left_s = min(worker.left_s(seconds_max) for worker in waiting.values())
    began = time.monotonic()
    reported = multiprocessing.connection.wait(list(waiting), timeout=max(0.0, min(LOOK_S, left_s)))
    passed_s = min(time.monotonic() - began, LOOK_S)
    found = [waiting.pop(cast("Connection", connection)) for connection in reported]
    for worker in found:
        worker.listen()
    for worker in waiting.values():
        worker.seconds += passed_s
        if worker.left_s(seconds_max) <= 0:
            worker.give_up(seconds_max)
            found.append(worker)
    return found


class _Worker(Generic[A, R]):
    """A process that has one task at a time, as its campaign sees it."""

    def __init__(self, context: ForkServerContext) -> None:
        """Starts the process."""
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process is the end of what can be received
        self.is_running = True
        self.tasks = 0
        self.argument: A
        self.ended: list[R | Exception] = []
        """The outcome of the task, once there is one."""
        self.seconds = 0.0
        """Since the task was given or, from then on, begun."""
        self._has_begun = False

    def begin(self, function: Callable[[A], R], argument: A) -> None:
        """Gives it a task."""
        self.tasks += 1
        self.argument = argument
        self.ended.clear()
        self.seconds, self._has_begun = 0.0, False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: listening to it will show it
            self.connection.send((function, argument))

    def left_s(self, seconds_max: float) -> float:
        """How long it may still take to its next word."""
        return (seconds_max if self._has_begun else START_S) - self.seconds

    def listen(self) -> None:
        """Takes its report, or notes that no further report can come."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(LOOK_S)
            self.ended.append(BrokenProcessPool(f"the worker process died ({self.end()})"))
            return
        if message is None:
            self._has_begun, self.seconds = True, 0.0
            return
        result, failure = message
        if not failure:
            self.ended.append(result)
            return
        error = RuntimeError(failure[-1].strip())
        error.add_note("".join(failure))
        self.ended.append(error)

    def give_up(self, seconds_max: float) -> None:
        """Kills it for being late."""
        self.end()
        late = f"not at its end after {seconds_max:g} s" if self._has_begun else f"not begun after {START_S:g} s"
        self.ended.append(TimeoutError(f"{late} of real time; the worker process was killed"))

    def end(self) -> str:
        """Kills the process, unless it has ended; it holds nothing that would have to be put in order. Says how."""
        assert self.is_running, "a worker is ended once"
        self.is_running = False
        self.connection.close()
        self._process.kill()
        self._process.join()
        how = f"exit code {self._process.exitcode}"
        self._process.close()
        return how


def _serve(campaign: Connection) -> None:
    """Runs tasks of the campaign until it hands out no more."""
    _settle_in()
    has_imported = False
    while True:
        try:
            function, argument = campaign.recv()  # imports what is to be run
        except EOFError:
            return
        if not has_imported:
            has_imported = True
            _spare_the_collector()
        campaign.send(None)
        try:
            campaign.send((function(argument), []))
        except Exception as error:  # noqa: BLE001 - an outcome, which the campaign judges
            campaign.send((None, traceback.format_exception(error)))


def _settle_in(*campaign: Connection) -> None:
    """Runs first in a worker, which ends where it is when its campaign is no more or closes its side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(campaign,), daemon=True).start()
    _spare_the_collector()


def _spare_the_collector() -> None:
    """Imported modules stay: the collector need not look at them before every seed."""
    gc.collect()
    gc.freeze()


def _end_with(campaign: tuple[Connection, ...]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by a campaign"
    multiprocessing.connection.wait([*campaign, parent.sentinel])
    os._exit(1)
