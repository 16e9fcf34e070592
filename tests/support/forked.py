"""Runs tests in several processes that are forks of the one that has collected them (``pytest --forks NUMBER``).

Workers that start by themselves would each import and collect the whole suite, which costs as much processor time as
hundreds of tests. A fork has all of it, and shares its memory. Each worker gets one portion of ``support.order`` at a
time, the longest first, and sends the reports of each test when the test has ended. If a worker dies, its test has
failed, and another fork gets the rest of its portion.
"""

from __future__ import annotations

import atexit
import mmap
import os
import signal
import struct
import sys
import time
import traceback
import warnings
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pytest

from support.order import longest_first, portion_of
from support.shared import SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST: Final = 4
"""The greatest number of workers that ``auto`` means."""
NUMBER: Final = struct.Struct("i")
NONE_YET: Final = -1
END_S: Final = 20.0
"""How long workers may take to end when a run is cut short."""


def add_option(parser: pytest.Parser) -> None:
    """Declares ``--forks``."""
    text = "run tests in this many forks of this process; auto: two more than there are cores, but at most 4"
    parser.getgroup("forks").addoption("--forks", default="0", metavar="NUMBER", help=text)


def number_of_forks(config: pytest.Config) -> int:
    """Returns the number of workers; 0 if the tests run in this process."""
    given = str(config.getoption("forks", "0"))
    return min((os.cpu_count() or 1) + 2, MOST) if given == "auto" else int(given)


def run_forked(session: pytest.Session) -> bool | None:
    """Runs the collected tests, for ``pytest_runtestloop``; None: pytest is to run them in this process."""
    number = number_of_forks(session.config)
    if not number or session.config.option.collectonly or session.testsfailed:
        return None
    _Run(session).run(number)
    return True


class _Worker(NamedTuple):
    slot: int
    pid: int
    connection: Connection


class _Run:
    """The tests that are left, and the workers."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._items = longest_first(session.items)
        portions: dict[str, list[int]] = {}
        for place, item in enumerate(self._items):
            portions.setdefault(portion_of(item.nodeid), []).append(place)
        self._left = deque(portions.values())
        self._given: dict[int, list[int]] = {}
        """The portion that each worker has, by its slot."""
        self._workers: dict[Connection, _Worker] = {}
        self._slots = 0
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        """Begins with a number that is not 0 when all are to stop; then the place of each slot's test."""

    def run(self, number: int) -> None:
        """Runs all tests, or those until one says that no more are to run."""
        self._session.config.get_terminal_writer().flush()
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # a fork would empty it again
        try:
            for _ in range(min(number, len(self._left))):
                self._fork()
            while self._workers:
                for ready in wait(list(self._workers)):
                    assert isinstance(ready, Connection)
                    self._hear(self._workers[ready])
                if self._session.shouldfail or self._session.shouldstop:
                    NUMBER.pack_into(self._shared, 0, 1)
        finally:
            self._end_workers()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        assert not self._left, "each portion was given to a worker"

    def _end_workers(self) -> None:
        """Ends the workers that still run, because this run is cut short; they have some time to end in order."""
        NUMBER.pack_into(self._shared, 0, 1)
        running = {worker.pid for worker in self._workers.values()}
        for pid in running:
            os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + END_S
        while running:
            running = {pid for pid in running if not os.waitpid(pid, os.WNOHANG)[0]}
            time.sleep(0.01 if running else 0)
            if time.monotonic() >= deadline:  # a shell may have started this run with SIGINT ignored
                for pid in running:
                    os.kill(pid, signal.SIGKILL)

    def _fork(self) -> None:
        self._slots += 1
        slot = self._slots
        mine, theirs = Pipe()
        NUMBER.pack_into(self._shared, slot * NUMBER.size, NONE_YET)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of libraries' threads, which know of forks
            child = os.fork()
        if child == 0:
            for connection in (mine, *self._workers):
                connection.close()
            self._become_worker(slot, theirs)
        theirs.close()
        self._workers[mine] = _Worker(slot, child, mine)

    def _hear(self, worker: _Worker) -> None:
        """Handles what a worker sent: None asks for a portion, a list holds reports and warnings of a test."""
        try:
            sent = worker.connection.recv()
        except (EOFError, ConnectionError):
            self._ended(worker)
            return
        if sent is None:
            stops = self._session.shouldfail or self._session.shouldstop
            portion = [] if stops or not self._left else self._left.popleft()
            self._given[worker.slot] = portion
            worker.connection.send(portion)
            return
        config = self._session.config
        for kind, data in sent:
            if kind == "warning":
                config.hook.pytest_warning_recorded.call_historic(kwargs=data)
            elif kind == "stop":
                self._session.shouldstop = data
            else:
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                config.hook.pytest_runtest_logreport(report=report)

    def _ended(self, worker: _Worker) -> None:
        """A worker has ended: in order if it has no portion; otherwise its test failed, and the rest is left."""
        del self._workers[worker.connection]
        worker.connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        portion = self._given.pop(worker.slot, None)
        if not portion and code:
            raise RuntimeError(f"a process for tests ended with exit code {code} while it ran none")
        if not portion or self._session.shouldfail or self._session.shouldstop:
            return
        (place,) = NUMBER.unpack_from(self._shared, worker.slot * NUMBER.size)
        place = portion[0] if place == NONE_YET or place not in portion else place
        item = self._items[place]
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="failed",
            longrepr=f"the process that ran this test ended with exit code {code}",
            when="call",
        )
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if rest := portion[portion.index(place) + 1 :]:
            self._left.appendleft(rest)
        if self._left:
            self._fork()

    # -- in a worker ---------------------------------------------------------------------------------------------------

    def _become_worker(self, slot: int, connection: Connection) -> NoReturn:
        """Runs portions until there are none; this process ends."""
        code = 1
        try:
            _separate(self._session.config, slot)
            sender = _Sender(self._session.config)
            self._session.config.pluginmanager.register(sender, "moldau-forked")
            connection.send(None)
            while portion := connection.recv():
                if not self._run_portion(portion, slot, connection, sender):
                    break
                connection.send(None)
            SHARED.close()
            atexit._run_exitfuncs()
            code = 0
        except KeyboardInterrupt:
            SHARED.close()
        except BaseException:  # noqa: BLE001 - a fork must not return into the code of the process it came from
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _run_portion(self, portion: Sequence[int], slot: int, connection: Connection, sender: _Sender) -> bool:
        """Runs the tests of a portion; returns False if no more are to run."""
        items = [self._items[place] for place in portion]
        for place, item, following in zip(portion, items, [*items[1:], None], strict=True):
            NUMBER.pack_into(self._shared, slot * NUMBER.size, place)
            exits = False
            try:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            except pytest.exit.Exception as exit_asked:
                sender.sent.append(("stop", str(exit_asked)))
                exits = True
            except KeyboardInterrupt:
                self._session._setupstate.teardown_exact(None)
                raise
            connection.send(sender.sent)
            sender.sent = []
            stops = exits or self._session.shouldfail or self._session.shouldstop
            if stops or NUMBER.unpack_from(self._shared, 0)[0]:
                self._session._setupstate.teardown_exact(None)
                return False
        return True


class _Sender:
    """Keeps what is to be sent of the test that runs."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.sent: list[tuple[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self.sent.append(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Keeps a warning; its text stands for it, because not every warning can be sent."""
        plain = warnings.WarningMessage(
            str(warning_message.message), UserWarning, warning_message.filename, warning_message.lineno
        )
        kept = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self.sent.append(("warning", kept))


def _separate(config: pytest.Config, slot: int) -> None:
    """Gives a worker its own captured output and directories, and leaves the terminal to the first process."""
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    capture = plugins.getplugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()  # its file is shared with the other processes
    capture.start_global_capturing()
    capture.suspend_global_capture()
    factory = config._tmp_path_factory  # type: ignore[attr-defined]  # as xdist's option basetemp, after the start
    factory._basetemp = factory.getbasetemp() / f"fork-{slot}"
    factory._basetemp.mkdir(mode=0o700)
