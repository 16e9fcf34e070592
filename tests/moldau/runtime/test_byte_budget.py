"""Goal: a byte budget is never exceeded, forgets no grant, and lets no task wait for bytes that are free.

Method: drawn orders of requests, releases and cancellations on virtual time, against a line that is sorted each time.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.runtime.tasks import sync
from moldau.runtime.tasks.sync import SMALL_PART, ByteBudget

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 16
SMALL = LIMIT // SMALL_PART
COUNTS = st.sampled_from((0, 1, SMALL, SMALL + 1, LIMIT // 2, LIMIT - SMALL, LIMIT - SMALL + 1, LIMIT, LIMIT + 9))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), COUNTS),
        st.tuples(st.just("try"), COUNTS),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.sampled_from(("give up", "give up and release")), st.integers(0, 9)),
    ),
    max_size=30,
)


class Line:
    """The rules without a heap: tasks that wait by age, and the bytes in use."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.used = self.grants = 0

    def fits(self, count: int) -> bool:
        return self.used == 0 or self.used + count <= LIMIT - (SMALL if count > SMALL else 0)

    def following(self) -> int:
        is_turn_of_oldest = self.grants % sync.OLDEST_EVERY == sync.OLDEST_EVERY - 1
        return self.waiting[0] if is_turn_of_oldest else min(self.waiting)

    def passes(self, count: int) -> bool:
        """Whether a request is granted at once: it may pass a line of larger ones."""
        is_turn_of_oldest = self.grants % sync.OLDEST_EVERY == sync.OLDEST_EVERY - 1
        return self.fits(count) and (not self.waiting or (count < min(self.waiting) and not is_turn_of_oldest))

    def take(self, count: int) -> None:
        self.used += count
        self.grants += bool(self.waiting)

    def grant(self) -> None:
        while self.waiting and self.fits(count := self.following()):
            self.take(count)
            self.waiting.remove(count)


class Users:
    """The tasks of one story, beside the model; ``waiting`` is in the order of their requests."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.budget = ByteBudget(LIMIT)
        self.line = Line()
        self.nursery = nursery
        self.held: list[int] = []
        self.waiting: list[tuple[int, trio.CancelScope]] = []

    async def ask(self, count: int) -> None:
        entry = (count, trio.CancelScope())
        self.waiting.append(entry)
        with entry[1]:
            await self.budget.acquire(count)
            self.held.append(count)
        self.waiting.remove(entry)

    async def step(self, kind: str, number: int) -> None:
        line = self.line
        if kind == "ask":
            self.nursery.start_soon(self.ask, number)
            if line.passes(number):
                line.take(number)
            else:
                line.waiting.append(number)
        elif kind == "try":
            has_room = line.passes(number)
            assert self.budget.has_room(number) is has_room
            assert self.budget.acquire_nowait(number) is has_room
            if has_room:
                line.take(number)
                self.held.append(number)
        if kind.startswith("give up") and self.waiting:
            count, scope = self.waiting[number % len(self.waiting)]
            scope.cancel()  # its task hears of it after a release of the same turn
            line.waiting.remove(count)
        if kind.endswith("release") and self.held:
            count = self.held.pop(number % len(self.held))
            self.budget.release(count)
            line.used -= count
        line.grant()
        await trio.testing.wait_all_tasks_blocked()
        self.check()

    def check(self) -> None:
        used = sum(self.held)
        assert self.budget.used == used == self.line.used
        assert used <= LIMIT or sum(count > 0 for count in self.held) == 1
        assert sorted(count for count, _ in self.waiting) == sorted(self.line.waiting)
        assert self.budget.waiters == len(self.waiting)
        assert self.budget.waiting is bool(self.waiting)


def run_story(story) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            users = Users(nursery)
            await story(users)
            while users.held:
                await users.step("release", 0)
            assert users.waiting == []
            assert users.budget.used == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture(scope="module", autouse=True)
def soon_the_oldest() -> Iterator[None]:
    """The turn of the oldest comes after few grants, so that short stories have it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "OLDEST_EVERY", 4)
        yield


@example([("try", LIMIT - SMALL), ("try", SMALL), ("release", 0), ("try", LIMIT - SMALL)])
@example([("try", LIMIT), ("ask", 5), ("give up and release", 0)])
@given(STEPS)
def test_no_story_exceeds_the_budget_or_stalls(steps: list[tuple[str, int]]) -> None:
    async def story(users: Users) -> None:
        for kind, number in steps:
            await users.step(kind, number)

    run_story(story)


def test_the_oldest_request_has_its_turn_among_smaller_ones() -> None:
    """Small requests that come without end delay a large one by so many grants at most."""

    async def story(users: Users) -> None:
        await users.step("try", LIMIT)
        await users.step("ask", LIMIT)
        await users.step("ask", 1)
        turns = 0
        while users.waiting[0][0] == LIMIT and turns < 20:
            await users.step("ask", 1)
            await users.step("release", 0)
            turns += 1
        assert turns < sync.OLDEST_EVERY + 2

    run_story(story)


def test_bytes_that_users_keep_are_asked_back_once() -> None:
    """The first task that must wait asks for them; those behind it have nothing to ask for."""

    async def story(users: Users) -> None:
        asked = []
        kept = SimpleNamespace(reclaim=lambda: asked.append(True), keepers_count=lambda: 3)
        users.budget.add_user(kept)
        assert users.budget.fair_share == LIMIT // 3
        for _ in range(3):
            await users.step("ask", LIMIT)
        assert len(asked) == 1
        users.budget.remove_user(kept)
        assert users.budget.fair_share == LIMIT

    run_story(story)


def test_what_is_given_back_at_once_needs_no_wait() -> None:
    async def main() -> None:
        budget = ByteBudget(LIMIT)
        assert budget.acquire_nowait(LIMIT)
        budget.add_user(SimpleNamespace(reclaim=lambda: budget.release(LIMIT), keepers_count=int))
        with trio.CancelScope() as scope:
            scope.cancel()  # a wait would end here
            await budget.acquire(5)
        assert (budget.used, budget.waiters, scope.cancelled_caught) == (5, 0, False)

    trio.run(main)


def test_more_than_was_taken_is_not_given_back() -> None:
    budget = ByteBudget(LIMIT)
    assert budget.acquire_nowait(3)
    for count in (4, -1):
        with pytest.raises(AssertionError):
            budget.release(count)
    with pytest.raises(AssertionError):
        ByteBudget(0)
