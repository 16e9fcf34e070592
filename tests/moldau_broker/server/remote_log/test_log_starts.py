"""Goal: a log start offset is durable before anything is deleted on its word, and a failing disk gets its time.

Method: the wait alone, in virtual time, over checkpoints that fail for a while.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from moldau_broker.server.remote_log.log_starts import LOOK_MS, LogStarts


def test_a_checkpoint_that_fails_is_written_again_after_a_pause() -> None:
    """A shortage of descriptors takes no directory offline, and may last for long."""
    performed = 0

    async def test() -> None:
        async def perform(_: Any) -> None:
            nonlocal performed
            performed += 1
            assert performed <= 2000 / LOOK_MS + 1

        log: Any = SimpleNamespace(parent_directory="/d", failed=False, storage=SimpleNamespace(released=False))
        short_until = trio.current_time() + 2
        logs: Any = SimpleNamespace(
            is_start_durable=lambda _: trio.current_time() >= short_until, log_start_work=lambda _: "checkpoint"
        )
        with trio.fail_after(5):
            await LogStarts(logs, perform).settle(log)

    trio.run(test, clock=MockClock(autojump_threshold=0))
    assert performed > 1
