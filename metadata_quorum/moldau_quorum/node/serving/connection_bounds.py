"""The bounds of connections in force at a controller: those of its file, overridden by the metadata (KIP-226).

Nodes and administrators share a controller's listeners, so a low bound shuts nodes out, and with them the way to raise
it again. A bound in the metadata therefore leaves room for the nodes of the cluster, unless that of the file is lower.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import key_of_listener, with_dynamic
from moldau.runtime.net.serving.connection_tally import ConnectionTally
from moldau.runtime.net.serving.server import LowBounds, listener_limits
from moldau.runtime.ports.descriptors import DescriptorBudget
from moldau_quorum.quotas.connections import ListenerRates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.net.serving.server import Server, ServerLimits
    from moldau.runtime.ports.environment import Disk
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.metadata.image import MetadataImage

REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
OF_A_NODE: Final = 3
"""Connections that another node opens here: a broker's session, its metadata and what it forwards."""
_TOTAL: Final = "max.connections"
_OF_LISTENERS: Final = (_TOTAL, "max.connection.creation.rate")
_OF_ADDRESSES: Final = ("max.connections.per.ip", "max.connections.per.ip.overrides")


class ConnectionBounds:
    """Keeps the servers of a controller's listeners at the bounds in force."""

    def __init__(
        self,
        config: Config,
        endpoints: Sequence[ListenerEndpoint],
        voters: Callable[[], int],
        logger: EventLogger,
    ) -> None:
        """``config`` is that of the node's file; ``voters`` counts the controllers."""
        self._static = self._config = config
        self._voters = voters
        self._low = LowBounds(logger)
        names = [endpoint.listener_name for endpoint in endpoints]
        own = [key_of_listener(name, key) for name in names for key in _OF_LISTENERS]
        self._bounds = [_TOTAL, *(key_of_listener(name, _TOTAL) for name in names)]
        self._keys = frozenset((*_OF_LISTENERS, *_OF_ADDRESSES, *own))
        self._node_id = config.get_int("node.id")
        self._servers: list[tuple[ListenerEndpoint, Server]] = []
        self._seen: tuple[object, ...] = ()
        self.rates = ListenerRates(config, names)
        """The rates at which the listeners accept."""

    def limits(self, endpoint: ListenerEndpoint) -> ServerLimits:
        """Returns the limits of a listener by the node's file."""
        return self._limits(self._static, endpoint)

    def serve(self, endpoint: ListenerEndpoint, server: Server) -> None:
        """Keeps the server of a listener at its bounds from the next ``follow`` on."""
        self._servers.append((endpoint, server))

    def follow(self, image: MetadataImage) -> None:
        """Applies the bounds in the metadata."""
        layers = image.dynamic_layers(self._node_id)
        needed = OF_A_NODE * (len(image.brokers) + self._voters() - 1) + 1
        seen = (needed, *layers)
        if seen == self._seen:
            return
        self._seen = seen
        followed = [{key: value for key, value in values.items() if key in self._keys} for values in layers]
        config, _ = with_dynamic(self._static, *followed)
        self._config = config
        self.rates.follow(config)
        for endpoint, server in self._servers:
            server.limits = _with_room(self._limits(config, endpoint), self.limits(endpoint), needed)
        self._warn(needed, nodes=len(image.brokers) + self._voters())

    def _limits(self, config: Config, endpoint: ListenerEndpoint) -> ServerLimits:
        limits = listener_limits(config, endpoint)
        return replace(limits, request_bytes_max=min(REQUEST_BYTES_MAX, limits.request_bytes_max))

    def _warn(self, needed: int, *, nodes: int) -> None:
        remedies = {key: "raise it" for key in self._bounds if key in self._config}
        why = "nodes and administrators share this listener; only a bound in the metadata leaves them room"
        self._low.look(self._config, remedies, needed, why, nodes=nodes)


def connection_tally(disk: Disk, config: Config) -> ConnectionTally:
    """Returns the tally of a controller, whose log and snapshots must find free file descriptors.

    A broker in the same process divides the most of them among its own files and connections.
    """
    limit = disk.open_files_max()
    is_alone = "broker" not in config.get_list("process.roles")
    most = DescriptorBudget(limit).connections_max(0) if is_alone else limit // 4
    return ConnectionTally(lambda: most)


def _with_room(limits: ServerLimits, of_file: ServerLimits, needed: int) -> ServerLimits:
    """Returns ``limits`` with bounds that ``needed`` connections fit in, or that are those of the file."""

    def raised(value: int, in_file: int) -> int:
        return max(value, min(in_file, needed))

    per_ip = of_file.connections_per_ip_max
    return replace(
        limits,
        connections_max=raised(limits.connections_max, of_file.connections_max),
        listener_connections_max=raised(limits.listener_connections_max, of_file.listener_connections_max),
        connections_per_ip_max=raised(limits.connections_per_ip_max, per_ip),
        connections_of_ips={
            address: raised(value, of_file.connections_of_ips.get(address, per_ip))
            for address, value in limits.connections_of_ips.items()
        },
    )
