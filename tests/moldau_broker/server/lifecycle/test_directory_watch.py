"""Goal: a failed log directory ends its broker only if the controller does not record it in time.

Method: the watch alone, on virtual time, with directories and metadata of the test.
"""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau_broker.server.lifecycle.directory_watch import DirectoryWatch, LogDirectoriesFailedError

DIRECTORIES = ("/d1", "/d2", "/d3")
TIMEOUT_MS = 2_000
LOOKS_MAX = 100
"""A watch that looks at the clock more often runs without waiting."""


class Broker:
    """A registered broker whose directories all work, and its watch."""

    def __init__(self) -> None:
        self.log_dirs: tuple[str, ...] = DIRECTORIES  # that the metadata have as working
        self.failed: tuple[str, ...] = ()
        self.looks = 0
        metadata: Any = SimpleNamespace(image=SimpleNamespace(brokers={1: self}, records_directories=True))
        directories: Any = SimpleNamespace(gives_up=trio.Event(), offline_ids=lambda: self.failed)
        config: Any = SimpleNamespace(
            get_int={"node.id": 1, "log.dir.failure.timeout.ms": TIMEOUT_MS}.get, get_list=lambda _: ("broker",)
        )
        clock: Any = SimpleNamespace(monotonic_ms=self.now_ms)
        logs: Any = self
        self.broker_epoch = 7
        self.watch = DirectoryWatch(clock, config, logs, directories, metadata, lambda: 7)

    @property
    def offline_directories(self) -> tuple[str, ...]:
        return self.failed

    @property
    def online_directories(self) -> tuple[str, ...]:
        return tuple(each for each in DIRECTORIES if each not in self.failed)

    @property
    def directories(self) -> list[Any]:
        return [SimpleNamespace(path=each, error="EIO", online=each not in self.failed) for each in DIRECTORIES]

    def now_ms(self) -> float:
        self.looks += 1
        assert self.looks < LOOKS_MAX
        return trio.current_time() * 1_000

    def fail(self, directory: str) -> None:
        self.failed += (directory,)
        self.watch.notify()

    def record(self, *, but: str = "") -> None:
        """Takes the failed directories out of the metadata, all or all but one."""
        self.log_dirs = tuple(each for each in self.log_dirs if each not in self.failed or each == but)
        self.watch.notify()


def test_each_failure_has_a_time_limit_of_its_own() -> None:
    """The controller records the first failure in time, and a second one a minute later too."""

    async def main() -> None:
        broker = Broker()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.watch.run)
            for directory in DIRECTORIES[:2]:
                broker.fail(directory)
                await trio.sleep(1.5)
                broker.record()
                await trio.sleep(60)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_failure_that_is_not_recorded_ends_the_broker() -> None:
    async def main() -> None:
        broker, begun = Broker(), trio.current_time()
        broker.fail("/d1")
        with pytest.raises(LogDirectoriesFailedError, match=r"did not record within 2000 ms .*/d1: EIO"):
            await broker.watch.run()
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1_000)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_other_changes_give_a_failure_no_more_time() -> None:
    """The metadata of the broker change for many reasons, and another directory may fail meanwhile."""

    async def main() -> None:
        broker, begun = Broker(), trio.current_time()
        broker.fail("/d1")

        async def change() -> None:
            for number in range(20):
                await trio.sleep(0.3)
                if number == 3:
                    broker.fail("/d2")
                broker.watch.notify()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            with pytest.raises(LogDirectoriesFailedError):
                await broker.watch.run()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - begun == pytest.approx(TIMEOUT_MS / 1_000)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("failed", [each for count in (1, 2) for each in combinations(DIRECTORIES, count)])
@pytest.mark.parametrize("late", DIRECTORIES)
def test_the_record_of_one_failure_is_not_that_of_another(failed: tuple[str, ...], late: str) -> None:
    """Directories of one disk fail together: the broker ends unless the controller records each of them."""

    async def main() -> None:
        broker = Broker()
        for directory in failed:
            broker.fail(directory)
        broker.record(but=late)
        with trio.move_on_after(60) as waited:
            with pytest.raises(LogDirectoriesFailedError):
                await broker.watch.run()
        assert waited.cancelled_caught == (late not in failed)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
