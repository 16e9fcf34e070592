"""Runs a controller: one node of the metadata quorum, and the active controller when it leads.

    listeners (Kafka framing)  ->  ControllerConnection  ->  ActiveController (queue, one deciding task)
                                          |                         | propose
                                          +-> MetadataLog engine <--+--> MetadataStateMachine (committed image)

Everything lives in one nursery: a damaged log, a failed disk or a broken invariant ends the node, which is the safe
state.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import trio

from moldau.runtime.config import (
    Config,
    ListenerEndpoint,
    addresses,
    bootstraps_from_itself,
    controller_listeners,
    join_address,
    listening_refused,
    metadata_log_dir,
    quorum_voters,
)
from moldau.runtime.config.sasl import bootstrap_credentials
from moldau.runtime.net.serving.server import Server, ServerLimits, serve
from moldau.runtime.sasl.listener import SaslListener, bootstrap_keys, peer_handlers
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.tls.context import ListenerTls, listener_tls
from moldau.runtime.tls.outgoing import controllers_environment
from moldau_quorum.authorization.configured import configured_authorizer
from moldau_quorum.broker_side.discovery import discover_voters
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.controller.cluster.sessions import BrokerSessions
from moldau_quorum.controller.context import Context, Settings
from moldau_quorum.controller.dispatch import DecisionInputs
from moldau_quorum.log.factory import metadata_log
from moldau_quorum.log.port import (
    ElectionTiming,
    EngineName,
    LogLimits,
    MembershipChangeError,
    MetadataLogConfig,
    MetadataLogFactory,
    NotLeaderError,
)
from moldau_quorum.metadata.delegation_tokens import token_secret
from moldau_quorum.metadata.records import Endpoint
from moldau_quorum.metadata.scram_credentials import ImageCredentials, bootstrap_records
from moldau_quorum.node.active_controller import ActiveController
from moldau_quorum.node.directory import NodeDirectory, open_node_directory
from moldau_quorum.node.serving.certificates import CertificateSettings
from moldau_quorum.node.serving.connection_bounds import ConnectionBounds, connection_tally
from moldau_quorum.node.serving.metadata_service import MetadataService
from moldau_quorum.node.serving.principals import node_principals
from moldau_quorum.node.serving.quotas import ControllerQuotas
from moldau_quorum.node.serving.requests import ControllerConnection, ControllerService
from moldau_quorum.node.state_machine import MetadataStateMachine
from moldau_quorum.node.voters.quorum_admin import QuorumAdmin
from moldau_quorum.node.voters.voter_address import QuorumSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.runtime.net.serving.answers import HandlerFactory
    from moldau.runtime.net.serving.connection_tally import AdmissionRates, ConnectionTally
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.ports.environment import Connection, Environment, Listener
    from moldau.runtime.sasl.attempts import ListenerAttempts
    from moldau.runtime.sasl.core.identity import Peer
    from moldau_quorum.log.port import MetadataLog
    from moldau_quorum.metadata.image import MetadataImage

DISCOVERY_TIMEOUT_MS: Final = 5_000
HANDOVER_TIMEOUT_MS: Final = 2_000


class ServedListeners(NamedTuple):
    """The listeners of a controller."""

    addresses: tuple[tuple[str, int], ...]
    """Host and port of each, as bound."""
    certificates: Mapping[str, ListenerTls]
    """Those with TLS, by name."""
    servers: Mapping[str, Server]
    """All of them, by name."""


class ControllerNode:
    """The parts of a running controller, for shells that export metrics and for simulations that look inside."""

    def __init__(
        self,
        *,
        log: MetadataLog,
        machine: MetadataStateMachine,
        active: ActiveController,
        served: ServedListeners,
        attempts: Mapping[str, ListenerAttempts],
    ) -> None:
        """Made by ``run_controller``."""
        self.log = log
        self.machine = machine
        self.active = active
        self.addresses = served.addresses
        """Host and port of each controller listener, as bound."""
        self.certificates = served.certificates
        """The listeners with TLS, by name."""
        self.servers = served.servers
        """The listeners, by name."""
        self.attempts = attempts
        """The attempts to authenticate, by the name of the listener."""


async def run_controller(
    environment: Environment,
    config: Config,
    *,
    make_log: MetadataLogFactory | None = None,
    shutdown: trio.Event | None = None,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
    requests: RequestTimes | None = None,
    task_status: trio.TaskStatus[ControllerNode] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs one controller. Started when it listens and takes part in the quorum.

    It ends when ``shutdown`` is set, after it has handed its leadership to another voter (bounded), or at once, as a
    crash would end it, when it is cancelled. ``make_log`` replaces the engine that ``metadata.quorum.engine`` names.
    ``features`` are the levels that the node supports (an older version of Moldau supports less). ``requests`` counts
    the requests of its listeners.

    Raises:
        NodeDirectoryError: the directory is in use, or belongs to another node, cluster or engine.
        LogDamagedError: the metadata log of this node cannot be trusted.
        ConfigError: listeners or voters are malformed.
        OSError: a port is taken, or the disk failed.
    """
    node_id = config.get_int("node.id")
    engine = EngineName(config.get_str("metadata.quorum.engine"))
    logger = EventLogger("moldau.controller", node=node_id)
    directory = open_node_directory(
        environment.disk,
        metadata_log_dir(config),
        node_id=node_id,
        engine=engine.value,
        cluster_id=config.get_str_or_none("cluster.id") or "",
        new_directory_id=UUID(int=environment.random.getrandbits(128), version=4),
    )
    try:
        outgoing = controllers_environment(environment, config)
        bound = await _listen(environment, config)
        try:
            machine = MetadataStateMachine(node_id, features)
            make = make_log or functools.partial(metadata_log, engine)
            async with trio.open_nursery() as nursery:
                if shutdown is not None:
                    nursery.start_soon(_end_when_asked, shutdown, machine, nursery.cancel_scope)
                await _run(outgoing, config, make, machine, directory, bound, logger, features, requests, task_status)
        finally:
            for _, listener in bound:
                listener.close()
    finally:
        directory.close()


async def _listen(environment: Environment, config: Config) -> list[tuple[ListenerEndpoint, Listener]]:
    bound: list[tuple[ListenerEndpoint, Listener]] = []
    backlog = config.get_int("socket.listen.backlog.size")
    try:
        for endpoint in controller_listeners(config):
            try:
                listener = await environment.network.listen(endpoint.host, endpoint.port, backlog=backlog)
            except OSError as error:
                raise OSError(error.errno, listening_refused(endpoint, error)) from error
            bound.append((endpoint, listener))
    except BaseException:
        for _, listener in bound:
            listener.close()
        raise
    return bound


async def _run(
    environment: Environment,
    config: Config,
    make_log: MetadataLogFactory,
    machine: MetadataStateMachine,
    directory: NodeDirectory,
    bound: Sequence[tuple[ListenerEndpoint, Listener]],
    logger: EventLogger,
    features: Mapping[str, tuple[int, int]],
    requests: RequestTimes | None,
    task_status: trio.TaskStatus[ControllerNode],
) -> None:
    """Runs the node with its directory and listeners; ``environment`` opens connections as controllers do."""
    node_id = config.get_int("node.id")
    settings = Settings.of(config)
    voters = {voter.node_id: (voter.host, voter.port) for voter in quorum_voters(config)}
    known = voters or await _known_voters(environment, config, directory)
    log = machine.log = make_log(
        environment, _log_config(config, directory, known, joins=node_id not in voters), machine
    )
    credentials = bootstrap_keys(
        bootstrap_credentials(config), lambda count: environment.random.getrandbits(8 * count).to_bytes(count, "big")
    )
    active = ActiveController(
        environment,
        settings,
        log,
        machine,
        node_id=node_id,
        incarnation_id=UUID(int=environment.random.getrandbits(128), version=4),
        endpoints=lambda: _endpoints(bound, voters[node_id][0] if node_id in voters else ""),
        cluster_id=directory.identity.cluster_id,
        features=features,
        first_records=bootstrap_records(credentials),
    )
    machine.on_image(functools.partial(_learn_cluster_id, directory, logger))
    service = _service(environment, config, settings, active, machine, features, bound[0][0].listener_name)
    known_credentials = ImageCredentials(lambda: machine.image, credentials, token_secret(config))
    attempts: dict[str, ListenerAttempts] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        nursery.start_soon(active.run)
        served = await _serve_listeners(
            nursery,
            environment,
            config,
            bound,
            lambda endpoint: _handlers(environment, config, endpoint, service, known_credentials, attempts, logger),
            machine,
            requests,
        )
        search = _search(environment, config, directory, log, bound[0][0].listener_name)
        nursery.start_soon(search.run)
        task_status.started(ControllerNode(log=log, machine=machine, active=active, served=served, attempts=attempts))


def _search(
    environment: Environment, config: Config, directory: NodeDirectory, log: MetadataLog, listener_name: str
) -> QuorumSearch:
    """Returns what finds the quorum; ``listener_name`` is the listener of the other controllers."""
    voters = {voter.node_id: (voter.host, voter.port) for voter in quorum_voters(config)}
    return QuorumSearch(
        environment,
        log,
        directory_id=directory.identity.directory_id,
        cluster_id=lambda: directory.identity.cluster_id,
        address=voters.get(log.node_id),  # one that joined is where the request that let it vote says
        listener_name=listener_name,
        servers=() if voters else addresses(config, "controller.quorum.bootstrap.servers"),
    )


def _endpoints(bound: Sequence[tuple[ListenerEndpoint, Listener]], voter_host: str) -> tuple[Endpoint, ...]:
    """Returns the addresses at which other nodes reach this one; ``voter_host`` stands for a listener without host."""
    return tuple(
        Endpoint(
            name=endpoint.listener_name,
            host=endpoint.host or voter_host or listener.address[0],
            port=listener.address[1],
            security_protocol=int(endpoint.security_protocol),
        )
        for endpoint, listener in bound
    )


def _learn_cluster_id(directory: NodeDirectory, logger: EventLogger, image: MetadataImage) -> None:
    if image.cluster_id and image.cluster_id != directory.identity.cluster_id:
        directory.learn_cluster_id(image.cluster_id)
        logger.info("cluster-id", cluster=image.cluster_id)


def _service(
    environment: Environment,
    config: Config,
    settings: Settings,
    active: ActiveController,
    machine: MetadataStateMachine,
    features: Mapping[str, tuple[int, int]],
    listener_name: str,
) -> ControllerService:
    """Returns what all connections share; ``listener_name`` is the listener of the other controllers."""
    log, node_id = machine.log, config.get_int("node.id")
    assert log is not None
    quotas = ControllerQuotas(environment.clock, config)
    machine.on_image(quotas.follow)
    return ControllerService(
        active=active,
        log=log,
        machine=machine,
        metadata=MetadataService(log, machine),
        quorum=QuorumAdmin(log, machine, brokers=active.live.observers, listener_name=listener_name),
        make_inputs=_decision_inputs(environment, settings, machine),
        node_id=node_id,
        features=features,
        entries_max=config.get_int("request.max.entries"),
        authorizer=configured_authorizer(
            config,
            lambda: machine.image,
            environment.clock,
            EventLogger("moldau.authorizer", node=node_id),
        ),
        quotas=quotas,
    )


def _decision_inputs(
    environment: Environment, settings: Settings, machine: MetadataStateMachine
) -> Callable[[], DecisionInputs]:
    """Returns a function that gives the inputs of decisions which this node makes without leading."""
    no_sessions = BrokerSessions(timeout_ms=settings.broker_session_timeout_ms, grace_ms=0)

    def inputs() -> DecisionInputs:
        context = Context(
            settings=settings,
            now_ms=environment.clock.monotonic_ms(),
            new_uuid=lambda: UUID(int=environment.random.getrandbits(128), version=4),
            draw_below=environment.random.randrange,
            wall_ms=environment.clock.wall_ms(),
        )
        return DecisionInputs(image=machine.image, context=context, sessions=no_sessions)

    return inputs


def _handlers(
    environment: Environment,
    config: Config,
    endpoint: ListenerEndpoint,
    service: ControllerService,
    credentials: ImageCredentials,
    attempts: dict[str, ListenerAttempts],
    logger: EventLogger,
) -> HandlerFactory:
    """Returns what serves the connections of one listener, behind its login and its check of certificates.

    Adds what counts the logins to ``attempts``.
    """
    name, protocol = endpoint.listener_name, endpoint.security_protocol
    sasl = None
    if protocol.uses_sasl:
        sasl = SaslListener(environment, config, name, protocol, credentials, logger)
        attempts[name] = sasl.attempts
    principals = node_principals(config, name, protocol)

    def connect(connection: Connection, peer: Peer) -> ControllerConnection:
        if principals is None:
            return ControllerConnection(service, peer)
        certificate = getattr(connection, "peer_certificate", None)
        return ControllerConnection(service, peer, lambda host: principals.refusal(certificate, host, peer.identity))

    return peer_handlers(config, name, protocol, sasl, connect)


async def _end_when_asked(shutdown: trio.Event, machine: MetadataStateMachine, scope: trio.CancelScope) -> None:
    """Ends the node in order: its successor is elected first, so that no client waits for an election timeout."""
    await shutdown.wait()
    log = machine.log
    if log is not None and log.leadership.active and len(log.voters) > 1:
        with (
            trio.move_on_after(HANDOVER_TIMEOUT_MS / 1000),
            contextlib.suppress(NotLeaderError, MembershipChangeError),
        ):
            await log.transfer_leadership()
    scope.cancel()


async def _serve_listeners(
    nursery: trio.Nursery,
    environment: Environment,
    config: Config,
    bound: Sequence[tuple[ListenerEndpoint, Listener]],
    handlers: Callable[[ListenerEndpoint], HandlerFactory],
    machine: MetadataStateMachine,
    requests: RequestTimes | None,
) -> ServedListeners:
    """Starts a server for each listener in ``nursery``; together they keep to the limits of connections."""
    log, logger = machine.log, EventLogger("moldau.controller", node=config.get_int("node.id"))
    assert log is not None
    tally = connection_tally(environment.disk, config)
    bounds = ConnectionBounds(config, [endpoint for endpoint, _ in bound], lambda: len(log.voters), logger)
    certificates: dict[str, ListenerTls] = {}
    servers: dict[str, Server] = {}
    for endpoint, listener in bound:
        secure = listener_tls(environment, config, endpoint.listener_name, endpoint.security_protocol)
        if secure is not None:
            certificates[endpoint.listener_name] = secure
        server = servers[endpoint.listener_name] = await nursery.start(
            _serve,
            environment,
            listener,
            handlers(endpoint),
            bounds.limits(endpoint),
            tally,
            bounds.rates,
            secure,
            logger,
            requests,
            endpoint.listener_name,
        )
        bounds.serve(endpoint, server)
    settings = CertificateSettings(config, certificates, environment, logger)
    for follow in (bounds.follow, settings.follow):
        follow(machine.image)
        machine.on_image(follow)
    found = tuple(listener.address for _, listener in bound)
    logger.info("listening", addresses=",".join(itertools.starmap(join_address, found)))
    return ServedListeners(found, certificates, servers)


async def _serve(
    environment: Environment,
    listener: Listener,
    connect: HandlerFactory,
    limits: ServerLimits,
    tally: ConnectionTally,
    rates: AdmissionRates,
    secure: ListenerTls | None,
    logger: EventLogger,
    requests: RequestTimes | None,
    listener_name: str,
    task_status: trio.TaskStatus[Server],
) -> None:
    await serve(
        environment,
        listener,
        connect,
        limits,
        tally=tally,
        rates=rates,
        secure=secure,
        logger=logger,
        times=requests,
        listener_name=listener_name,
        task_status=task_status,
    )


async def _known_voters(
    environment: Environment, config: Config, directory: NodeDirectory
) -> dict[int, tuple[str, int]]:
    """Returns the voters of a quorum that this node joins; one that has joined before may find them in its own log."""
    servers = addresses(config, "controller.quorum.bootstrap.servers")
    client_id = f"controller-{directory.identity.node_id}"
    if directory.is_new:
        if bootstraps_from_itself(config):
            own = f"{directory.identity.node_id}@{join_address(*servers[0])}"
            raise ValueError(
                "controller.quorum.bootstrap.servers names this node alone, which belongs to no quorum yet: "
                f"to begin a new cluster, set controller.quorum.voters={own} in place of it"
            )
        return await discover_voters(environment, servers, client_id=client_id)
    with trio.move_on_after(DISCOVERY_TIMEOUT_MS / 1000):
        return await discover_voters(environment, servers, client_id=client_id)
    return {}


def _log_config(
    config: Config, directory: NodeDirectory, voters: dict[int, tuple[str, int]], *, joins: bool
) -> MetadataLogConfig:
    return MetadataLogConfig(
        node_id=directory.identity.node_id,
        directory=directory.engine_path,
        voters=voters,
        directory_id=directory.identity.directory_id,
        cluster_id=lambda: directory.identity.cluster_id,
        log_exists=directory.identity.log_begun,
        on_opened=directory.log_opened,
        timing=election_timing(float(config.get_int("controller.quorum.election.timeout.ms"))),
        limits=LogLimits(snapshot_after_bytes=config.get_int("metadata.log.max.record.bytes.between.snapshots")),
        sync_patience_ms=config.get_int("log.dir.sync.timeout.ms") / 2,
        joins=joins,
    )


def election_timing(election_timeout_ms: float) -> ElectionTiming:
    """Times that follow from ``controller.quorum.election.timeout.ms``, the longest wait before an election."""
    return ElectionTiming(
        election_timeout_ms_min=election_timeout_ms / 2,
        election_timeout_ms_max=election_timeout_ms,
        heartbeat_interval_ms=election_timeout_ms / 8,
    )
