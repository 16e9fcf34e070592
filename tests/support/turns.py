"""Counts the turns that other tasks get while some work runs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@dataclass(slots=True)
class Turns:
    """How many turns another task has had."""

    count: int = 0

    async def go_on(self) -> None:
        """Takes turns until it is cancelled."""
        while True:
            self.count += 1
            await trio.lowlevel.checkpoint()


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Runs another task during the block, and counts its turns."""
    turns = Turns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.go_on)
        yield turns
        nursery.cancel_scope.cancel()
