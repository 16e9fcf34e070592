"""Starts and stops a broker.

Order of a start: lock and read the log directories; find the controllers and their cluster; recover the logs; bind the
listeners; register; catch up with the metadata; take over what it says of this broker (leader here, follower there); be
unfenced; serve. The first steps fail with clear errors, the later ones wait.

Order of a stop: the controller moves leadership away (controlled shutdown) while this broker goes on serving, so that
clients notice no more than an election; then connections end, logs are flushed, and the clean-shutdown marker is
written. A broker that is killed does nothing of this and loses nothing by it.

What is read off the configuration and the directories at the start is in ``startup``, the coordinators in
``coordinators``.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import (
    ConfigError,
    broker_listeners,
    controller_listener_names,
    controller_protocol,
    inter_broker_listener_name,
    inter_broker_protocol,
    quorum_voters,
)
from moldau.runtime.connection_tally import ConnectionTally
from moldau.runtime.exceptions import leaves
from moldau.runtime.log import EventLogger
from moldau.runtime.server import serve
from moldau.runtime.sync import ByteBudget
from moldau.runtime.tls_context import listener_tls, outgoing_environment
from moldau_broker.log.errors import LogStorageError
from moldau_broker.replication.fetch_session import FetchSessionCache
from moldau_broker.server.apis import BASE_APIS, api_table
from moldau_broker.server.connection import BrokerConnection, listener_services
from moldau_broker.server.context import BrokerContext
from moldau_broker.server.coordinators import build_coordinators
from moldau_broker.server.directory_watch import DirectoryWatch, LogDirectoriesFailedError, failure_causes
from moldau_broker.server.dynamic_config import DynamicConfig
from moldau_broker.server.isr import IsrAlterations
from moldau_broker.server.log_tasks import LogSyncs, LogTasks, known_log_configs
from moldau_broker.server.metadata_applier import MetadataApplier
from moldau_broker.server.metadata_cache import MetadataCache
from moldau_broker.server.producer_ids import ProducerIds
from moldau_broker.server.replica_directories import ReplicaDirectories
from moldau_broker.server.replica_fetcher import ReplicaFetchers
from moldau_broker.server.replica_manager import ReplicaManager, ReplicaSettings
from moldau_broker.server.replica_moves import move_replicas
from moldau_broker.server.startup import (
    BrokerStartError,
    advertised_endpoints,
    bind,
    clean_epoch,
    fetcher_settings,
    known_cluster_id,
    listener_limits,
    log_manager,
)
from moldau_broker.server.topic_creation import TopicCreation
from moldau_broker.server.transactions import Peers
from moldau_quorum.broker_session import (
    BrokerRegistration,
    BrokerSession,
    ControllerClient,
    InconsistentClusterError,
    MetadataFollower,
    RegistrationRefusedError,
)
from moldau_quorum.controller.features import SUPPORTED_FEATURES
from moldau_quorum.image import RESOURCE_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.environment import Environment, Listener
    from moldau.runtime.server import Server
    from moldau_broker.log.manager import LogManager
    from moldau_quorum.image import MetadataDelta, MetadataImage

CONTROLLED_SHUTDOWN_TIMEOUT_MS = 10_000.0


class Broker:
    """A running broker. Made by ``run_broker``."""

    def __init__(
        self, environment: Environment, config: Config, features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES
    ) -> None:
        """Builds the parts that need nothing from outside. ``features`` are the levels that it supports.

        Raises ``ConfigError``.
        """
        self._features = features
        self._environment = environment
        self._config = config
        self.broker_id = config.get_int("node.id")
        self._logger = EventLogger("moldau.broker", node=self.broker_id)
        self._voters = {voter.node_id: (voter.host, voter.port) for voter in quorum_voters(config)}
        if not self._voters:
            raise ConfigError(["controller.quorum.voters is empty: a broker needs the controllers' addresses"])
        self._inter_broker_listener = inter_broker_listener_name(config)
        self._to_brokers = outgoing_environment(
            environment, config, self._inter_broker_listener, inter_broker_protocol(config)
        )
        self._to_controllers = outgoing_environment(
            environment, config, controller_listener_names(config)[0], controller_protocol(config)
        )
        self._tls = {
            endpoint.listener_name: listener_tls(
                environment, config, endpoint.listener_name, endpoint.security_protocol
            )
            for endpoint in broker_listeners(config)
        }
        self.metadata = MetadataCache(
            self.broker_id,
            self._inter_broker_listener,
            rack_aware_reads="RackAware" in (config.get_str_or_none("replica.selector.class") or ""),
        )
        self._logs: LogManager | None = None
        self._is_recovering = False  # logs are being looked into, or have been
        self._recovered: LogManager | None = None  # the same, once every log is whole
        self._listeners: list[tuple[ListenerEndpoint, Listener]] = []
        self._servers: list[Server] = []
        self._watch: DirectoryWatch | None = None
        self._applier = MetadataApplier(self.metadata, self._apply)
        self._dynamic = DynamicConfig(config, self.broker_id, self._logger)
        self._log_tasks = LogTasks(environment, self._logger)
        self._context: BrokerContext | None = None
        self._session: BrokerSession | None = None
        self._fetchers: ReplicaFetchers | None = None
        self._syncs: LogSyncs | None = None
        self._peers: Peers | None = None
        self.addresses: dict[str, tuple[str, int]] = {}
        """Host and real port of each listener, by name; known once the broker has started."""

    @property
    def context(self) -> BrokerContext:
        """The parts of the broker, once it has started."""
        assert self._context is not None, "the broker has not started"
        return self._context

    @property
    def is_built(self) -> bool:
        """Whether ``context`` is there; true until the process ends."""
        return self._context is not None

    @property
    def is_serving(self) -> bool:
        """Whether clients are served: the broker has once been unfenced."""
        return bool(self._servers)

    @property
    def broker_epoch(self) -> int:
        """The epoch of the registration in force; -1 before the first."""
        return -1 if self._session is None else self._session.broker_epoch

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: trio.Event, task_status: trio.TaskStatus[Broker]) -> None:
        """Runs until ``stop`` is set, then shuts down in order. Cancelled, it ends at once as if killed."""
        logs: LogManager | None = None
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as starting:
                    nursery.start_soon(_cancel_when, stop, starting)
                    logs = await self._start(nursery)
                if logs is None or starting.cancelled_caught:
                    self._logger.info("stopped-while-starting")
                else:
                    self._logger.info("started", listeners=",".join(f"{h}:{p}" for h, p in self.addresses.values()))
                    task_status.started(self)
                    await stop.wait()
                    await self._give_leadership_away()
                nursery.cancel_scope.cancel()
            await self._close_logs()
        finally:
            if self._peers is not None:
                self._peers.close()
            if self._context is not None:
                self._context.controller.close()
            for _, listener in self._listeners:
                listener.close()
            if self._logs is not None:
                for directory in self._logs.directories:
                    directory.release()

    async def _close_logs(self) -> None:
        """Leaves the logs as a clean stop does. One that came before the registration takes nothing from the one
        before: the next life may tell the epoch of the last registration as if this one had not been.
        """
        if self._recovered is None:
            if self._logs is not None and not self._is_recovering:
                self._logs.give_back()
            return
        if self._context is not None:
            self._context.replicas.flush()
        epoch = self.broker_epoch if self.broker_epoch >= 0 else clean_epoch(self._recovered)
        await self._log_tasks.close(self._recovered, epoch)
        self._logger.info("stopped")

    async def _start(self, nursery: trio.Nursery) -> LogManager:
        cluster_id = known_cluster_id(self._environment.disk, self._config)
        logs = self._open_logs(cluster_id) if cluster_id else None
        controller = ControllerClient(
            self._to_controllers, self._voters, client_id=f"broker-{self.broker_id}-forwarding"
        )
        follower = MetadataFollower(
            self._to_controllers,
            self._voters,
            node_id=self.broker_id,
            cluster_id=cluster_id,
            on_delta=self._applier.on_delta,
            on_leader=partial(self._on_controller, controller),
            on_voters=partial(self._on_voters, controller),
        )
        await nursery.start(follower.run)
        if logs is None:
            # A quorum that was just born has an empty log until its first leader has written the cluster's id.
            await follower.wait_until(lambda image: image.cluster_id != "")
            logs = self._open_logs(follower.image.cluster_id)
        logs.know_configs(*known_log_configs(self._config, follower.image, self.broker_id))
        self._is_recovering = True
        await self._log_tasks.recover(logs, self._config.get_int("num.recovery.threads.per.data.dir"))
        if not logs.online_directories:
            raise LogDirectoriesFailedError(f"all log directories have failed: {failure_causes(logs)}")
        self._recovered = logs
        await self._bind()
        self._build(logs, controller, follower)
        await self._start_tasks(nursery)
        await self._register(nursery, follower, logs)
        await self._serve(nursery)
        return logs

    def _open_logs(self, cluster_id: str) -> LogManager:
        logs = self._logs = log_manager(self._environment, self._config, self.broker_id, cluster_id)
        logs.start(self._environment.clock.wall_ms())
        return logs

    async def _bind(self) -> None:
        for endpoint in broker_listeners(self._config):
            listener = await bind(self._environment, self._config, endpoint)
            self._listeners.append((endpoint, listener))
            self.addresses[endpoint.listener_name] = listener.address

    # --- parts -----------------------------------------------------------------------------------------------------

    def _build(self, logs: LogManager, controller: ControllerClient, follower: MetadataFollower) -> None:
        config, environment = self._config, self._environment
        clock = environment.clock
        isr = IsrAlterations(clock, self.broker_id, controller, lambda: self.broker_epoch)
        directories = ReplicaDirectories(
            clock, self.broker_id, controller, lambda: self.broker_epoch, logs, self.metadata
        )
        self._watch = DirectoryWatch(clock, config, logs, directories, self.metadata, lambda: self.broker_epoch)
        replicas = ReplicaManager(
            clock,
            ReplicaSettings(broker_id=self.broker_id, lag_time_max_ms=float(config.get_int("replica.lag.time.max.ms"))),
            logs,
            self._dynamic.topic_settings,
            directories=directories,
            on_isr_proposal=isr.notify,
            on_directory_failure=self._directory_failed,
        )
        self._isr = isr
        self._fetchers = ReplicaFetchers(
            self._to_brokers,
            fetcher_settings(config, self.broker_id),
            replicas,
            self.metadata.inter_broker_address,
            lambda: self.broker_epoch,
        )
        self._syncs = LogSyncs(self._log_tasks, logs)
        replicas.connect(self._fetchers, self._syncs.request)
        replicas.set_throttles(
            float(config.get_int("leader.replication.throttled.rate")),
            float(config.get_int("follower.replication.throttled.rate")),
        )
        self.metadata.is_suspect = self._fetchers.is_suspect
        producer_ids = ProducerIds(self.broker_id, controller, lambda: self.broker_epoch)
        self._peers = Peers(self._to_brokers, self.broker_id, self.metadata)
        coordinators = build_coordinators(
            environment, config, self.broker_id, self.metadata, replicas, self._peers, producer_ids
        )
        self._context = BrokerContext(
            environment=environment,
            config=config,
            static_config=config,
            dynamic=self._dynamic,
            broker_id=self.broker_id,
            incarnation_id=uuid.UUID(int=environment.random.getrandbits(128), version=4),
            metadata=self.metadata,
            follower=follower,
            controller=controller,
            logs=logs,
            replicas=replicas,
            directories=directories,
            features=self._features,
            sessions=FetchSessionCache(slots_max=config.get_int("max.incremental.fetch.session.cache.slots")),
            producer_ids=producer_ids,
            topic_creation=TopicCreation(controller, follower, self.broker_id),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            markers=coordinators.markers,
            verifier=coordinators.verifier,
        )
        replicas.leadership_listeners.append(coordinators.leadership_changed)

    async def _start_tasks(self, nursery: trio.Nursery) -> None:
        assert self._fetchers is not None
        assert self._syncs is not None
        assert self._watch is not None
        replicas = self.context.replicas
        await nursery.start(self._syncs.run)
        await nursery.start(self._fetchers.run)
        await nursery.start(self.context.groups.run)
        await nursery.start(self.context.transactions.run)
        nursery.start_soon(replicas.run_waits)
        nursery.start_soon(self._isr.run, replicas)
        nursery.start_soon(self._watch.run)
        nursery.start_soon(self.context.directories.run)
        nursery.start_soon(self._applier.run)
        nursery.start_soon(self._tick_isr)
        nursery.start_soon(self._log_tasks.tick, self.context.logs)
        nursery.start_soon(self._log_tasks.clean, self.context.logs)
        nursery.start_soon(move_replicas, self.context, self._log_tasks.offload, self._logger)

    async def _register(self, nursery: trio.Nursery, follower: MetadataFollower, logs: LogManager) -> None:
        """Registers, catches up, takes over the metadata, and waits to be unfenced."""
        config = self._config
        registration = BrokerRegistration(
            broker_id=self.broker_id,
            incarnation_id=self.context.incarnation_id,
            cluster_id=follower.image.cluster_id,
            endpoints=advertised_endpoints(config, self.addresses),
            rack=config.get_str_or_none("broker.rack"),
            features=tuple((name, lowest, highest) for name, (lowest, highest) in sorted(self._features.items())),
            log_dirs=tuple(d.directory_id for d in logs.directories if d.online and d.directory_id is not None),
            previous_broker_epoch=clean_epoch(logs),
        )
        session = BrokerSession(
            self._to_controllers,
            self._voters,
            registration,
            metadata_offset=lambda: follower.image.offset,
            ready=lambda: self._applier.following,
            offline_log_dirs=self.context.directories.offline_ids,
            heartbeat_interval_ms=float(config.get_int("broker.heartbeat.interval.ms")),
            session_timeout_ms=float(config.get_int("broker.session.timeout.ms")),
            registration_timeout_ms=float(config.get_int("initial.broker.registration.timeout.ms")),
        )
        self._session = session
        await nursery.start(session.run)
        await follower.wait_until(self._knows_me)
        assert self._watch is not None
        reason = self._watch.reason_to_end()
        if reason is not None:
            raise BrokerStartError(reason)
        await self._applier.begin()
        session.wake()
        await self._set_strays_aside(logs)
        logs.begin_discarding(self._environment.clock.wall_ms())
        await session.wait_unfenced()

    async def _set_strays_aside(self, logs: LogManager) -> None:
        """Only now: metadata from before this registration may not know a replica that this broker holds."""
        replicas, offline = self.context.replicas.partitions, self.context.directories.offline
        for _ in logs.set_aside_unclaimed(lambda key: key in replicas or key in offline):
            await trio.lowlevel.checkpoint()  # each waits for the disk

    def _knows_me(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self.broker_id)
        return broker is not None and broker.broker_epoch == self.broker_epoch

    async def _serve(self, nursery: trio.Nursery) -> None:
        budget = ByteBudget(self._config.get_int("queued.max.request.bytes"))
        tally = ConnectionTally()
        apis = api_table(BASE_APIS)
        for endpoint, listener in self._listeners:
            services = listener_services(self.context, endpoint.listener_name, apis)
            server = await nursery.start(
                partial(
                    serve,
                    self._environment,
                    listener,
                    partial(BrokerConnection, services),
                    listener_limits(self.context.config, endpoint),
                    budget=budget,
                    tally=tally,
                    is_protected=len(self._listeners) > 1 and endpoint.listener_name == self._inter_broker_listener,
                    secure=self._tls[endpoint.listener_name],
                    logger=EventLogger("moldau.broker.listener", node=self.broker_id, listener=endpoint.listener_name),
                )
            )
            self._servers.append(server)
            server.limits = listener_limits(self.context.config, endpoint)  # they may have changed while it started

    # --- metadata --------------------------------------------------------------------------------------------------

    def _on_controller(self, controller: ControllerClient, controller_id: int) -> None:
        controller.suggest(controller_id)
        if self._session is not None:
            self._session.suggest_controller(controller_id)

    def _on_voters(self, controller: ControllerClient, voters: Mapping[int, tuple[str, int]]) -> None:
        self._voters = dict(voters)
        controller.update_voters(voters)
        if self._session is not None:
            self._session.update_voters(voters)

    def _apply(self, delta: MetadataDelta) -> Iterator[bool]:
        """Brings the parts up to the newest metadata, partition by partition."""
        context = self.context
        own = (RESOURCE_BROKER, str(self.broker_id))
        if own in delta.changed_configs or (RESOURCE_BROKER, "") in delta.changed_configs:
            self._apply_dynamic_config(delta.image)
        yield from context.replicas.apply(delta)
        self._dynamic.forget(t.name for t in delta.deleted_topics if t.name not in delta.image.topics_by_name)
        if delta.deleted_topics:
            context.groups.topics_deleted({topic.name for topic in delta.deleted_topics})
        if delta.features_changed:
            context.directories.reconcile_all()
        if delta.features_changed or self.broker_id in delta.changed_brokers:
            assert self._watch is not None
            self._watch.notify()
        assert self._fetchers is not None
        for broker_id in delta.changed_brokers:
            before, after = delta.previous.brokers.get(broker_id), delta.image.brokers.get(broker_id)
            if after is None or after.fenced:
                self._fetchers.trust(broker_id)  # the controller has judged
            if after is not None and (before is None or before.broker_epoch != after.broker_epoch):
                self._fetchers.broker_changed(broker_id)

    def _apply_dynamic_config(self, image: MetadataImage) -> None:
        config = self.context.config = self._dynamic.follow(image)
        for (endpoint, _), server in zip(self._listeners, self._servers, strict=False):  # it may not serve yet
            server.limits = listener_limits(config, endpoint)
        for listener_name, tls in self._tls.items():
            if tls is not None:
                try:
                    tls.reload(config, listener_name)
                except ConfigError as error:
                    self._logger.error("certificates-refused", listener=listener_name, error=error)
        self.context.replicas.set_throttles(
            float(config.get_int("leader.replication.throttled.rate")),
            float(config.get_int("follower.replication.throttled.rate")),
        )

    # --- time ------------------------------------------------------------------------------------------------------

    async def _tick_isr(self) -> None:
        while True:
            period_ms = self.context.config.get_int("replica.lag.time.max.ms") / 2
            await trio.sleep(max(1.0, period_ms) / 1000)
            self.context.replicas.tick_isr()

    def _directory_failed(self, directory: str) -> None:
        """Notes a failed log directory. Whoever noticed the failure may be the task of one connection."""
        if self._watch is not None:
            self._watch.notify()
        if self._session is not None:
            self._session.wake()

    # --- end -------------------------------------------------------------------------------------------------------

    async def _give_leadership_away(self) -> None:
        """Controlled shutdown: goes on serving until the controller says that nobody needs this broker."""
        self._logger.info("stopping")
        if self._session is None or not self._config.get_bool("controlled.shutdown.enable"):
            return
        with trio.move_on_after(CONTROLLED_SHUTDOWN_TIMEOUT_MS / 1000) as scope:
            await self._session.controlled_shutdown()
        if scope.cancelled_caught:
            self._logger.warning("controlled-shutdown-unanswered", after_ms=CONTROLLED_SHUTDOWN_TIMEOUT_MS)


async def run_broker(
    environment: Environment,
    config: Config,
    *,
    shutdown: trio.Event | None = None,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
    task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a broker; started, with the ``Broker``, when it is unfenced and serves. ``features`` are the levels that it
    supports (an older version of Moldau supports less).

    Without ``shutdown``, cancellation asks for a controlled shutdown, which takes its time (bounded). With it, the
    event does, and cancellation ends the broker at once, as a crash would.

    Raises:
        BrokerStartError: port in use, another cluster's or node's directories, refused by the controllers.
        ConfigError: the configuration cannot be used.
        LogDirectoriesFailedError: all log directories have failed, or one has and the controllers cannot be told.
    """
    broker = Broker(environment, config, features)
    try:
        if shutdown is not None:
            await broker.run(shutdown, task_status)
            return
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_set_when_cancelled, stop)
            with trio.CancelScope(shield=True):
                await broker.run(stop, task_status)
            nursery.cancel_scope.cancel()
    except* (RegistrationRefusedError, InconsistentClusterError, LogStorageError) as group:
        raise BrokerStartError("; ".join(str(error) for error in leaves(group))) from group


async def _set_when_cancelled(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
