"""How far the copies of tiered topics are, asked beside the pages: leaders may wait for an object store to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau_cli.operations.remote_copies import ask_for_copies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin
    from moldau.admin import TopicDescription
    from moldau.cluster.metadata import BrokerNode
    from moldau.runtime.ports.environment import Clock
    from moldau_cli.health import Problem

BETWEEN_S: Final = 30.0
"""Seconds from one answer to the next question: leaders look for segments to copy as often."""
KEPT_S: Final = 90.0
"""An answer of so many seconds ago says nothing about now."""


class CopiesWatch:
    """Asks leaders for their copies while pages want to know, and keeps the last answer."""

    def __init__(self, admin: Admin, clock: Clock) -> None:
        """Asks by ``admin``, which has no other users: an answer that waits for the store holds up its connection."""
        self._admin = admin
        self._clock = clock
        self._wanted: tuple[Mapping[str, TopicDescription], Sequence[BrokerNode]] | None = None
        self._asked = Signal()
        self._problems: tuple[Problem, ...] = ()
        self._answered_s = 0.0

    async def latest(self, topics: Mapping[str, TopicDescription], brokers: Sequence[BrokerNode]) -> list[Problem]:
        """Returns the problems of the last answer, and lets the next question be about these topics and brokers."""
        self._wanted = topics, brokers
        self._asked.notify()
        await trio.lowlevel.checkpoint()
        is_fresh = trio.current_time() - self._answered_s <= KEPT_S
        return list(self._problems) if is_fresh else []

    async def run(self) -> None:
        """Asks whenever pages want to know, until cancelled. Without an answer no problem is known."""
        while True:
            await self._asked.wait_until(lambda: self._wanted is not None)
            wanted, self._wanted = self._wanted, None
            assert wanted is not None
            try:
                found = await ask_for_copies(self._admin, *wanted, now_ms=self._clock.wall_ms())
            except KafkaError:
                found = []  # the pages themselves say why the cluster does not answer
            self._problems, self._answered_s = tuple(found), trio.current_time()
            await trio.sleep(BETWEEN_S)
