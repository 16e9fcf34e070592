"""What signals do to work that takes long."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Ends a run that is sent SIGTERM (by ``timeout``, by a build server) as Ctrl-C does: it removes what it made, and
    tells what it has found so far.

    A shell without job control starts what it puts into the background with SIGINT ignored. There SIGTERM would do
    nothing at all, so the usual handler is put back for the time being.
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
