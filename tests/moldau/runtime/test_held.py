"""Goal: what waiting requests keep is paid or not read beyond, and every byte is given back, whatever the order.

Method: accounts and a budget in one task tree without time; random answers and payments against a sum.
"""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from moldau.runtime.held import HeldBytes
from moldau.runtime.sync import ByteBudget


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
        assert account.fits(65)
        assert not account.fits(66)
        assert (account.unpaid, account.charged, budget.used) == (0, 35, 35)
        account.request_answered()
        assert budget.used == 25
        account.request_answered()
        account.answer_sent(5)
        assert (account.held, budget.used) == (0, 0)

    trio.run(main)


def test_who_cannot_pay_waits_until_others_or_its_own_answers_have_left() -> None:
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
def test_random_accounts_never_exceed_the_budget_and_give_all_back(seed: int) -> None:
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
            assert budget.used <= 100 or account.charged in (0, budget.used), "alone, if larger than all"
        account.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(connection, HeldBytes(budget, 7))
        assert (budget.used, budget.waiting) == (0, False)

    trio.run(main)
