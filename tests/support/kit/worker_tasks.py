"""Small tasks, and options that break a run, which worker processes import by name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from moldau_jepsen.simulation.mutants.mutants import MUTANTS, MutantVerdict, run_mutant

if TYPE_CHECKING:
    from collections.abc import Collection


def square(number: int) -> tuple[int, int]:
    """Returns the square, and the process that found it."""
    return number * number, os.getpid()


def has_loaded(name: str) -> bool:
    """Returns whether this process has imported a module."""
    return name in sys.modules


def interrupt_at(last: int, number: int) -> tuple[int, int]:
    """From ``last`` on interrupts the campaign and never ends; before that it is ``square``."""
    if number >= last:
        campaign = multiprocessing.parent_process()
        assert campaign is not None
        assert campaign.pid is not None
        os.kill(campaign.pid, signal.SIGINT)
        signal.pause()
    return square(number)


def pause_at(chosen: Collection[int], number: int) -> tuple[int, int]:
    """Never ends for the numbers chosen."""
    if number in chosen:
        signal.pause()
    return square(number)


def fail_at(chosen: Collection[int], number: int) -> tuple[int, int]:
    """Raises for the numbers chosen."""
    if number in chosen:
        raise LookupError(f"no square of {number}")
    return square(number)


def hunt_shortly(name: str, rule: str, seeds_max: int) -> MutantVerdict:
    """Hunts a mutant as a hunt does, with three seconds of faults in each run."""
    mutant = MUTANTS[name]
    options = replace(mutant.run_of(1), fault_seconds=3.0)
    return run_mutant(mutant, range(1, 1 + seeds_max), options=options, rule=rule)


class Endless:
    """Options of a run that never comes to its end in real time."""

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("__"):
            signal.pause()
        raise AttributeError(name)
