"""What tests give to worker processes, which import it by name: small tasks, and options that do a run no good."""

import os
import signal


def square(number):
    """Returns the square, and the process that found it."""
    return number * number, os.getpid()


def interrupt_at(last, number):
    """From ``last`` on interrupts the campaign and never ends; before that it is ``square``."""
    if number >= last:
        os.kill(os.getppid(), signal.SIGINT)
        signal.pause()
    return square(number)


def pause_at(chosen, number):
    """Never ends for the numbers chosen."""
    if number in chosen:
        signal.pause()
    return square(number)


def fail_at(chosen, number):
    """Raises for the numbers chosen."""
    if number in chosen:
        raise LookupError(f"no square of {number}")
    return square(number)


class Endless:
    """Options of a run that never comes to its end in real time."""

    def __getattr__(self, name):
        if not name.startswith("__"):
            signal.pause()
        raise AttributeError(name)
