"""Goal: work is restarted after the named errors only, and a host of tasks takes them exactly while its owner runs.

Method: virtual time, and each kind of end that a work may have, alone and in groups.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.runtime.tasks.supervision import (
    BackoffPolicy,
    TaskHost,
    cancel_when,
    run_with_restarts,
    set_when_cancelled,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOST, LATE, BUG = ConnectionResetError("gone"), trio.TooSlowError(), KeyError("bug")


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


class Clock:
    def monotonic_ms(self) -> float:
        return trio.current_time() * 1_000


@pytest.mark.parametrize(
    ("error", "restarts"),
    [
        (LOST, True),
        (LATE, True),
        (BUG, False),
        (AssertionError(), False),
        (ExceptionGroup("", [LOST]), True),
        (ExceptionGroup("", [LOST, LATE]), True),
        (ExceptionGroup("", [LOST, BUG]), False),
        (ExceptionGroup("", [BUG]), False),
        (ExceptionGroup("", [LOST, ExceptionGroup("", [LATE])]), True),
        (ExceptionGroup("", [LOST, ExceptionGroup("", [LATE, BUG])]), False),
        (BaseExceptionGroup("", [LOST, KeyboardInterrupt()]), False),
    ],
    ids=repr,
)
def test_only_named_errors_restart_a_work(error: BaseException, restarts: bool) -> None:
    """A bug among the errors of several tasks ends the node, as a bug alone does."""
    runs = []

    async def work() -> None:
        runs.append(trio.current_time())
        if len(runs) == 1:
            raise error

    async def main() -> None:
        environment: Any = SimpleNamespace(clock=Clock(), random=random.Random(1))
        logger: Any = SimpleNamespace(warning=lambda *_, **values: None)
        call = run_with_restarts(environment, "work", work, logger=logger, policy=BackoffPolicy(jitter=0))
        if restarts:
            await call
            assert runs == [runs[0], pytest.approx(runs[0] + 0.1)]
        else:
            with pytest.raises(type(error)) as caught:
                await call
            assert caught.value is error
            assert len(runs) == 1

    run(main)


def test_waits_of_restarts_are_those_of_the_policy() -> None:
    """Each failure waits twice as long, up to the bound; the jitter goes both ways and no further than it says."""
    policy = BackoffPolicy(initial_ms=50, max_ms=300, factor=2, jitter=0.5)
    for failures, plain in enumerate((50, 100, 200, 300, 300), 1):
        draws = [policy.delay_ms(failures, SimpleNamespace(random=lambda draw=draw: draw)) for draw in (0, 0.5, 1)]  # type: ignore[arg-type]
        assert draws == [plain / 2, plain, plain * 1.5]


def test_a_host_takes_tasks_while_its_owner_runs() -> None:
    """The host refuses tasks as soon as the block has ended, though it waits for those that run."""

    async def main() -> None:
        host, seen, release = TaskHost(), [], trio.Event()
        accepted = []

        async def task(name: str) -> None:
            seen.append(name)
            await release.wait()
            accepted.append(host.accepts)

        assert not host.accepts
        with pytest.raises(AssertionError):
            host.start(task, "early")
        async with trio.open_nursery() as nursery:

            async def owner() -> None:
                async with host.running():
                    assert host.accepts
                    host.start(task, "one")
                    host.start(task, "two")
                seen.append("ended")

            nursery.start_soon(owner)
            await trio.testing.wait_all_tasks_blocked()
            assert (sorted(seen), host.accepts) == (["one", "two"], False)
            release.set()
        assert (seen[-1], accepted) == ("ended", [False, False])

    run(main)


def test_a_host_that_fails_takes_no_more_tasks() -> None:
    async def main() -> None:
        host = TaskHost()
        with pytest.raises(ExceptionGroup) as caught:
            async with host.running():
                raise LOST
        assert caught.value.exceptions == (LOST,)
        assert not host.accepts

    run(main)


def test_an_event_ends_a_scope_and_an_end_sets_an_event() -> None:
    async def main() -> None:
        ended, asked, waited = trio.Event(), trio.Event(), False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_when_cancelled, ended)
            nursery.start_soon(cancel_when, asked, nursery.cancel_scope)
            await trio.testing.wait_all_tasks_blocked()
            waited = not ended.is_set()
            asked.set()
        assert (waited, ended.is_set()) == (True, True)

    run(main)
