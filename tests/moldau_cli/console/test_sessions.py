"""Goal: a session lives while it is used, and its clients end with it, however many others come and go.

Method: any order of new sessions, requests and pauses, beside a model that keeps the time of each last use.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from moldau_cli.console import sessions
from moldau_cli.console.sessions import FAILURE_PAUSE_S, SESSION_S, LoginError, Session, Sessions

SESSIONS_MAX = 3
STEPS = st.lists(
    st.one_of(
        st.just(("open", 0)),
        st.tuples(st.just("find"), st.integers(0, 5)),
        st.tuples(st.just("close"), st.integers(0, 5)),
        st.tuples(st.just("wait"), st.sampled_from([1, SESSION_S / 2, SESSION_S - 2, SESSION_S, SESSION_S + 1])),
    ),
    max_size=25,
)


@given(steps=STEPS)
@example(steps=[("open", 0), ("wait", SESSION_S - 2), ("find", 0), ("wait", SESSION_S / 2), ("find", 0)])
@example(steps=[("open", 0)] * 3 + [("find", 0), ("open", 0), ("find", 0), ("find", 1)])
def test_a_session_lives_while_it_is_used(steps: list[tuple[str, Any]]) -> None:
    """The one that was unused for longest gives way, and one that was unused for hours has ended."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            uses: list[float] = []
            identity: Any = SimpleNamespace(use=lambda: uses.append(trio.current_time()))
            found = Sessions(nursery, {}, shared=identity, token=None)
            opened: list[Session] = []
            last_use: dict[str, float] = {}
            for name, value in steps:
                await trio.sleep(1 if name != "wait" else value)
                now = trio.current_time()
                if name == "open":
                    last_use = {key: at for key, at in last_use.items() if now - at <= SESSION_S}
                    if len(last_use) == SESSIONS_MAX:
                        del last_use[min(last_use, key=lambda key: last_use[key])]
                    opened.append(found._add(Session(identity=identity, user="", scope=trio.CancelScope())))
                    last_use[opened[-1].key] = now
                    assert uses[-1] == now, "its rates are measured from now on"
                elif name == "close" and value < len(opened):
                    found.close(opened[value])
                    last_use.pop(opened[value].key, None)
                elif name == "find" and value < len(opened):
                    key = opened[value].key
                    lives = key in last_use and now - last_use[key] <= SESSION_S
                    assert found.find(key) is (opened[value] if lives else None)
                    last_use.pop(key, None)
                    if lives:
                        last_use[key] = now
                        assert uses[-1] == now
                living = [each for each in opened if each.key in last_use]
                assert [each for each in opened if not each.scope.cancel_called] == living  # type: ignore[union-attr]
            for nothing in (None, "", "another key"):
                assert found.find(nothing) is None

    with patch.object(sessions, "SESSIONS_MAX", SESSIONS_MAX):
        trio.run(main, clock=MockClock(autojump_threshold=0))


def test_wrong_tokens_are_tried_slowly() -> None:
    """Two at a time, each for half a second: four a second, however many connections guess."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            identity: Any = SimpleNamespace(use=lambda: None)
            found = Sessions(nursery, {}, shared=identity, token="the right one")

            async def guess(number: int) -> None:
                with pytest.raises(LoginError, match="the token is wrong"):
                    await found.open(token=f"{number}", user="", password="", mechanism="")
                refused.append(trio.current_time())

            refused: list[float] = []
            async with trio.open_nursery() as guessing:
                for number in range(8):
                    guessing.start_soon(guess, number)
            began = trio.current_time() - 8 / 2 * FAILURE_PAUSE_S
            assert refused == [began + FAILURE_PAUSE_S * (number // 2 + 1) for number in range(8)]
            assert (await found.open(token="the right one", user="", password="", mechanism="")).identity is identity
            assert trio.current_time() == refused[-1], "the right one is not held up"

    trio.run(main, clock=MockClock(autojump_threshold=0))
