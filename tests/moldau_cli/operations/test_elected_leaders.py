"""Goal: ``moldau balance leaders`` shows the leaders that it elected, although brokers learn of them a moment later."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau_cli.operations.moves import KNOWN_POLL_S, KNOWN_POLLS_MAX, count_leaders

STRAYED = [("t", 0), ("t", 1)]


class Admin:
    """Its broker learns of one more leader with each question, of ``known`` in the end."""

    def __init__(self, known):
        self.asked, self._known = 0, known

    async def describe_topics(self, names):
        await trio.lowlevel.checkpoint()
        back = min(self.asked, self._known)
        self.asked += 1
        leaders = [1 if number < back else 2 for number in range(2)]
        parts = [SimpleNamespace(partition=n, leader=leader, replicas=(1, 2)) for n, leader in enumerate([*leaders, 2])]
        parts[2].replicas = (2, 1)
        return dict.fromkeys(names, SimpleNamespace(partitions=parts))


@pytest.mark.parametrize(
    ("known", "elected", "leads", "asked"),
    [(2, 2, {1: 2, 2: 1}, 3), (2, 1, {1: 1, 2: 2}, 2), (0, 0, {2: 3}, 1), (1, 2, {1: 1, 2: 2}, KNOWN_POLLS_MAX)],
)
def test_elected_leaders_are_shown(known, elected, leads, asked):
    """The table said that the broker which had got its leaders back leads nothing."""
    admin, clock = Admin(known), trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(count_leaders, admin, ["t"], STRAYED, elected, clock=clock) == leads
    assert admin.asked == asked
    assert KNOWN_POLL_S * KNOWN_POLLS_MAX <= 5, "a topic that is deleted meanwhile delays the answer by no more"
