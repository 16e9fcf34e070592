"""Progress on stderr: a bar on a terminal, a line every few seconds elsewhere (logs, continuous integration)."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

LINE_EVERY_S = 2.0


class Progress(Protocol):
    """The progress of one piece of work."""

    def update(self, done: int) -> None:
        """Reports how much is done, in the unit of the total."""
        ...


class _Bar:
    def __init__(self, advance: _Advance) -> None:
        self._advance = advance

    def update(self, done: int) -> None:
        self._advance(done)


class _Advance(Protocol):
    def __call__(self, done: int) -> None: ...


class _Lines:
    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._next = time.monotonic() + LINE_EVERY_S

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LINE_EVERY_S
            share = f" of {self._total:,}" if self._total else ""
            sys.stderr.write(f"  {self._label}: {done:,}{share}\n")


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """Shows ``label`` while the block runs, and its time at the end; without ``total``, the bar is only a spinner."""
    began = time.monotonic()
    if sys.stderr.isatty():
        with _bar(label, total) as shown:
            yield shown
    else:
        sys.stderr.write(f"{label} ...\n")
        yield _Lines(label, total)
    sys.stderr.write(f"{label}: {time.monotonic() - began:.1f} s\n")
    sys.stderr.flush()


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Shows ``label`` with a spinner and the time while the block runs, and nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with _bar(label, None):
        yield


@contextmanager
def _bar(label: str, total: int | None) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    counted = [BarColumn(), MofNCompleteColumn()] if total else []
    with RichProgress(*columns, *counted, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)
        yield _Bar(lambda done: shown.update(task, completed=done))
