"""Goal: a connection pays for the bytes of its waiting requests or stops reading, and it returns every byte.

Method: accounts and a budget in one task tree without time; random answers and payments against a sum.
"""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from moldau.runtime.net.serving.held import HeldBytes
from moldau.runtime.tasks.sync import OLDEST_EVERY, ByteBudget


def test_the_allowance_is_free_and_the_rest_is_charged() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        account = HeldBytes(budget, 10)
        account.request_waits(10)
        assert account.unpaid == 0
        account.request_waits(30)
        account.answer_queued(5)
        assert account.unpaid == 35
        assert account.fits(1000), "nothing else is in use"
        await account.pay()
        assert account.fits(53), "an eighth is left for those that ask for little"
        assert not account.fits(54)
        assert account.fits(12)
        assert (account.unpaid, account.charged, budget.used) == (0, 35, 35)
        account.request_answered()
        assert budget.used == 25
        account.request_answered()
        account.answer_sent(5)
        assert (account.held, budget.used) == (0, 0)

    trio.run(main)


def test_connection_without_budget_waits_for_answers() -> None:
    """A connection that cannot pay waits until others' answers or its own have left."""

    async def main() -> None:
        budget = ByteBudget(100)
        first, second, third = (HeldBytes(budget, 0) for _ in range(3))
        first.request_waits(80)
        await first.pay()
        second.request_waits(30)
        third.request_waits(1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.pay)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(third.pay)
            await trio.testing.wait_all_tasks_blocked()
            assert (first.others_wait, second.others_wait, budget.used) == (True, True, 80)
            first.request_answered()
            await trio.testing.wait_all_tasks_blocked()
            assert (second.charged, second.others_wait, third.others_wait) == (30, True, False)
            third.request_answered()  # more than the budget: it was answered all the same
        assert (third.charged, budget.used, budget.waiting) == (0, 30, False)
        second.close()
        assert budget.used == 0

    trio.run(main)


def test_a_cancelled_payment_takes_nothing() -> None:
    async def main() -> None:
        budget = ByteBudget(10)
        assert budget.acquire_nowait(10)
        account = HeldBytes(budget, 0)
        account.request_waits(5)
        with trio.CancelScope() as scope:
            scope.cancel()
            await account.pay()
        assert (account.charged, budget.used, budget.waiting) == (0, 10, False)

    trio.run(main)


@pytest.mark.parametrize("seed", range(20))
def test_random_accounts_stay_within_the_budget(seed: int) -> None:
    """Random accounts never exceed the budget, and they return all bytes."""
    draw = random.Random(seed)
    budget = ByteBudget(100)

    async def connection(account: HeldBytes) -> None:
        waiting = 0
        for _ in range(50):
            if draw.random() < 0.6:
                account.request_waits(draw.choice((1, 20, 60, 150)))
                waiting += 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(account.pay)
                for _ in range(draw.randrange(4)):
                    await trio.lowlevel.checkpoint()
                while waiting and (account.unpaid > 0 or draw.random() < 0.4):
                    account.request_answered()
                    waiting -= 1
                    await trio.lowlevel.checkpoint()
            assert account.unpaid <= 0
            assert account.charged == max(0, account.held - 7), "nothing is paid for that has left"
            assert budget.used <= 100 or account.charged in (0, budget.used), "alone, if larger than all"
        account.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(connection, HeldBytes(budget, 7))
        assert (budget.used, budget.waiting) == (0, False)

    trio.run(main)


async def _take(budget: ByteBudget, count: int, order: list[str], name: str) -> None:
    await budget.acquire(count)
    order.append(name)


def test_small_requests_pass_large_ones() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        order: list[str] = []
        assert budget.acquire_nowait(80)
        async with trio.open_nursery() as nursery:
            for name, count in (("large", 60), ("small", 30), ("smaller", 25)):
                nursery.start_soon(_take, budget, count, order, name)
                await trio.testing.wait_all_tasks_blocked()
            assert budget.acquire_nowait(12), "no waiter asks for as little"
            assert not budget.has_room(26)
            budget.release(92)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(order) == ["small", "smaller"]
            budget.release(55)
        assert (order[2], budget.used) == ("large", 60)

    trio.run(main)


def test_the_oldest_waiter_is_served_in_bounded_time() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        order: list[str] = []
        assert budget.acquire_nowait(40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take, budget, 100, order, "large")
            await trio.testing.wait_all_tasks_blocked()
            passed = 0
            while budget.acquire_nowait(10):
                budget.release(10)
                passed += 1
            assert passed < OLDEST_EVERY, "then it is its turn"
            nursery.start_soon(_take, budget, 10, order, "small")
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
            budget.release(40)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["large"], "alone, for it takes all"
            budget.release(100)
        assert (order, budget.used) == (["large", "small"], 10)

    trio.run(main)


def test_a_cancelled_place_in_line_makes_way() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        order: list[str] = []
        assert budget.acquire_nowait(95)
        async with trio.open_nursery() as nursery:
            first = nursery.cancel_scope
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(_take, budget, 8, order, "small")
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.start_soon(_take, budget, 9, order, "next")
                    await trio.testing.wait_all_tasks_blocked()
                    budget.release(1)
                    await trio.testing.wait_all_tasks_blocked()
                    assert budget.waiters == 2
                    scope.cancel()
            budget.release(4)
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["next"]
            assert not first.cancel_called
        assert (budget.used, budget.waiting) == (99, False)

    trio.run(main)


class Keepers:
    """A user with so many connections that keep something."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0

    def reclaim(self) -> None:
        self.asked += 1

    def keepers_count(self) -> int:
        return self.count


def test_the_fair_share_counts_holders_and_waiters() -> None:
    async def main() -> None:
        budget = ByteBudget(100)
        users = [Keepers(0), Keepers(3), Keepers(1)]
        assert budget.fair_share == 100
        for user in users:
            budget.add_user(user)
        assert budget.fair_share == 25
        budget.remove_user(users[2])
        assert budget.fair_share == 33
        assert budget.acquire_nowait(100)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(budget.acquire, 10)
                await trio.testing.wait_all_tasks_blocked()
            assert [user.asked for user in users] == [1, 1, 0], "asked once, when bytes became short"
            nursery.cancel_scope.cancel()

    trio.run(main)
