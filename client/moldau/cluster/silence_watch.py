"""Watches for brokers that answer nothing while others have taken over their work; the shell of ``silence``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from moldau.cluster.silence import Awaited, CoordinatorKey, Silence
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.metadata import TopicPartition
    from moldau.runtime.net.rpc import RpcConnection


GIVEN_UP: Final = "it does not answer, and another broker coordinates since"


class CoordinatorCall:
    """One request to a coordinator, opening the connection included; a context manager.

    It raises ``ConnectionAbortedError`` if the request is given up. As after any broken connection, the coordinator may
    have carried it out.
    """

    def __init__(self, watch: SilenceWatch, node_id: int, coordinator: CoordinatorKey) -> None:
        self._watch = watch
        self._node_id = node_id
        self._coordinator = coordinator
        self._awaited: Awaited[Watched] | None = None
        self._scope = trio.CancelScope()
        self._connection: RpcConnection | None = None  # None until it is open

    def __enter__(self) -> CoordinatorCall:
        self._scope.__enter__()
        self._awaited = self._watch.asked(self, self._node_id, self._coordinator)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._awaited is not None
        self._watch.ended(self._awaited)
        if self._scope.__exit__(kind, error, traceback) and error is not None:
            raise ConnectionAbortedError(f"broker {self._node_id}: {GIVEN_UP}")

    async def connect(self, purpose: str = "") -> RpcConnection:
        """Returns the connection for the request; see ``ClusterClient.connection``."""
        self._connection = await self._watch.connection(self._node_id, purpose)
        return self._connection

    def cut(self) -> None:
        """Gives the request up."""
        if self._connection is None:
            self._scope.cancel()
        else:
            self._connection.fail(GIVEN_UP)


Watched: TypeAlias = "RpcConnection | CoordinatorCall"
"""A connection, which is given up with all its requests, or one call."""


class SilenceWatch:
    """Gives up requests to brokers that were silent until another one took over.

    ``run`` belongs to the client's tasks.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._silence: Silence[Watched] = Silence()
        self._lookups: dict[CoordinatorKey, None] = {}
        self._begun = trio.Event()
        self._pause = trio.CancelScope()
        self._look_ms = math.inf

    def sent(
        self,
        connection: RpcConnection,
        node_id: int,
        leaders: Sequence[tuple[TopicPartition, int]],
        *,
        wait_ms: float = 0.0,
    ) -> Awaited[Watched]:
        """Notes a request to the leaders of partitions; pass what this returns to ``ended``.

        ``leaders`` has the leader epochs known now, and ``wait_ms`` is how long the broker may hold the request.
        """
        awaited = self._silence.sent(connection, node_id, leaders, self._client.now_ms, wait_ms)
        self._began(awaited)
        return awaited

    def coordinator(self, node_id: int, key: str, key_type: int) -> CoordinatorCall:
        """Returns the watched call to a coordinator; send the request in its ``with`` block."""
        return CoordinatorCall(self, node_id, (key, key_type))

    async def connection(self, node_id: int, purpose: str) -> RpcConnection:
        """See ``ClusterClient.connection``."""
        return await self._client.connection(node_id, purpose)

    def asked(self, call: CoordinatorCall, node_id: int, coordinator: CoordinatorKey) -> Awaited[Watched]:
        """Notes a call to a coordinator; pass what this returns to ``ended``."""
        awaited = self._silence.asked(call, node_id, coordinator, self._client.now_ms)
        self._began(awaited)
        return awaited

    def _began(self, awaited: Awaited[Watched]) -> None:
        self._begun.set()
        if awaited.ask_ms < self._look_ms:  # the watch sleeps for a request that may take longer
            self._look_ms = awaited.ask_ms
            self._pause.deadline = trio.current_time() + (awaited.ask_ms - self._client.now_ms) / 1000

    def ended(self, awaited: Awaited[Watched]) -> None:
        """Notes that a request was answered or has failed."""
        self._silence.ended(awaited)

    async def run(self) -> None:
        """Watches until cancelled."""
        async with trio.open_nursery() as nursery:
            await self._watch(nursery)

    async def _watch(self, nursery: trio.Nursery) -> None:
        client = self._client
        while True:
            while not len(self._silence):  # a request may have ended before this task runs
                self._begun = trio.Event()
                await self._begun.wait()
            look = self._silence.look(client.now_ms, client.cluster_metadata)
            for key in look.cut:
                assert not isinstance(key, CoordinatorCall), "coordinators are looked up"
                client.logger.info("silent-leader-replaced", peer=key.peer)
                key.fail("it does not answer, and another broker leads since")
            # A broker that is merely slow would only get more to do from questions that no other broker answers.
            for node_id in look.doubted:
                if client.knows_several_servers:
                    client.doubt(node_id)
            for coordinator in look.lookups if client.knows_several_servers else ():
                if coordinator not in self._lookups:
                    self._lookups[coordinator] = None
                    nursery.start_soon(self._look_up, coordinator)
            self._look_ms = look.next_ms
            delay_ms = max(look.next_ms - client.now_ms, 1.0)
            with trio.move_on_after(min(delay_ms, 60_000.0) / 1000) as self._pause:
                await client.changed.wait()

    async def _look_up(self, coordinator: CoordinatorKey) -> None:
        """Asks the brokers for a coordinator, and gives up the requests that another node does not answer."""
        client = self._client
        try:
            node_id = await client.find_coordinator(*coordinator)
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            client.logger.debug("coordinator-not-found", key=coordinator[0], error=error)
        else:
            for key in self._silence.found(coordinator, node_id, client.now_ms):
                assert isinstance(key, CoordinatorCall), "leaders are not looked up"
                client.logger.info("silent-coordinator-replaced", key=coordinator[0], node=node_id)
                key.cut()
        finally:
            del self._lookups[coordinator]
