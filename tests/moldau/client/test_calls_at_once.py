"""Goal: calls about many brokers run side by side, and never more of them than the bound says.

Method: the requester alone, with calls that count how many are under way.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import trio

from moldau.admin.requester import AT_ONCE_MAX, Requester
from moldau.protocol.errors import ErrorCode, KafkaError


def test_calls_about_many_brokers_are_bounded() -> None:
    requester = Requester(SimpleNamespace(check=lambda: None), timeout_ms=1_000, retries=0)
    requester.cluster_client = SimpleNamespace()
    under_way: set[int] = set()
    most = 0

    async def call(number: int) -> int:
        nonlocal most
        under_way.add(number)
        most = max(most, len(under_way))
        await trio.lowlevel.checkpoint()
        under_way.remove(number)
        if number % 10 == 3:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return -number

    async def main() -> None:
        wanted = range(3 * AT_ONCE_MAX + 1)
        found, failures = await requester.at_once({number: partial(call, number) for number in wanted})
        assert list(found.items()) == [(number, -number) for number in wanted if number % 10 != 3]
        assert list(failures) == [number for number in wanted if number % 10 == 3]

    trio.run(main)
    assert most == AT_ONCE_MAX
