"""Runs a simulated test once for each of its seeds, and a seed that failed once more.

A failure that another run of the same seed does not repeat cannot be looked at again. So the second run is compared
with the first one, event by event. If they differ, the report names the first event that does, and a third run finds
the calls in the test's own code that can be the reason (``suspects``). With ``--moldau-repeat always`` this is a check
of seeds that pass.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import signal
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest

from moldau.runtime.tasks.exceptions import leaves
from moldau_jepsen.testing.imports import PACKAGES
from moldau_jepsen.testing.recording import Recording, first_difference
from moldau_jepsen.testing.scenario import run_simulated
from moldau_jepsen.testing.simulated import TestNeverEndedError
from moldau_jepsen.testing.suspects import Suspects, is_library
from moldau_jepsen.testing.wanted import Repeat, hint_of_outsiders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from moldau_jepsen.testing.pipeline import PipelineHistory
    from moldau_jepsen.testing.recording import Difference
    from moldau_jepsen.testing.scenario import Scenario
    from moldau_jepsen.testing.wanted import Wanted

TIMELINE_SHOWN: Final = 40
"""Number of timeline lines that the report of a failed simulated test shows."""
OWN_FIXTURES: Final = frozenset({"moldau_cluster", "moldau_history", "request"})
"""Fixtures that each run gets as the first run of a test does."""
READERS: Final = frozenset({"capsys", "capfd", "capsysbinary", "capfdbinary", "capteesys"})
"""Fixtures with which a test reads what it has printed."""
HASH_SEED: Final = "PYTHONHASHSEED"
PASSED: Final = "passed"


class Seeds:
    """The runs of one test."""

    def __init__(
        self,
        item: pytest.Function,
        scenario: Scenario,
        wanted: Wanted,
        *,
        options: list[str],
        repeat: Callable[[], Repeat],
    ) -> None:
        """Takes the test, its coroutine, and the options without which a printed command would be another one.

        ``repeat`` is called when a run has ended, because it may depend on what the run did.
        """
        self.timeline: list[str] = []
        """Lines on the failure, for its report."""
        self._item, self._scenario, self._wanted, self._options, self._repeat = item, scenario, wanted, options, repeat
        self._history = cast("PipelineHistory | None", item.funcargs.get("moldau_history"))
        self._of_fixtures = None if self._history is None else self._history.copy()

    def run_all(self) -> None:
        """Runs the test with each seed; the first failure ends it.

        With ``Repeat.ALWAYS`` the test fails, too, if a seed has passed and a second run of it is another one.
        """
        for seed in self._wanted.seeds:
            recording, events = Recording(), list[str]()
            try:
                self._run(seed, recording, events)
            except (KeyboardInterrupt, SystemExit, pytest.exit.Exception, pytest.skip.Exception):
                raise
            except BaseException as error:
                # pytest.fail does not raise an Exception. A note is shown even where pytest shortens a group.
                notes = [self._command(seed)]
                if (hint := hint_of_outsiders([str(error), *events])) is not None:
                    notes.append(hint)
                if self._is_repeated(error) and (text := self._compared(seed, _outcome(error), recording)) is not None:
                    notes.append(text)
                for note in notes:
                    error.add_note(note)
                self.timeline = [*events[-TIMELINE_SHOWN:], *notes]
                raise
            if self._repeat() is Repeat.ALWAYS and (text := self._compared(seed, PASSED, recording)) is not None:
                pytest.fail(f"{text}\n{self._command(seed)}", pytrace=False)

    def _run(self, seed: int, recording: Recording | None = None, events: list[str] | None = None) -> None:
        if self._history is not None and self._of_fixtures is not None:
            self._history.go_back(self._of_fixtures)  # what another run reported is no part of this one
        run_simulated(
            self._scenario,
            seed=seed,
            brokers=self._wanted.brokers,
            controllers=self._wanted.controllers,
            settings=self._wanted.settings,
            virtual_seconds_max=self._wanted.virtual_seconds_max,
            timeline=events,
            recording=recording,
        )

    def _command(self, seed: int) -> str:
        """Returns how to run one seed of the test again, with the order of sets of strings if that was chosen."""
        command = shlex.join(["pytest", self._item.nodeid, *self._options, "--moldau-seeds", str(seed)])
        chosen = os.environ.get(HASH_SEED, "")
        variable = f"{HASH_SEED}={chosen} " if chosen.isdecimal() else ""
        return f"in the simulation, with seed {seed}: {variable}{command}"

    def _is_repeated(self, error: BaseException) -> bool:
        """Returns whether a failure deserves a second run.

        A test that was skipped or is expected to fail has no failure. One that a time limit has ended would be without
        that limit in its second run, or wait as long again if the limit is of virtual time.
        """
        if self._repeat() is Repeat.NEVER or self._item.get_closest_marker("xfail") is not None or _is_of_alarm(error):
            return False
        return not isinstance(error, TestNeverEndedError) and all(map(_is_failure, leaves(error)))

    def _compared(self, seed: int, outcome: str, recording: Recording) -> str | None:
        """Runs a seed once more; returns how that run differs from the first one, None if it is the same."""
        with self._in_silence():
            again = Recording()
            other = self._outcome_of(seed, again)
            difference = first_difference(recording, again)
            if difference is None and other == outcome:
                return None
            suspects = Suspects()
            with suspects.watched():
                self._outcome_of(seed, None)
        found = suspects.until(float("inf") if difference is None else difference.seconds)
        return "\n".join(
            [
                f"not deterministic: a second run of seed {seed} was another one",
                f"  outcome: {outcome}; of the second run: {other}",
                *(_shown(difference) if difference is not None else [f"  all {again.events} events are the same"]),
                *self._reasons(found),
            ]
        )

    def _outcome_of(self, seed: int, recording: Recording | None) -> str:
        try:
            self._run(seed, recording)
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception):
            raise
        except BaseException as error:  # noqa: BLE001  # it is compared with the one that is reported
            return _outcome(error)
        return PASSED

    def _reasons(self, suspects: list[str]) -> list[str]:
        """Returns the lines that say where to look."""
        lines = ["  calls before that give other results in each run:", *(f"    {one}" for one in suspects)]
        if suspects:
            lines.append("  take them from the environment of the cluster (random, clock), or from the test")
        else:
            lines = [
                "  no call of the test's own code draws random numbers, reads a clock or starts a thread before that; "
                "look for state that outlives a run (a global variable, a file), or the order of a set of objects"
            ]
        own = [name for name in self._item._fixtureinfo.argnames if name not in OWN_FIXTURES]
        if own:
            lines.append(f"  fixtures are set up once for all runs of a test: {', '.join(own)}")
        return lines

    @contextmanager
    def _in_silence(self) -> Iterator[None]:
        """Keeps what the test prints and logs from being reported twice, unless the test itself reads it."""
        names = set(self._item.fixturenames)
        with ExitStack() as stack:
            if not names & READERS:
                stack.enter_context(redirect_stdout(io.StringIO()))
                stack.enter_context(redirect_stderr(io.StringIO()))
            if "caplog" not in names:
                for handler in logging.getLogger().handlers:
                    handler.addFilter(_nothing)
                    stack.callback(handler.removeFilter, _nothing)
            yield


def _is_failure(error: BaseException) -> bool:
    """Returns whether an error says that a test has failed; ``pytest.fail`` does not raise an ``Exception``."""
    return isinstance(error, Exception | pytest.fail.Exception) and not isinstance(error, pytest.xfail.Exception)


def _nothing(_: logging.LogRecord) -> bool:
    """Lets no line through."""
    return False


def _shown(difference: Difference) -> list[str]:
    """Returns a difference as lines."""
    return [
        f"  the last event of both: {_event(difference.before)}",
        f"  then in the first run:  {_event(difference.first)}",
        f"  in the second run:      {_event(difference.second)}",
    ]


def _event(line: str | None) -> str:
    return "none" if line is None else " ".join(line.split())


def _outcome(error: BaseException) -> str:
    """Returns types and places of an error, without texts, which may hold addresses of memory."""
    return ", ".join(f"{type(leaf).__name__}{_place(leaf.__traceback__)}" for leaf in leaves(error))


def _place(trace: TracebackType | None) -> str:
    """Returns the last line of the test's own code in a traceback, or its last line of any code."""
    own, any_code = "", ""
    while trace is not None:
        frame = trace.tb_frame
        any_code = f" at {Path(frame.f_code.co_filename).name}:{trace.tb_lineno}"
        if (
            not is_library(frame.f_code.co_filename)
            and frame.f_globals.get("__name__", "").split(".")[0] not in PACKAGES
        ):
            own = any_code
        trace = trace.tb_next
    return own or any_code


def _is_of_alarm(error: BaseException) -> bool:
    """Returns whether a handler of SIGALRM has raised an error, as time limits of tests do."""
    code = getattr(signal.getsignal(signal.SIGALRM), "__code__", None)
    trace = error.__traceback__
    while trace is not None and code is not None:
        if trace.tb_frame.f_code is code:
            return True
        trace = trace.tb_next
    return False
