"""Handling of signals during long commands."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    import trio


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM (from ``timeout`` or a build server) and SIGHUP interrupt a run as Ctrl-C does.

    A terminal that is closed sends SIGHUP; under nohup it is ignored and stays so. The run cleans up and reports its
    results so far. A shell without job control starts background processes with SIGINT ignored. SIGTERM would then have
    no effect, so Python's default SIGINT handler is restored for the block.
    """
    terminate, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hang_up = signal.getsignal(signal.SIGHUP)
    for number in (signal.SIGTERM, *((signal.SIGHUP,) if hang_up is not signal.SIG_IGN else ())):
        signal.signal(number, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGHUP, hang_up)
        signal.signal(signal.SIGINT, interrupt)


def signals_of_nodes() -> tuple[signal.Signals, ...]:
    """Returns the signals that stop a node in order: SIGHUP too, which a closed terminal sends, but not under nohup."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if hangs_up else ()))


async def ends_at_signal(work: Callable[[], Awaitable[None]]) -> bool:
    """Runs ``work`` until it ends, or until SIGINT or SIGTERM cancels it; returns whether a signal did."""
    import trio

    signalled = False

    async def watch(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        nonlocal signalled
        async for _ in signals:
            signalled = True
            scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals, nursery.cancel_scope)
            await work()
            nursery.cancel_scope.cancel()
    return signalled
