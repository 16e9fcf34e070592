"""Tries to connect to brokers that have sent no heartbeat for a while; the shell of ``controller.cluster.suspects``.

The attempts begin so early that ``ROUNDS`` of them fit into ``broker.session.unreachable.ms``. The three brokers with
the newest heartbeats are tried in each round too, for comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.tasks.sync import Signal
from moldau_quorum.controller.cluster.suspects import ROUNDS, Suspects

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId
    from moldau_quorum.controller.cluster.sessions import BrokerSessions

ROUND_MS: Final = 300.0
"""Length of a round, and the time that a host has to accept."""
COMPARED: Final = 3
"""Brokers with fresh heartbeats that are tried for comparison."""
SILENT_MAX: Final = 1_000
"""Silent brokers tried in one round; those beyond keep their sessions until the timeout."""


class HostWatch:
    """The connection attempts of one controller."""

    def __init__(
        self,
        environment: Environment,
        sessions: BrokerSessions,
        *,
        unreachable_ms: float,
        address: Callable[[BrokerId], tuple[str, int] | None],
        lost: Callable[[BrokerId], None],
    ) -> None:
        """Takes ``broker.session.unreachable.ms``, and where a broker listens.

        ``lost`` is called for a broker that is silent for that time and cannot be reached.
        """
        self._environment = environment
        self._sessions = sessions
        self._unreachable_ms = unreachable_ms
        self._address = address
        self._lost = lost
        self._suspects = Suspects()
        self._begun = Signal()

    def sessions_began(self) -> None:
        """Takes note of new sessions."""
        self._begun.notify()

    async def run(self) -> None:
        """Watches until cancelled; returns at once if ``broker.session.unreachable.ms`` is 0."""
        clock = self._environment.clock
        patience_ms = max(self._unreachable_ms - ROUNDS * ROUND_MS, 0.0)
        while self._unreachable_ms:
            earliest_ms = self._sessions.earliest_heard_ms()
            now_ms = clock.monotonic_ms()
            if earliest_ms is None:
                await self._begun.wait()
            elif earliest_ms + patience_ms > now_ms:
                # Sessions that begin meanwhile are due later.
                with trio.move_on_after((earliest_ms + patience_ms - now_ms) / 1000):
                    await self._begun.wait()
            else:
                await self._try_round(self._sessions.unheard(now_ms - patience_ms)[:SILENT_MAX])

    async def _try_round(self, silent: list[BrokerId]) -> None:
        clock = self._environment.clock
        end_ms = clock.monotonic_ms() + ROUND_MS
        tried = dict.fromkeys([*silent, *self._sessions.latest_heard(COMPARED)])
        addresses = {broker: address for broker in tried if (address := self._address(broker)) is not None}
        accepted = dict.fromkeys(addresses, False)

        async def attempt(broker: BrokerId, host: str, port: int) -> None:
            try:
                connection = await self._environment.network.connect(host, port)
            except OSError:
                return
            accepted[broker] = True
            connection.close()

        with trio.move_on_after(ROUND_MS / 1000):
            async with trio.open_nursery() as nursery:
                for broker, address in addresses.items():
                    nursery.start_soon(attempt, broker, *address)
        await trio.sleep(max(end_ms - clock.monotonic_ms(), 0.0) / 1000)
        unheard = set(self._sessions.unheard(clock.monotonic_ms() - self._unreachable_ms))
        for broker in self._suspects.judge(silent, accepted):
            if broker in unheard:
                self._lost(broker)
