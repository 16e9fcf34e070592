"""What tests give to worker processes, which import it by name: small tasks, and options that do a run no good."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Collection


def square(number: int) -> tuple[int, int]:
    """Returns the square, and the process that found it."""
    return number * number, os.getpid()


def interrupt_at(last: int, number: int) -> tuple[int, int]:
    """From ``last`` on interrupts the campaign and never ends; before that it is ``square``."""
    if number >= last:
        os.kill(os.getppid(), signal.SIGINT)
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


class Endless:
    """Options of a run that never comes to its end in real time."""

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("__"):
            signal.pause()
        raise AttributeError(name)
