"""Goal: each work in a log directory has its own outcome, and is not watched any more once it has one.

Method: the tasks of a log manager alone, with works that succeed or fail, in the calling thread or in none.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau_broker.log.values import Work
from moldau_broker.server.lifecycle.log_tasks import LogTasks

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_MS = 30_000.0


def tasks_on(offload: Callable[..., Any]) -> LogTasks:
    environment: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: 5.0), disk=SimpleNamespace(offload=offload)
    )
    logger: Any = SimpleNamespace(error=lambda *_, **__: None)
    return LogTasks(environment, logger, LIMIT_MS)


async def at_once(run: Callable[[], None], **_: object) -> None:
    await trio.lowlevel.checkpoint()
    run()


@pytest.mark.parametrize("directory", ["", "/d1"])
def test_works_that_share_a_thread_have_outcomes_of_their_own(directory: str) -> None:
    """One failure must not acknowledge the records of the other logs, nor leave their producers waiting."""
    for fails in product((False, True), repeat=3):
        ended: list[tuple[int, str]] = []

        def work(number: int, *, is_failing: bool, ended: list[tuple[int, str]] = ended) -> Work:
            def run() -> None:
                if is_failing:
                    raise OSError(f"{number}")

            return Work(
                name="flush",
                run=run,
                complete=lambda: ended.append((number, "done")),
                failed=lambda error: ended.append((number, str(error))),
                directory=directory,
                is_flush=True,
            )

        tasks = tasks_on(at_once)
        works = [work(number, is_failing=is_failing) for number, is_failing in enumerate(fails)]
        trio.run(tasks.perform_together, works)
        assert ended == [(number, f"{number}" if fails[number] else "done") for number in range(3)]
        assert tasks.flush_times.count == fails.count(False)
        assert not tasks._patience.has_work


def test_work_that_no_thread_takes_fails_and_is_forgotten() -> None:
    """The disk of what is still watched would be probed, and found to hang, because of work that has ended."""
    for started in (False, True):

        async def offload(run: Callable[[], None], started: bool = started, **_: object) -> None:
            await trio.lowlevel.checkpoint()
            if started:
                run()
            raise RuntimeError("no thread")

        ended: list[str] = []
        tasks = tasks_on(offload)
        work = Work(
            name="flush",
            run=lambda: None,
            complete=lambda ended=ended: ended.append("done"),  # type: ignore[misc]
            failed=lambda error, ended=ended: ended.append(str(error)),  # type: ignore[misc]
            directory="/d1",
        )
        trio.run(tasks.perform_together, [work, work])
        assert ended == ["no thread"] * 2
        assert not tasks._patience.has_work
        assert not tasks._scopes
