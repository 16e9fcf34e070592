"""The listeners of a broker: their sockets, certificates and servers, and the limits that follow the configuration.

A start binds all listeners first, because the registration advertises their real ports, and serves them last, when the
broker is unfenced.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.access import Listeners
from moldau.runtime.config import ConfigError, broker_listeners, controller_listener_names, join_address
from moldau.runtime.config.processes import EVERY_INTERFACE
from moldau.runtime.net.serving.connection_tally import ConnectionTally
from moldau.runtime.net.serving.server import listener_limits, serve
from moldau.runtime.tasks.sync import ByteBudget
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.tls.context import ListenerTls, listener_tls
from moldau.runtime.tls.outgoing import reload_outgoing
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, TELEMETRY_KEYS, ServedApi, api_table
from moldau_broker.server.lifecycle.connection_room import ConnectionRoom
from moldau_broker.server.lifecycle.startup import advertised_endpoints, bind
from moldau_quorum.quotas.connections import connection_rate_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trio

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.net.serving.server import Server
    from moldau.runtime.ports.environment import Environment, Listener
    from moldau.runtime.sasl.attempts import ListenerAttempts
    from moldau.values import BrokerId
    from moldau_broker.server.handlers.context import BrokerContext
    from moldau_broker.server.lifecycle.authentication import Authentication


class BrokerListeners:
    """The listeners of one broker. Invariant: the first ``len(servers())`` of them serve."""

    def __init__(
        self,
        environment: Environment,
        config: Config,
        broker_id: BrokerId,
        inter_broker_listener: str,
        requests: RequestTimes | None,
    ) -> None:
        """Reads the certificates; ``requests`` counts the requests of all listeners.

        Raises:
            ConfigError: the TLS configuration of a listener cannot be used.
        """
        self._environment = environment
        self._config = config
        self._broker_id = broker_id
        self._inter_broker_listener = inter_broker_listener
        self._requests = requests
        self._logger = EventLogger("moldau.broker", node=broker_id)
        self._tls = {
            endpoint.listener_name: listener_tls(
                environment, config, endpoint.listener_name, endpoint.security_protocol
            )
            for endpoint in broker_listeners(config)
        }
        self._listeners: list[tuple[ListenerEndpoint, Listener]] = []
        self._servers: list[Server] = []
        self.addresses: dict[str, tuple[str, int]] = {}
        """Host and real port of each bound listener, by name."""
        self.room = ConnectionRoom(inter_broker_listener, self._logger)
        self.attempts: dict[str, ListenerAttempts] = {}
        """The attempts to authenticate, by the name of a listener with SASL that serves."""

    @property
    def is_serving(self) -> bool:
        """Whether a listener serves."""
        return bool(self._servers)

    @property
    def certificates(self) -> dict[str, ListenerTls]:
        """The listeners with TLS, by name."""
        return {name: tls for name, tls in self._tls.items() if tls is not None}

    def servers(self) -> list[tuple[str, Server]]:
        """Returns the listeners that serve, by name."""
        return [
            (endpoint.listener_name, server)
            for (endpoint, _), server in zip(self._listeners, self._servers, strict=False)
        ]

    async def bind(self) -> None:
        """Binds all listeners.

        Raises:
            BrokerStartError: an address is in use or is not of this host.
        """
        for endpoint in broker_listeners(self._config):
            listener = await bind(self._environment, self._config, endpoint)
            self._listeners.append((endpoint, listener))
            self.addresses[endpoint.listener_name] = listener.address
        for advertised in advertised_endpoints(self._config, self.addresses):
            if advertised.host in EVERY_INTERFACE:
                self._logger.warning(
                    "advertised-address-unusable",
                    listener=advertised.name,
                    address=join_address(advertised.host, advertised.port),
                    why="clients and brokers on other machines connect to themselves",
                    remedy="name this machine in advertised.listeners",
                )

    async def serve(self, nursery: trio.Nursery, context: BrokerContext, authentication: Authentication) -> None:
        """Starts a server in ``nursery`` for each listener; all share one budget of bytes and one tally."""
        self.attempts.update({name: sasl.attempts for name, sasl in authentication.listeners.items()})
        budget = ByteBudget(self._config.get_int("queued.max.request.bytes"))
        files = context.logs.files
        self._apply_connection_rates(context)
        tally = ConnectionTally(lambda: files.descriptors.connections_max(files.kept))
        files.descriptors.connections = lambda: tally.total
        for endpoint, listener in self._listeners:
            services = listener_services(context, endpoint.listener_name, self._apis(context, endpoint.listener_name))
            server = await nursery.start(
                partial(
                    serve,
                    self._environment,
                    listener,
                    authentication.handlers(context.config, endpoint, partial(BrokerConnection, services)),
                    listener_limits(context.config, endpoint),
                    budget=budget,
                    tally=tally,
                    is_protected=len(self._listeners) > 1 and endpoint.listener_name == self._inter_broker_listener,
                    secure=self._tls[endpoint.listener_name],
                    times=self._requests,
                    rates=context.quotas,
                    listener_name=endpoint.listener_name,
                    logger=EventLogger("moldau.broker.listener", node=self._broker_id, listener=endpoint.listener_name),
                )
            )
            self._servers.append(server)
            server.limits = listener_limits(context.config, endpoint)  # they may have changed while it started

    def _apis(self, context: BrokerContext, listener_name: str) -> Mapping[int, ServedApi]:
        """Returns what a listener serves; the only listener serves brokers and clients."""
        has_telemetry = context.client_metrics is not None
        apis = tuple(api for api in BASE_APIS if has_telemetry or api.key not in TELEMETRY_KEYS)
        if len(self._listeners) == 1:
            return api_table(apis)
        is_internal = listener_name == self._inter_broker_listener
        return api_table(apis, Listeners.INTER_BROKER if is_internal else Listeners.CLIENT)

    def follow(self, context: BrokerContext, to_brokers: Environment, to_controllers: Environment) -> None:
        """Applies a changed configuration: limits, connection rates and certificates.

        The latter also to the environments for connections to other nodes.
        """
        config = context.config
        for (endpoint, _), server in zip(self._listeners, self._servers, strict=False):  # none serve before ``serve``
            server.limits = listener_limits(config, endpoint)
        self._apply_connection_rates(context)
        takes = [(name, partial(tls.reload, config, name)) for name, tls in self._tls.items() if tls is not None]
        for name, environment in (
            (self._inter_broker_listener, to_brokers),
            (controller_listener_names(config)[0], to_controllers),
        ):
            takes.append((name, partial(reload_outgoing, environment, config, name)))
        for listener_name, take in takes:
            try:
                take()
            except ConfigError as error:
                self._logger.error("certificates-refused", listener=listener_name, error=error)

    def _apply_connection_rates(self, context: BrokerContext) -> None:
        names = [endpoint.listener_name for endpoint, _ in self._listeners]
        limits = connection_rate_limits(context.config, names)
        context.quotas.connections.configure(*limits, self._inter_broker_listener if len(names) > 1 else None)

    def close(self) -> None:
        """Closes the sockets of the listeners."""
        for _, listener in self._listeners:
            listener.close()
