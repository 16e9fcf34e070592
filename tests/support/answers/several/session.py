"""Sessions with three brokers, whose answers are kept together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from support.answers.session import VARYING, AnswerSession, Broker, open_connection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

CHOSEN = VARYING - {"leader", "leader_id"} | {"high_watermark", "last_stable_offset"}
"""Fields whose values a cluster chooses, where topics name their leaders; followers learn of the others later."""


class Cluster(NamedTuple):
    """A cluster that runs."""

    addresses: Mapping[int, str]
    homes: Mapping[int, Path]
    stop: Callable[[int], None]
    signal: Callable[[int, int], None]


class ClusterSession:
    """A connection to each broker."""

    def __init__(self, cluster: Cluster, run: str) -> None:
        """Connects with ``open``."""
        self.cluster = cluster
        self.answers: dict[str, object] = {}
        self._run = run
        self._sessions: dict[int, AnswerSession] = {}

    async def open(self) -> None:
        """Connects to all brokers."""
        for node, address in self.cluster.addresses.items():
            session = AnswerSession(await open_connection(address), Broker(address), self._run, CHOSEN)
            session.share(next(iter(self._sessions.values()), session))
            self._sessions[node] = session
            self.answers = session.answers

    def at(self, node: int) -> AnswerSession:
        """Returns the session with a broker."""
        return self._sessions[node]

    def others(self, node: int) -> list[int]:
        """Returns the brokers but one."""
        return [each for each in self._sessions if each != node]

    def close(self) -> None:
        """Ends all connections."""
        for session in self._sessions.values():
            session.connection.close()


def answers_of_cluster(
    cluster: Cluster, scenario: Callable[[ClusterSession], Awaitable[None]], run: str
) -> dict[str, object]:
    """Runs a scenario against one cluster, and returns its answers by step."""

    async def main() -> dict[str, object]:
        session = ClusterSession(cluster, run)
        await session.open()
        try:
            await scenario(session)
        finally:
            session.close()
        return session.answers

    return trio.run(main)
