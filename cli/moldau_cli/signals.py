"""Handling of signals during long commands."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM (from ``timeout`` or a build server) interrupt a run as Ctrl-C does.

    The run then cleans up and reports its results so far. A shell without job control starts background processes with
    SIGINT ignored. SIGTERM would then have no effect, so Python's default SIGINT handler is restored for the block.
    """
    terminate, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, interrupt)
