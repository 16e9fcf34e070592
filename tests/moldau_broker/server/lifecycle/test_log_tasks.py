"""Goal: each work in a log directory has its own outcome, and is not watched any more once it has one.

Method: the tasks of a log manager alone, with works that succeed or fail, in the calling thread or in none; disks that
answer or hang, on virtual time.
"""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio
import trio.testing

from moldau_broker.log.values import TopicPartition, Work
from moldau_broker.server.lifecycle.log_tasks import LOOKS_PER_TIMEOUT, LogSyncs, LogTasks

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


class SharedFlush:
    """A log manager with one log, whose flush the housekeeping has queued before clients wait for it."""

    def __init__(self) -> None:
        self.log: Any = Mock(
            parent_directory="/d1", topic_partition=TopicPartition("t", 0), storage=Mock(released=False)
        )
        self.calls: list[Callable[[], object]] = []
        self.failed_s: list[float] = []

    def flush_work(self, log: object) -> None:
        """No second flush of a log at a time."""

    def is_flushing(self, log: object) -> bool:
        return log is self.log

    def at_flush_end(self, log: object, call: Callable[[], object]) -> None:
        self.calls.append(call)

    def fail_directory(self, directory: str, error: Exception) -> None:
        assert directory == "/d1"
        self.failed_s.append(trio.current_time())


@pytest.mark.parametrize(
    ("answers", "ends_s", "fails"),
    [(False, None, True), (True, None, False), (False, 10, False), (False, 14.9, False)],
    ids=["hangs", "answers", "ends-soon", "ends-before-the-probe"],
)
def test_a_wait_for_a_background_flush_is_one_for_a_sync(answers: bool, ends_s: float | None, fails: bool) -> None:
    """The housekeeping's own flush has ten times as long, and may still be queued when a client waits for it."""

    async def offload(run: Callable[[], None], **_: object) -> None:
        run()
        await trio.sleep(0.01 if answers else math.inf)

    async def main() -> list[float]:
        environment: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000),
            disk=Mock(offload=offload),
        )
        logger: Any = SimpleNamespace(warning=lambda *_, **__: None)
        tasks, logs = LogTasks(environment, logger, LIMIT_MS), SharedFlush()
        syncs = LogSyncs(tasks, logs)  # type: ignore[arg-type]
        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            await nursery.start(syncs.run)
            nursery.start_soon(tasks.watch_disks, logs)
            syncs.request(logs.log)
            await trio.sleep(ends_s or 2 * LIMIT_MS / 1000)
            for call in logs.calls:
                call()
            await trio.sleep(2 * LIMIT_MS / 1000)
            assert logs.failed_s or not tasks._patience.has_work
            nursery.cancel_scope.cancel()
        return [at_s - begun_s for at_s in logs.failed_s]

    failed_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert bool(failed_s) == fails
    if fails:
        assert LIMIT_MS / 1000 <= failed_s[0] <= LIMIT_MS / 1000 * (1 + 3 / LOOKS_PER_TIMEOUT)
