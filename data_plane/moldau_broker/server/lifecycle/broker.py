"""Starts and stops a broker.

A start takes these steps in order: lock and read the log directories, find the controllers and their cluster, recover
the logs, bind the listeners, build the parts, register, catch up with the metadata, apply them (lead some partitions,
follow others), wait to be unfenced, serve. The first steps fail with clear errors; the later ones wait. ``phases`` has
one value for each phase that decides what a stop must close.

A stop takes these: the controller moves leadership away (controlled shutdown) while this broker still serves, so that
clients notice no more than an election; then the broker closes connections, flushes the logs, and writes the
clean-shutdown marker. A killed broker takes none of these steps and loses no acknowledged record.

``startup`` reads configuration and directories; ``listening`` binds and serves; ``coordinators`` builds coordinators.
"""

from __future__ import annotations

import uuid
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING

import trio

from moldau.implementation import announce_implementation
from moldau.runtime.config import inter_broker_listener_name, join_address, log_dirs
from moldau.runtime.tasks.exceptions import leaves
from moldau.runtime.tasks.supervision import cancel_when, set_when_cancelled
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.tls.outgoing import brokers_environment, controllers_environment
from moldau.values import BrokerId
from moldau_broker.log.config import LogManagerSettings
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.files.names import APPLIED_METADATA
from moldau_broker.replication.fetch_session import FetchSessionCache
from moldau_broker.server.client_metrics.manager import client_metrics
from moldau_broker.server.cluster_metadata.applied_position import AppliedPosition, known_position
from moldau_broker.server.cluster_metadata.applier import MetadataApplier
from moldau_broker.server.cluster_metadata.cache import MetadataCache
from moldau_broker.server.cluster_metadata.topic_creation import TopicCreation
from moldau_broker.server.coordination.coordinators import build_coordinators
from moldau_broker.server.coordination.producer_ids import ProducerIds
from moldau_broker.server.coordination.transactions import Peers
from moldau_broker.server.handlers.context import BrokerContext
from moldau_broker.server.handlers.metadata import create_with_defaults, ensure_share_state_topic
from moldau_broker.server.lifecycle.authentication import Authentication
from moldau_broker.server.lifecycle.directory_watch import DirectoryWatch, directories_failed
from moldau_broker.server.lifecycle.dynamic_config import DynamicConfig, set_throttles
from moldau_broker.server.lifecycle.listening import BrokerListeners
from moldau_broker.server.lifecycle.log_tasks import LogSyncs, LogTasks, known_log_configs
from moldau_broker.server.lifecycle.phases import BrokerState, Built, Opened, Recovered, Recovering, state_of
from moldau_broker.server.lifecycle.shutdown import OrderlyStop
from moldau_broker.server.lifecycle.startup import (
    BrokerStartError,
    BrokerStartTimeoutError,
    advertised_endpoints,
    clean_epoch,
    fetcher_settings,
    known_cluster_id,
    known_voters,
    log_manager,
    start_in_time,
)
from moldau_broker.server.quotas.broker_quotas import BrokerQuotas, quota_windows
from moldau_broker.server.remote_log.building import remote_log_manager
from moldau_broker.server.remote_reading.building import connect_reads
from moldau_broker.server.replicas.isr import IsrAlterations
from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
from moldau_broker.server.replicas.replica_fetcher import ReplicaFetchers
from moldau_broker.server.replicas.replica_manager import ReplicaManager, ReplicaSettings
from moldau_broker.server.replicas.replica_moves import move_replicas
from moldau_broker.server.share.share_partition_manager import share_partition_manager
from moldau_quorum.authorization.configured import configured_authorizer
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_follower import InconsistentClusterError, MetadataFollower
from moldau_quorum.broker_side.reachability import named
from moldau_quorum.broker_side.session import BrokerRegistration, BrokerSession, RegistrationRefusedError
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_CLIENT_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from moldau.runtime.config import Config
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.metrics import Histogram
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.server.lifecycle.phases import Phase
    from moldau_broker.server.replicas.isr import IsrStatistics
    from moldau_quorum.metadata.image import MetadataDelta, MetadataImage


class Broker:
    """A running broker, which ``run_broker`` creates."""

    def __init__(
        self,
        environment: Environment,
        config: Config,
        features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
        requests: RequestTimes | None = None,
    ) -> None:
        """Builds the parts that need only the configuration; ``features`` are the levels that the broker supports.

        ``requests`` counts the requests of all listeners, if they are to be counted.

        Raises:
            ConfigError: the configuration cannot be used.
        """
        self._features = features
        self._environment = environment
        self._config = config
        self.broker_id = BrokerId(config.get_int("node.id"))
        self._logger = EventLogger("moldau.broker", node=self.broker_id)
        self._voters: Mapping[int, tuple[str, int]] = {}
        self._inter_broker_listener = inter_broker_listener_name(config)
        self._to_brokers = brokers_environment(environment, config)
        self._to_controllers = controllers_environment(environment, config)
        self.listening = BrokerListeners(environment, config, self.broker_id, self._inter_broker_listener, requests)
        self.metadata = MetadataCache(
            self.broker_id,
            self._inter_broker_listener,
            rack_aware_reads="RackAware" in (config.get_str_or_none("replica.selector.class") or ""),
        )
        self._authentication = Authentication(environment, config, lambda: self.metadata.image, self._logger)
        self._phase: Phase | None = None  # None until the log directories are open
        self._applier = MetadataApplier(self.metadata, self._apply, lambda: self.context.replicas.log_changes)
        self._dynamic = DynamicConfig(config, self.broker_id, self._logger)
        self._log_tasks = LogTasks(environment, self._logger, float(config.get_int("log.dir.sync.timeout.ms")))
        self._session: BrokerSession | None = None  # None until the broker registers
        self._ending: BrokerState | None = None  # None until a stop begins

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and real port of each listener, by name; known once the broker has started."""
        return self.listening.addresses

    @property
    def context(self) -> BrokerContext:
        """The parts that handlers use; only when ``is_built``."""
        return self._built.context

    @property
    def is_built(self) -> bool:
        """Whether ``context`` exists; it then exists until the process ends."""
        return isinstance(self._phase, Built)

    @property
    def _built(self) -> Built:
        assert isinstance(self._phase, Built), "the broker has not started"
        return self._phase

    @property
    def is_serving(self) -> bool:
        """Whether the broker serves clients: it has been unfenced at least once."""
        return self.listening.is_serving

    @property
    def state(self) -> BrokerState:
        """The state by Kafka's names."""
        return self._ending or state_of(self._phase, is_serving=self.is_serving)

    @property
    def is_unfenced(self) -> bool:
        """Whether the last heartbeat's answer counted this broker among those that may lead."""
        return self._session is not None and not self._session.fenced

    def isr_statistics(self) -> IsrStatistics:
        """Returns how often ISRs changed; only when ``is_built``."""
        return self._built.isr.statistics()

    @property
    def flush_times(self) -> Histogram:
        """Milliseconds until flushes of logs were durable."""
        return self._log_tasks.flush_times

    @property
    def broker_epoch(self) -> int:
        """The epoch of the current registration; -1 before the first."""
        return -1 if self._session is None else self._session.broker_epoch

    # --- life ------------------------------------------------------------------------------------------------------

    async def run(self, stop: trio.Event, task_status: trio.TaskStatus[Broker]) -> None:
        """Runs until ``stop`` is set, then shuts down in order; cancellation ends it at once, like a crash."""
        orderly: OrderlyStop | None = None
        try:
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as starting:
                    nursery.start_soon(cancel_when, stop, starting)
                    await start_in_time(self._config, partial(self._start, nursery))
                if starting.cancelled_caught:
                    self._logger.info("stopped-while-starting")
                else:
                    announce_implementation(self._logger)
                    self._logger.info("started", listeners=",".join(starmap(join_address, self.addresses.values())))
                    task_status.started(self)
                    await stop.wait()
                    orderly = OrderlyStop(self._environment.clock, self._logger)
                    self._ending = BrokerState.PENDING_CONTROLLED_SHUTDOWN
                    await self._give_leadership_away(orderly)
                    self._ending = BrokerState.SHUTTING_DOWN
                    self._logger.info("ending-connections")
                nursery.cancel_scope.cancel()
            orderly = orderly or OrderlyStop(self._environment.clock, self._logger)
            await orderly.close_logs(self._close_logs)
        finally:
            if isinstance(self._phase, Built):
                self._phase.close()
            self.listening.close()
            if self._phase is not None:
                for directory in self._phase.logs.directories:
                    directory.release()

    async def _close_logs(self) -> None:
        """Leaves the logs as a clean stop does.

        A stop before the registration marks the epoch of the previous registration: the next start may report it as if
        this start had not happened.
        """
        phase = self._phase
        if isinstance(phase, Opened):
            phase.logs.give_back()
        if not isinstance(phase, Recovered | Built):
            return
        if isinstance(phase, Built):
            phase.context.replicas.flush()
            phase.applied.write()
        epoch = self.broker_epoch if self.broker_epoch >= 0 else clean_epoch(phase.logs)
        threads = self._config.get_int("num.recovery.threads.per.data.dir")
        await self._log_tasks.close(phase.logs, epoch, threads)
        self._logger.info("stopped")

    async def _start(self, nursery: trio.Nursery) -> None:
        cluster_id = known_cluster_id(self._environment.disk, self._config)
        self._voters = await known_voters(self._to_controllers, self._config, self.broker_id)
        logs = self._open_logs(cluster_id) if cluster_id else None
        controller = ControllerClient(
            self._to_controllers, self._voters, client_id=f"broker-{self.broker_id}-forwarding"
        )
        follower = MetadataFollower(
            self._to_controllers,
            self._voters,
            node_id=self.broker_id,
            cluster_id=cluster_id,
            floor=known_position(self._environment.disk, log_dirs(self._config), cluster_id, self._logger),
            on_delta=self._applier.on_delta,
            on_leader=partial(self._on_controller, controller),
            on_voters=partial(self._on_voters, controller),
            retry_backoff_ms=float(self._config.get_int("controller.quorum.retry.backoff.ms")),
        )
        await self._find_controllers(nursery, follower)
        if logs is None:
            logs = self._open_logs(follower.image.cluster_id)
        logs.know_configs(*known_log_configs(self._config, follower.image, self.broker_id))
        await self._recover(logs)
        await self.listening.bind()
        self._phase = built = self._build(logs, controller, follower)
        await self._start_tasks(nursery, built)
        await self._register(nursery, built)
        await self.listening.serve(nursery, built.context, self._authentication)

    async def _recover(self, logs: LogManager) -> None:
        self._phase = Recovering(logs=logs)
        await self._log_tasks.recover(logs, self._config.get_int("num.recovery.threads.per.data.dir"))
        if logs.start_shortage is not None:
            raise BrokerStartError(
                f"{logs.start_shortage}: {logs.recovery_progress.logs_total} logs cannot be opened with a limit of "
                f"{logs.files.descriptors.limit} open files: raise it (ulimit -n, LimitNOFILE=)"
            )
        if not logs.online_directories:
            raise directories_failed(logs)
        self._phase = Recovered(logs=logs)

    async def _find_controllers(self, nursery: trio.Nursery, follower: MetadataFollower) -> None:
        """Starts to follow the metadata.

        Raises:
            BrokerStartError: no quorum answered within ``initial.broker.registration.timeout.ms``.
        """
        timeout_ms = self._config.get_int("initial.broker.registration.timeout.ms")
        with trio.move_on_after(timeout_ms / 1000) as scope:
            await nursery.start(follower.run)
            # The log of a new quorum is empty until its first leader writes the cluster id.
            await follower.wait_until(lambda image: image.cluster_id != "")
        if scope.cancelled_caught and follower.refusal:
            raise BrokerStartError(
                f"the controllers' metadata are older than those that this broker has applied ({follower.refusal}): "
                f"restore the data of the controllers, or, to give up what their metadata lack, delete the file "
                f"{APPLIED_METADATA} in each of log.dirs"
            )
        if scope.cancelled_caught:
            cause = follower.reachability.last_cause or "the quorum has no leader yet"
            raise BrokerStartTimeoutError(
                f"no controller answered within initial.broker.registration.timeout.ms = {timeout_ms} "
                f"(controller.quorum.voters {named(follower.voters)}): {cause}"
            )

    def _open_logs(self, cluster_id: str) -> LogManager:
        logs = log_manager(self._environment, self._config, self.broker_id, cluster_id)
        self._phase = Opened(logs=logs)  # before ``start``: should that fail, the locks that it took are released
        logs.start(self._environment.clock.wall_ms())
        return logs

    # --- parts -----------------------------------------------------------------------------------------------------

    def _build(self, logs: LogManager, controller: ControllerClient, follower: MetadataFollower) -> Built:
        """Builds the parts and connects them. One list in the order of their dependencies; it has no branches."""
        config, environment = self._config, self._environment
        clock = environment.clock
        isr = IsrAlterations(clock, self.broker_id, controller, lambda: self.broker_epoch)
        directories = ReplicaDirectories(
            clock, self.broker_id, controller, lambda: self.broker_epoch, logs, self.metadata
        )
        watch = DirectoryWatch(clock, config, logs, directories, self.metadata, lambda: self.broker_epoch)
        replicas = ReplicaManager(
            clock,
            ReplicaSettings(broker_id=self.broker_id, lag_time_max_ms=float(config.get_int("replica.lag.time.max.ms"))),
            logs,
            self._dynamic.topic_settings,
            directories=directories,
            on_isr_proposal=isr.notify,
            on_directory_failure=self._directory_failed,
        )
        fetchers = ReplicaFetchers(
            self._to_brokers,
            fetcher_settings(config, self.broker_id),
            replicas,
            self.metadata.inter_broker_address,
            lambda: self.broker_epoch,
        )
        syncs = LogSyncs(self._log_tasks, logs)
        replicas.connect(fetchers, syncs.request)
        set_throttles(replicas, config)
        self.metadata.is_suspect = fetchers.is_suspect
        producer_ids = ProducerIds(self.broker_id, controller, lambda: self.broker_epoch)
        peers = Peers(self._to_brokers, self.broker_id, self.metadata)
        coordinators = build_coordinators(
            environment, config, self.broker_id, self.metadata, replicas, peers, producer_ids
        )
        context = BrokerContext(
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
            sessions=FetchSessionCache(
                slots_max=config.get_int("max.incremental.fetch.session.cache.slots"), index=replicas.waits.sessions
            ),
            producer_ids=producer_ids,
            topic_creation=TopicCreation(controller, follower, self.broker_id),
            groups=coordinators.groups,
            transactions=coordinators.transactions,
            shares=coordinators.shares,
            share_states=coordinators.share_states,
            markers=coordinators.markers,
            marker_checks=coordinators.marker_checks,
            verifier=coordinators.verifier,
            quotas=BrokerQuotas(clock, quota_windows(config)),
            share_partitions=share_partition_manager(
                environment,
                self.broker_id,
                self.metadata,
                replicas,
                peers,
                lambda topic, configs: create_with_defaults(self.context, topic, configs),
                lambda: self.context.config,
                sessions_max=config.get_int("group.share.max.share.sessions"),
            ),
            client_metrics=client_metrics(environment, lambda: self.context.config.get_int("telemetry.max.bytes")),
            authorizer=configured_authorizer(
                config,
                lambda: self.metadata.image,
                clock,
                EventLogger("moldau.authorizer", node=self.broker_id),
            ),
            remote_log=remote_log_manager(
                environment,
                self.broker_id,
                follower.image.cluster_id,
                self.metadata,
                logs,
                replicas,
                perform=self._log_tasks.perform,
                config=lambda: self._dynamic.config,
                caught_up_ms=lambda: float("-inf") if self._session is None else self._session.caught_up_ms,
            ),
        )
        connect_reads(context, fetchers)
        coordinators.share_states.connect(partial(ensure_share_state_topic, context))
        replicas.leadership_listeners += (coordinators.leadership_changed, context.share_partitions.leadership_changed)
        applied = AppliedPosition(environment.disk, logs, lambda: self.metadata.image, self._log_tasks.run_in)
        replicas.log_changes.before_deletions = applied.write
        return Built(
            logs=logs,
            context=context,
            isr=isr,
            watch=watch,
            fetchers=fetchers,
            syncs=syncs,
            peers=peers,
            applied=applied,
        )

    async def _start_tasks(self, nursery: trio.Nursery, built: Built) -> None:
        context, replicas = built.context, built.context.replicas
        await nursery.start(built.syncs.run)
        await nursery.start(built.fetchers.run)
        await nursery.start(context.groups.run)
        await nursery.start(context.transactions.run)
        await nursery.start(context.share_partitions.run)
        await nursery.start(context.shares.run)
        for part in context.remote_parts:
            await nursery.start(part.run)
        nursery.start_soon(replicas.waits.run)
        nursery.start_soon(built.isr.run, replicas)
        nursery.start_soon(built.watch.run)
        nursery.start_soon(context.directories.run)
        nursery.start_soon(self._applier.run)
        nursery.start_soon(built.applied.run)
        nursery.start_soon(self._tick_isr, context)
        nursery.start_soon(self._log_tasks.tick, built.logs)
        nursery.start_soon(self._log_tasks.clean, built.logs)
        nursery.start_soon(move_replicas, context, self._log_tasks.offload, self._logger)

    async def _register(self, nursery: trio.Nursery, built: Built) -> None:
        """Registers, catches up, applies the metadata, and waits to be unfenced."""
        config, logs, follower = self._config, built.logs, built.context.follower
        registration = BrokerRegistration(
            broker_id=self.broker_id,
            incarnation_id=built.context.incarnation_id,
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
            ready=lambda: self._applier.has_begun,
            directories=built.context.directories.report,
            heartbeat_interval_ms=float(config.get_int("broker.heartbeat.interval.ms")),
            session_timeout_ms=float(config.get_int("broker.session.timeout.ms")),
            registration_timeout_ms=float(config.get_int("initial.broker.registration.timeout.ms")),
        )
        self._session = session
        await nursery.start(session.run)
        await follower.wait_until(self._is_registered)
        reason = built.watch.reason_to_end()
        if reason is not None:
            raise BrokerStartError(reason) from directories_failed(logs)
        built.applied.write()  # before a log of a former topic is set aside
        await self._applier.begin()
        session.wake()
        await self._set_strays_aside(built)
        logs.begin_discarding(self._environment.clock.wall_ms())
        await session.wait_unfenced()

    async def _set_strays_aside(self, built: Built) -> None:
        """Sets aside the logs that no replica of this broker claims.

        This must follow the registration: older metadata may lack a replica that this broker holds.
        """
        replicas, offline = built.context.replicas.partitions, built.context.directories.offline
        for _ in built.logs.set_aside_unclaimed(lambda key: key in replicas or key in offline):
            await trio.lowlevel.checkpoint()  # each waits for the disk

    def _is_registered(self, image: MetadataImage) -> bool:
        broker = image.brokers.get(self.broker_id)
        return broker is not None and broker.broker_epoch == self.broker_epoch

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

    def _apply(self, delta: MetadataDelta) -> Iterator[None]:
        """Brings the parts up to the newest metadata, one partition at a time, except for the files of logs."""
        built, context = self._built, self.context
        if any((RESOURCE_BROKER, name) in delta.changed_configs for name in ("", str(self.broker_id))):
            self._apply_dynamic_config(delta.image)
        self.listening.room.follow(context.config, len(delta.image.brokers))
        if context.directories.follow_cordons(context.config, delta.image) and self._session is not None:
            self._session.wake()
        clients = context.client_metrics
        if clients is not None and any(kind == RESOURCE_CLIENT_METRICS for kind, _ in delta.changed_configs):
            clients.follow(delta.image)
        if delta.changed_quotas:
            context.quotas.follow(delta)
        yield from context.replicas.apply(delta)
        gone = [topic.name for topic in delta.deleted_topics if topic.name not in delta.image.topics_by_name]
        self._dynamic.forget(gone)
        built.logs.forget_topic_configs(gone)
        if delta.deleted_topics:
            context.groups.topics_deleted({topic.name for topic in delta.deleted_topics})
            context.shares.topics_deleted()
        if delta.features_changed:
            context.directories.reconcile_all()
        if delta.features_changed or self.broker_id in delta.changed_brokers:
            built.watch.notify()
        for broker_id in delta.changed_brokers:
            before, after = delta.previous.brokers.get(broker_id), delta.image.brokers.get(broker_id)
            if after is None or after.fenced:
                built.fetchers.trust(broker_id)  # the controller has decided
                built.peers.broker_fenced(broker_id)
            if after is not None and (before is None or before.broker_epoch != after.broker_epoch):
                built.fetchers.broker_changed(broker_id)

    def _apply_dynamic_config(self, image: MetadataImage) -> None:
        config = self.context.config = self._dynamic.follow(image)
        self.listening.follow(self.context, self._to_brokers, self._to_controllers)
        self._authentication.reload(config)
        self.context.logs.follow(LogManagerSettings.from_config(config))
        set_throttles(self.context.replicas, config)

    # --- time ------------------------------------------------------------------------------------------------------

    async def _tick_isr(self, context: BrokerContext) -> None:
        while True:
            period_ms = context.config.get_int("replica.lag.time.max.ms") / 2
            await trio.sleep(max(1.0, period_ms) / 1000)
            context.replicas.tick_isr()
            if context.replicas.log_changes.retry_postponed():
                self._applier.wake()

    def _directory_failed(self, directory: str) -> None:
        """Wakes the tasks that handle a failed log directory; the caller may be the task of one connection."""
        if isinstance(self._phase, Built):
            self._phase.watch.notify()
        if self._session is not None:
            self._session.wake()

    # --- end -------------------------------------------------------------------------------------------------------

    async def _give_leadership_away(self, orderly: OrderlyStop) -> None:
        if self._session is not None and self._config.get_bool("controlled.shutdown.enable"):
            await orderly.give_leadership_away(self._session, lambda: len(self.context.replicas.leading()))


async def run_broker(
    environment: Environment,
    config: Config,
    *,
    shutdown: trio.Event | None = None,
    features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
    requests: RequestTimes | None = None,
    created: Callable[[Broker], None] | None = None,
    task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a broker, and reports it as started when it is unfenced and serves.

    ``features`` are the levels that it supports (an older version of Moldau supports less). ``requests`` counts the
    requests of its listeners, ``created`` gets the broker before it starts. Without ``shutdown``, cancellation asks for
    a controlled shutdown, which takes bounded time. With it, the event does, and cancellation ends the broker at once,
    like a crash.

    Raises:
        BrokerStartError: a port is in use, the directories belong to another cluster or node, or the controllers
            refused the registration.
        ConfigError: the configuration cannot be used.
        LogDirectoriesFailedError: all log directories have failed, or one has and no controller could be informed.
    """
    broker = Broker(environment, config, features, requests)
    if created is not None:
        created(broker)
    refusals: list[BaseExceptionGroup] = []
    try:
        if shutdown is not None:
            await broker.run(shutdown, task_status)
            return
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_when_cancelled, stop)
            with trio.CancelScope(shield=True):
                await broker.run(stop, task_status)
            nursery.cancel_scope.cancel()
    except* (RegistrationRefusedError, InconsistentClusterError, LogStorageError) as group:
        refusals.append(group)  # raised here, the error would be in a group of its own before Python 3.11.4
    if refusals:
        raise BrokerStartError("; ".join(str(error) for error in leaves(refusals[0]))) from refusals[0]
