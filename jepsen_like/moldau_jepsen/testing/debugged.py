"""Runs a coroutine test under pytest's option ``--trace``: the debugger stops at the first line of the test.

Pytest calls the test function under its debugger, as it would an ordinary function. The call of a coroutine function
runs none of its lines, and the event loop begins them later; so the debugger starts to trace there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pdb import Pdb


async def stepped(test: Awaitable[object], debugger: Pdb) -> None:
    """Awaits a test, whose first line is the next one that the debugger sees."""
    debugger.reset()
    sys.settrace(debugger.trace_dispatch)
    try:
        await test
    finally:
        sys.settrace(None)
