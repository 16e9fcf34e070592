"""Ends clients as processes end: some leave their groups and transactions in order, some die at once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from moldau.consumer import Consumer
    from moldau.producer import Producer

C = TypeVar("C", "Consumer", "Producer")

ABANDONED_SHARE = 0.6
"""The clients whose block an exception ends: they send nothing, and their session or transaction times out."""


@contextlib.asynccontextmanager
async def mortal(client: C, draw: random.Random) -> AsyncIterator[C]:
    """Opens a client for the length of the block.

    A cancellation or another exception of the block ends it like the death of its process (it sends nothing), or like a
    program that is interrupted (the member leaves its group, the transaction is aborted), as ``draw`` says.
    """
    async with client as opened:
        try:
            yield opened
        except BaseException:
            if draw.random() < ABANDONED_SHARE:
                opened.abandon()
            raise
