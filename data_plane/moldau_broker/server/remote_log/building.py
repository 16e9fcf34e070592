"""Builds the tiered storage of a broker, whose modules a broker without it does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.values import BrokerId
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.values import Work
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.remote_log.manager import RemoteLogManager
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager


def remote_log_manager(
    environment: Environment,
    broker_id: BrokerId,
    cluster_id: str,
    metadata: MetadataCache,
    logs: LogManager,
    replicas: ReplicaManager,
    *,
    perform: Callable[[Work], Awaitable[None]],
    config: Callable[[], Config],
    caught_up_ms: Callable[[], float],
) -> RemoteLogManager | None:
    """Returns the remote log manager of a broker, connected with its replicas.

    None without ``remote.log.storage.system.enable``. ``perform`` runs work in a thread; ``config`` returns the present
    configuration of the broker; ``caught_up_ms`` is that of ``BrokerSession``.

    Raises:
        ConfigError: the object store cannot be opened with this configuration.
    """
    static = config()
    if not static.get_bool("remote.log.storage.system.enable"):
        replicas.leadership_listeners.append(DisabledWarning(broker_id))
        return None
    from moldau_broker.remote_log.storage.opening import open_object_store
    from moldau_broker.server.remote_log.cluster_view import ClusterView
    from moldau_broker.server.remote_log.log_starts import LogStarts
    from moldau_broker.server.remote_log.manager import RemoteLogManager
    from moldau_broker.server.remote_log.settings import RemoteLogSettings

    view = ClusterView(
        clock=environment.clock,
        broker_id=broker_id,
        cluster_id=cluster_id,
        image=lambda: metadata.image,
        caught_up_ms=caught_up_ms,
        before_deletions=lambda: replicas.log_changes.before_deletions(),
    )
    manager = RemoteLogManager(
        environment,
        RemoteLogSettings.from_config(static),
        view,
        open_object_store(environment, static),
        config=config,
        log_start_moved=replicas.waits.note_change,
        settle_start=LogStarts(logs, perform).settle,
    )
    replicas.leadership_listeners.append(manager.leadership_changed)
    replicas.config_listener = manager.configured
    return manager


class DisabledWarning:
    """Warns once of each tiered topic that a broker without tiered storage has a replica of.

    As a leader such a broker copies nothing, deletes nothing from its disk and cannot serve remote records; as a
    follower it cannot start behind them.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self._logger = EventLogger("moldau.broker.remote-log", node=broker_id)
        self._topics: dict[str, None] = {}

    def __call__(self, partition: Partition, leads: bool) -> None:
        """See ``LeadershipListener``."""
        topic = partition.key.topic
        if partition.error is ErrorCode.NONE and partition.log.is_remote and topic not in self._topics:
            self._topics[topic] = None
            self._logger.error(
                "tiered-storage-disabled",
                topic=topic,
                advice="set remote.log.storage.system.enable and remote.log.storage.url as on the other brokers",
            )
