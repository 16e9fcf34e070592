"""Reads and validates the marker ``moldau`` before anything is started. Imports nothing of Moldau."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

VIRTUAL_SECONDS_MAX = 600.0
"""Virtual seconds after which a simulated test is ended, unless it says otherwise: less than a minute of real time."""


class Repeat(StrEnum):
    """Which seeds of a simulated test are run a second time, to see whether that is the same run."""

    NEVER = "never"
    FAILED = "failed"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The values of a test's marker."""

    simulated: bool = False
    seeds: Collection[int] = (1,)
    brokers: int = 3
    controllers: int = 3
    settings: Mapping[str, object] = field(default_factory=dict)
    links: bool = True
    hostile: bool = False
    fresh: bool = False
    virtual_seconds_max: float | None = None
    """None: as pytest's configuration says."""

    def __post_init__(self) -> None:
        """Validates the types of values; the start of a cluster validates its shape.

        Raises:
            ValueError: A value has a wrong type.
        """
        for name in ("simulated", "links", "hostile", "fresh"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is True or False, not {getattr(self, name)!r}")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"settings must be a dictionary of Kafka's keys, not {self.settings!r}")
        if not isinstance(self.seeds, Collection) or not all(type(seed) is int and seed >= 0 for seed in self.seeds):
            raise ValueError(f"seeds are a list or range of numbers from 0 on, not {self.seeds!r}")
        if not self.seeds:
            raise ValueError("seeds are empty, so that the test would pass without having run")
        if self.virtual_seconds_max is not None:
            check_limit(self.virtual_seconds_max)

    @property
    def shared(self) -> bool:
        """Returns whether the test can use the session's cluster."""
        return self == replace(Wanted(), **{name: getattr(self, name) for name in ("simulated", *OF_SIMULATION)})


KNOWN = tuple(one.name for one in fields(Wanted))
OF_SIMULATION = ("seeds", "virtual_seconds_max")
"""Keywords that have no effect on processes."""


def check_limit(seconds: object) -> None:
    """Checks a limit of virtual time.

    Raises:
        ValueError: It is no number above 0; infinity is one.
    """
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not seconds > 0:
        raise ValueError(f"virtual_seconds_max is a number of seconds above 0, or math.inf, not {seconds!r}")


def parse_limit(text: str) -> float:
    """Reads the limit of virtual time in pytest's configuration.

    Raises:
        ValueError: The text is no number above 0; ``inf`` is one.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"it is a number of seconds above 0, or inf, and not {text!r}")
    return seconds


def hint_of_outsiders(texts: Iterable[str]) -> str | None:
    """Returns what to do if the errors and log lines of a simulated test show a client on the real network, else None.

    Such a client asks the system's resolver for the names of simulated brokers.
    """
    if any("host name 'broker-" in text and "cannot be resolved" in text for text in texts):
        return "a client without environment=moldau_cluster.environment does not find simulated brokers"
    return None


MISSING_LOOP = ("no running event loop", "no current event loop", "should be created within an async function")
"""Parts of the errors of asyncio and aiokafka about an absent event loop of asyncio."""
ON_ASYNCIO = (
    "this test runs under trio, where asyncio has no event loop; a test with the marker asyncio (pytest-asyncio) or "
    "anyio runs on asyncio, against processes"
)


def hint_of_asyncio(error: BaseException) -> str | None:
    """Returns what to do if code for asyncio has failed under trio with ``error``, else None."""
    return ON_ASYNCIO if any(map(_misses_loop, _connected(error))) else None


def _connected(error: BaseException) -> Iterator[BaseException]:
    """Yields an exception, those in a group, and those that led to them, each once."""
    found, seen = [error], set[int]()
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        found += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        found += [before for before in (one.__cause__, one.__context__) if before is not None]


def _misses_loop(error: BaseException) -> bool:
    """Returns whether asyncio has found no event loop: it says so, or takes None for one."""
    if isinstance(error, RuntimeError) and any(text in str(error) for text in MISSING_LOOP):
        return True
    if not isinstance(error, AttributeError) or error.obj is not None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == "asyncio"


def parse_seeds(text: str) -> Collection[int]:
    """Reads the value of ``--moldau-seeds``: numbers and ranges such as ``1-20``, separated by commas.

    Raises:
        ValueError: The text is something else.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        words = (first, last) if dash else (first,)
        if not all(word.isascii() and word.isdecimal() for word in words):
            raise ValueError(f"seeds are numbers and ranges such as 7 or 1-20, separated by commas, not {text!r}")
        seeds += range(int(first), int(words[-1]) + 1)
    if not seeds:
        raise ValueError(f"{text!r} has no seed: a range ends at its greater number")
    return seeds


def read_marker(marker: pytest.Mark | None, *, is_coroutine: bool, simulate: bool) -> Wanted:
    """Returns the values of a marker; the defaults if there is none.

    Args:
        marker: The closest marker of the test.
        is_coroutine: Whether the test is a coroutine function; a simulated test must be one.
        simulate: Whether the command line asks for the simulation of every test that can be simulated.

    Raises:
        ValueError: The marker is invalid; the message is one sentence.
    """
    given = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and marker.args:
        shown = ", ".join(repr(one) for one in marker.args)
        raise ValueError(f"the marker takes keywords only ({', '.join(KNOWN)}), and not {shown}")
    unknown = [name for name in given if name not in KNOWN]
    if unknown:
        raise ValueError(f"the marker takes {', '.join(KNOWN)}, and not {', '.join(unknown)}")
    useless = [name for name in OF_SIMULATION if name in given]
    if useless and "simulated" not in given and not simulate:
        raise ValueError(
            f"{useless[0]} {'are' if useless[0] == 'seeds' else 'is'} for the simulation: say simulated=True too, or "
            "simulated=False to leave it to the command line"
        )
    wanted = Wanted(**given)
    if wanted.simulated and not is_coroutine:
        raise ValueError(
            "only a test that is a coroutine function can be simulated, and none with the marker asyncio or anyio"
        )
    return Wanted(**{**given, "simulated": True}) if simulate and is_coroutine else wanted
