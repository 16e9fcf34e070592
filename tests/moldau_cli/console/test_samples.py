"""Goal: the console's samples take a small part of a slow cluster's time.

Method: an identity whose samples are slow; virtual time.
"""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from moldau_cli.console.identities import SAMPLE_REST, Identity

SLOW_S = 6.0


class SlowIdentity(Identity):
    """Notes when its samples begin."""

    async def sample(self) -> None:
        self.began.append(trio.current_time())
        await trio.sleep(SLOW_S)

    began: list[float]


def test_a_slow_sample_is_followed_by_a_long_rest() -> None:
    nothing: Any = None
    identity = SlowIdentity(
        settings={}, environment=nothing, admin=nothing, quorum_admin=nothing, requester=nothing, copies=nothing
    )
    identity.began = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            identity.use()
            nursery.start_soon(identity.sample_forever)
            for _ in range(10):
                await trio.sleep(10)
                identity.use()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    gaps = [later - earlier for earlier, later in zip(identity.began, identity.began[1:], strict=False)]
    assert gaps == [SLOW_S * (1 + SAMPLE_REST)] * 3
