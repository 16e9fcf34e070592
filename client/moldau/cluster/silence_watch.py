"""Watches for brokers that answer nothing while others lead their partitions; the shell of ``silence``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.silence import Awaited, Silence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition
    from moldau.runtime.net.rpc import RpcConnection


class SilenceWatch:
    """Cuts connections to brokers that were silent until another broker led; ``run`` belongs to the client's tasks."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._silence: Silence[RpcConnection] = Silence()
        self._begun = trio.Event()

    def sent(
        self,
        connection: RpcConnection,
        node_id: int,
        leaders: Sequence[tuple[TopicPartition, int]],
        *,
        wait_ms: float = 0.0,
    ) -> Awaited[RpcConnection]:
        """Notes a request to the leaders of partitions; pass what this returns to ``ended``.

        ``leaders`` has the leader epochs known now, and ``wait_ms`` is how long the broker may hold the request.
        """
        awaited = self._silence.sent(connection, node_id, leaders, self._client.now_ms, wait_ms)
        self._begun.set()
        return awaited

    def ended(self, awaited: Awaited[RpcConnection]) -> None:
        """Notes that a request was answered or has failed."""
        self._silence.ended(awaited)

    async def run(self) -> None:
        """Watches until cancelled."""
        client = self._client
        while True:
            if not len(self._silence):
                self._begun = trio.Event()
                await self._begun.wait()
            look = self._silence.look(client.now_ms, client.cluster_metadata)
            for connection in look.cut:
                client.logger.info("silent-leader-replaced", peer=connection.peer)
                connection.fail("it does not answer, and another broker leads since")
            for node_id in look.doubted:
                client.doubt(node_id)
            delay_ms = max(look.next_ms - client.now_ms, 1.0)
            with trio.move_on_after(min(delay_ms, 60_000.0) / 1000):
                await client.changed.wait()
