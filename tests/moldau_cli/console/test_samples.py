"""Goal: the console's samples take a small part of a slow cluster's time.

Method: an identity whose samples are slow; virtual time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.console.data import copies
from moldau_cli.console.data.copies import BETWEEN_S, CopiesWatch
from moldau_cli.console.identities import SAMPLE_REST, Identity

if TYPE_CHECKING:
    import pytest

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


def test_without_an_answer_no_copy_is_known_to_be_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of before would stay on the page for as long as the cluster does not answer."""
    answers: list[Any] = [["behind"], KafkaError(ErrorCode.REQUEST_TIMED_OUT), ["behind again"]]

    async def ask(*_: object, now_ms: float) -> Any:
        await trio.lowlevel.checkpoint()
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    monkeypatch.setattr(copies, "ask_for_copies", ask)
    clock: Any = type("Clock", (), {"wall_ms": lambda _: 0})()
    nothing: Any = None
    watch, found = CopiesWatch(nothing, clock), []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            for _ in range(3):
                await watch.latest({}, [])
                await trio.sleep(BETWEEN_S / 2)
                found.append(await watch.latest({}, []))
                await trio.sleep(BETWEEN_S / 2 + 0.1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert found == [["behind"], [], ["behind again"]]
