"""Sends single requests to chosen nodes; a missing response is an ordinary outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import KafkaError
from moldau.protocol.schema import Response
from moldau.runtime.net.rpc import RpcConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.schema import Request
    from moldau.runtime.ports.environment import Environment

R = TypeVar("R", bound=Response)

TIMEOUT_MS = 3_000
"""Of a connect, and of an answer."""


class Nodes(Protocol):
    """The nodes of a cluster, simulated or not, that clients ask."""

    @property
    def broker_ids(self) -> Sequence[int]: ...

    @property
    def controller_ids(self) -> Sequence[int]: ...

    def address(self, node_id: int) -> tuple[str, int]:
        """Returns the host and port of a node's listener."""
        ...


class Questions:
    """Asks nodes, over connections of its own."""

    def __init__(self, environment: Environment, nodes: Nodes, client_id: str, *, keeps_connections: bool) -> None:
        """Opens a connection for each question, unless ``keeps_connections`` is true.

        Then a later question to a node reuses an idle open connection; call ``close`` at the end.
        """
        self._environment = environment
        self._nodes = nodes
        self._client_id = client_id
        self._keeps_connections = keeps_connections
        self._idle: dict[int, RpcConnection] = {}

    async def ask(self, node_id: int, kind: type[R], request: Request, version: int | None = None) -> R | None:
        """Returns a node's response; None if there was none, and then the outcome of the request is unknown.

        A connection on which a request failed or was cancelled is closed.
        """
        connection = self._idle.pop(node_id, None)
        try:
            if connection is None or not connection.is_open:
                address = self._nodes.address(node_id)
                connection = await RpcConnection.open(
                    self._environment, *address, self._client_id, timeout_ms=TIMEOUT_MS
                )
            response = await connection.request_as(kind, request, version, timeout_ms=TIMEOUT_MS)
            if self._keeps_connections and node_id not in self._idle:
                self._idle[node_id], connection = connection, None
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
            return None
        else:
            return response
        finally:
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """Closes the connections that are kept."""
        for connection in self._idle.values():
            connection.close()
        self._idle.clear()
