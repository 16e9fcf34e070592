"""The brokers that the active controller believes alive: their sessions, and connection attempts to silent ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from moldau.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from moldau.protocol.messages.describe_quorum import ReplicaState
from moldau.runtime.net.layers import plain_environment
from moldau.values import BrokerId
from moldau_quorum.controller.cluster.sessions import BrokerSessions
from moldau_quorum.node.broker_probe import BrokerProbes
from moldau_quorum.node.host_watch import HostWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.schema import Request, Response
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_quorum.controller.context import Settings
    from moldau_quorum.metadata.image import BrokerImage, MetadataImage


class LiveBrokers:
    """Sessions and probes of one controller. ``run`` must be running."""

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        logger: EventLogger,
        *,
        wake: Callable[[], None],
        image: Callable[[], MetadataImage],
    ) -> None:
        """``wake`` is called when a session ended before its deadline; ``image`` returns the registered brokers."""
        self.sessions = BrokerSessions(
            timeout_ms=settings.broker_session_timeout_ms, grace_ms=settings.broker_session_grace_ms
        )
        network = plain_environment(environment)
        self._probes = BrokerProbes(network)
        self._hosts = HostWatch(
            network,
            self.sessions,
            unreachable_ms=settings.broker_session_unreachable_ms,
            address=self._address,
            lost=self._lost,
        )
        self._unreachable_ms = settings.broker_session_unreachable_ms
        self._image = image
        self._takeover_ms = settings.broker_takeover_ms
        self._clock = environment.clock
        self._logger = logger
        self._wake = wake

    async def run(self) -> None:
        """Makes connection attempts to silent brokers until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probes.run)
            nursery.start_soon(self._hosts.run)

    def begin_controller_epoch(self, image: MetadataImage, now_ms: float) -> None:
        """Starts a session for each unfenced broker; it lasts long enough for the broker to find this controller.

        The election has taken a part of the time that an unreachable broker has.
        """
        self.sessions.clear()
        for _, broker in sorted(image.brokers.items()):
            if not broker.fenced:
                self.sessions.start(
                    broker.broker_id,
                    broker.broker_epoch,
                    now_ms + self._takeover_ms,
                    now_ms - self._unreachable_ms / 2,
                )
        self._hosts.sessions_began()

    def _address(self, broker_id: BrokerId) -> tuple[str, int] | None:
        broker = self._image().brokers.get(broker_id)
        return (broker.endpoints[0].host, broker.endpoints[0].port) if broker is not None and broker.endpoints else None

    def _lost(self, broker_id: BrokerId) -> None:
        """Ends the session of a broker that cannot be reached."""
        session = self.sessions.get(broker_id)
        if session is not None:
            now_ms = self._clock.monotonic_ms()
            silent_ms = round(now_ms - session.heard_ms)
            self._logger.warning("broker-unreachable", broker=broker_id, silent_ms=silent_ms)
            self.sessions.end(broker_id, session.broker_epoch, now_ms)
            self._wake()

    def observers(self) -> list[ReplicaState]:
        """Returns how far the brokers have applied the metadata log, as their last heartbeats say, by id.

        A directory is not named: brokers keep no metadata log of their own.
        """
        past_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        return [
            ReplicaState(
                replica_id=broker_id,
                log_end_offset=session.metadata_offset,
                last_fetch_timestamp=round(past_ms + session.heard_ms),
                last_caught_up_timestamp=-1 if session.caught_up_ms is None else round(past_ms + session.caught_up_ms),
            )
            for broker_id, session in self.sessions.heard()
        ]

    def connection_closed(self, connection: object, image: MetadataImage) -> None:
        """Gives the brokers whose session lived on the connection the grace period, and probes them."""
        for broker_id in self.sessions.connection_closed(connection, self._clock.monotonic_ms()):
            broker = image.brokers.get(broker_id)
            if broker is not None and broker.endpoints:
                self._probe(broker)

    def _probe(self, broker: BrokerImage) -> None:
        """Asks the host of a broker that went silent whether its process is dead."""
        broker_id, endpoint = broker.broker_id, broker.endpoints[0]
        session = self.sessions.get(broker_id)
        if session is None:
            return
        broker_epoch = session.broker_epoch

        def refused() -> None:
            self._logger.info("broker-process-gone", broker=broker_id, broker_epoch=broker_epoch)
            self.sessions.end(broker_id, broker_epoch, self._clock.monotonic_ms())
            self._wake()

        self._probes.start(
            endpoint.host,
            endpoint.port,
            is_silent=lambda: self.sessions.silent(broker_id, broker_epoch, self._clock.monotonic_ms()),
            refused=refused,
        )

    def request_arrived(self, request: Request, connection: object | None, image: MetadataImage, now_ms: float) -> None:
        """Renews the session of a broker whose heartbeat arrived."""
        if isinstance(request, BrokerHeartbeatRequest):
            broker = image.brokers.get(request.broker_id)
            if broker is not None and broker.broker_epoch == request.broker_epoch:
                self.sessions.touch(
                    broker.broker_id,
                    request.broker_epoch,
                    now_ms,
                    connection=connection,
                    metadata_offset=request.current_metadata_offset,
                    is_caught_up=request.current_metadata_offset >= image.offset,
                )

    def request_waited(
        self, request: Request, connection: object | None, image: MetadataImage, arrived_ms: float, now_ms: float
    ) -> None:
        """Renews the session again when the controller decides the heartbeat: no other one comes while it waits.

        If the connection has ended meanwhile, or a later heartbeat has come over another one, nothing is renewed: the
        session of a broker that died must not live on a connection whose end is known already.
        """
        if isinstance(request, BrokerHeartbeatRequest):
            session = self.sessions.get(BrokerId(request.broker_id))
            is_newer = session is not None and session.heard_ms >= arrived_ms and session.connection is not connection
            if is_newer and session is not None and session.broker_epoch == request.broker_epoch:
                return
            self.request_arrived(request, connection, image, now_ms)

    def request_decided(
        self, request: Request, response: Response, connection: object | None, image: MetadataImage, now_ms: float
    ) -> None:
        """Updates sessions after a decision; ``image`` contains the decision."""
        if isinstance(request, BrokerRegistrationRequest) and isinstance(response, BrokerRegistrationResponse):
            if response.error_code == ErrorCode.NONE:
                self.sessions.touch(BrokerId(request.broker_id), response.broker_epoch, now_ms, connection=connection)
                self._hosts.sessions_began()
        elif isinstance(request, BrokerHeartbeatRequest) and isinstance(response, BrokerHeartbeatResponse):
            session = self.sessions.get(BrokerId(request.broker_id))
            broker = image.brokers.get(request.broker_id)
            if session is None or broker is None:
                return
            if broker.in_controlled_shutdown and session.shutdown_offset < 0:
                session.shutdown_offset = image.offset
