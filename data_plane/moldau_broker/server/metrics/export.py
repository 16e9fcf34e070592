"""Exports the statistics of a broker under Kafka's names, in the form of its JMX exporter's rules (lower case).

Values are read when they are asked for. A scrape looks once at every local replica and every topic. Topics and
partitions have series of their own up to ``TOPICS_MAX`` and ``PARTITIONS_MAX``, in the order of their names, so that a
scrape stays bounded; ``moldau_series_left_out`` says how many have none. Sums cover all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_broker.server.metrics.clients import register_client_metrics
from moldau_broker.server.metrics.groups import register_groups
from moldau_broker.server.metrics.quotas import register_quotas
from moldau_broker.server.metrics.replicas import replica_statistics
from moldau_broker.server.metrics.sessions import register_fetch_sessions, register_shares, register_transactions

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.lifecycle.broker import Broker

TOPICS_MAX: Final = 1_000
PARTITIONS_MAX: Final = 1_000
_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_PURGATORY: Final = "kafka_server_delayedoperationpurgatory_"
_SOCKETS: Final = "kafka_server_socketservermetrics_"
_TRAFFIC: Final = {
    "messages_in": ("messagesin_total", "Records appended as leader."),
    "bytes_in": ("bytesin_total", "Bytes appended as leader."),
    "bytes_out": ("bytesout_total", "Bytes sent to consumers."),
    "replication_bytes_in": ("replicationbytesin_total", "Bytes appended as follower."),
    "replication_bytes_out": ("replicationbytesout_total", "Bytes sent to followers."),
    "failed_produce": ("failedproducerequests_total", "Batches of Produce requests that were refused."),
}


def register_metrics(registry: Registry, broker: Broker) -> None:
    """Adds the metrics of a started broker to the registry of its process."""
    _register_traffic(registry, broker)
    _register_replicas(registry, broker)
    _register_purgatories(registry, broker)
    _register_listeners(registry, broker)
    _register_logs(registry, broker)
    register_groups(registry, broker)
    register_quotas(registry, broker)
    register_fetch_sessions(registry, broker)
    register_shares(registry, broker)
    register_transactions(registry, broker)
    if broker.context.remote_log is not None:
        from moldau_broker.server.metrics.remote_log import register_remote_log

        register_remote_log(registry, broker, broker.context.remote_log, TOPICS_MAX)
    if broker.context.client_metrics is not None:
        register_client_metrics(registry, broker.context.client_metrics)


def _register_traffic(registry: Registry, broker: Broker) -> None:
    families = {field: registry.counter(_TOPIC + name, text, "topic") for field, (name, text) in _TRAFFIC.items()}
    left_out = registry.gauge(
        "moldau_series_left_out", "Topics and partitions without series of their own.", "kind"
    ).labels("topic")

    def update() -> None:
        traffic = broker.context.replicas.traffic
        topics = sorted(traffic.topics)
        left_out.set(max(0, len(topics) - TOPICS_MAX))
        rows = [("", traffic.total()), *((topic, traffic.topics[topic]) for topic in topics[:TOPICS_MAX])]
        for field, family in families.items():
            family.clear()
            for topic, counts in rows:
                family.labels(topic).value = getattr(counts, field)

    registry.on_expose(update)


def _register_replicas(registry: Registry, broker: Broker) -> None:
    gauges = {
        field: registry.gauge(name, text).labels()
        for field, name, text in (
            ("partitions", _REPLICAS + "partitioncount", "Partitions with a replica here."),
            ("leaders", _REPLICAS + "leadercount", "Partitions that this broker leads."),
            ("under_replicated", _REPLICAS + "underreplicatedpartitions", "Led partitions with replicas out of sync."),
            ("under_min_isr", _REPLICAS + "underminisrpartitioncount", "Led partitions that refuse acks=all."),
            ("at_min_isr", _REPLICAS + "atminisrpartitioncount", "Led partitions that no replica may leave."),
            ("reassigning", _REPLICAS + "reassigningpartitions", "Led partitions that move to other replicas."),
            ("producer_ids", _REPLICAS + "produceridcount", "Producer ids that the logs remember."),
            (
                "late_transactions",
                _REPLICAS + "partitionswithlatetransactionscount",
                "Led partitions with a transaction open for five minutes longer than transaction.max.timeout.ms.",
            ),
            ("lag_max", "moldau_replica_lag_max", "The most records that a follower of a led partition lacks."),
        )
    }
    offline = registry.gauge(_REPLICAS + "offlinereplicacount", "Replicas in failed log directories.").labels()
    changes = {
        field: registry.counter(_REPLICAS + name, text).labels()
        for field, name, text in (
            ("shrinks", "isrshrinks_total", "Replicas' removals from ISRs that the controller accepted."),
            ("expands", "isrexpands_total", "Replicas' returns to ISRs that the controller accepted."),
            ("failed", "failedisrupdates_total", "Changes of ISRs that were refused or not answered."),
        )
    }
    fenced = registry.gauge("moldau_broker_fenced", "1 while the controller has this broker fenced.").labels()

    def update() -> None:
        statistics = replica_statistics(
            broker.context.replicas.partitions.values(),
            broker.context.environment.clock.wall_ms(),
            broker.context.config.get_int("transaction.max.timeout.ms"),
        )
        for field, gauge in gauges.items():
            gauge.set(getattr(statistics, field))
        offline.set(len(broker.context.directories.offline))
        isr = broker.isr_statistics()
        for field, counter in changes.items():
            counter.value = getattr(isr, field)
        fenced.set(not broker.is_unfenced)

    registry.on_expose(update)


def _register_listeners(registry: Registry, broker: Broker) -> None:
    open_now = registry.gauge(_SOCKETS + "connection_count", "Open connections.", "listener")
    counters = {
        field: registry.counter(name, text, "listener")
        for field, name, text in (
            ("accepted", _SOCKETS + "connection_creation_total", "Accepted connections."),
            ("refused", "moldau_connections_refused_total", "Connections refused because of a limit."),
            (
                "throttled",
                "moldau_connections_throttled_total",
                "Connections closed because their address opens too many.",
            ),
            (
                "closed_for_cause",
                "moldau_connections_closed_for_cause_total",
                "Connections closed after an error.",
            ),
        )
    }
    buffered = registry.gauge("moldau_request_buffer_bytes", "Bytes of received requests and waiting answers.").labels()

    def update() -> None:
        for name, server in broker.listening.servers():
            statistics = server.statistics()
            open_now.labels(name).set(statistics.connections)
            for field, family in counters.items():
                family.labels(name).value = getattr(statistics, field)
            buffered.set(statistics.buffered_bytes)  # one budget for all listeners

    registry.on_expose(update)


def register_state(registry: Registry, broker: Broker) -> None:
    """Adds the state of a broker, which has one before it has started."""
    registry.gauge(
        "kafka_server_kafkaserver_brokerstate",
        "1 starts, 2 recovers its logs, 3 runs, 6 gives its leaderships away, 7 shuts down.",
    ).labels().read_from(lambda: float(broker.state))


def _register_purgatories(registry: Registry, broker: Broker) -> None:
    operations = registry.gauge(_PURGATORY + "numdelayedoperations", "Requests that wait.", "delayedOperation")
    watches = registry.gauge(
        _PURGATORY + "purgatorysize", "Waits: each request counts once for each thing it waits for.", "delayedOperation"
    )

    def update() -> None:
        waits = broker.context.replicas.waits
        produces = (waits.produces.purgatory, waits.settles.purgatory)
        for name, found in (("Produce", produces), ("Fetch", (waits.fetches.purgatory,))):
            operations.labels(name).set(sum(map(len, found)))
            watches.labels(name).set(sum(purgatory.watches_total() for purgatory in found))

    registry.on_expose(update)


def _register_logs(registry: Registry, broker: Broker) -> None:
    registry.histogram(
        "kafka_log_logflushstats_logflushrateandtimems",
        "Milliseconds until the records of a log were durable (fsync), with the wait for a thread.",
    ).attach(broker.flush_times)
    directories = registry.gauge("kafka_log_logmanager_offlinelogdirectorycount", "Failed log directories.").labels()
    cordoned_count = registry.gauge(
        "kafka_log_logmanager_cordonedlogdirectorycount", "Cordoned log directories."
    ).labels()
    cordoned = registry.gauge(
        "kafka_log_logmanager_logdirectorycordoned", "1 if the log directory is cordoned.", "logDirectory"
    )
    usable = registry.gauge(
        "moldau_log_directory_usable_bytes",
        "Bytes that the disk of a log directory can still take.",
        "directory",
    )
    sizes = registry.gauge("moldau_log_directory_total_bytes", "Size of the disk of a log directory.", "directory")
    ends = registry.gauge("kafka_log_log_logendoffset", "Log end offset (exclusive).", "topic", "partition")
    starts = registry.gauge("kafka_log_log_logstartoffset", "First offset of the log.", "topic", "partition")
    left_out = registry.gauge(
        "moldau_series_left_out", "Topics and partitions without series of their own.", "kind"
    ).labels("partition")

    def update() -> None:
        logs = broker.context.logs
        directories.set(sum(not each.online for each in logs.directories))
        cordoned_count.set(sum(each.path in logs.cordons for each in logs.directories))
        for each in logs.directories:
            cordoned.labels(each.path).set(int(each.path in logs.cordons))
        usable.clear()
        sizes.clear()
        for path, space in broker.context.logs.room.spaces.items():
            usable.labels(path).set(space.usable_bytes)
            sizes.labels(path).set(space.total_bytes)
        partitions = broker.context.replicas.partitions
        left_out.set(max(0, len(partitions) - PARTITIONS_MAX))
        ends.clear()
        starts.clear()
        for key in sorted(partitions)[:PARTITIONS_MAX]:
            log = partitions[key].log
            ends.labels(*key).set(log.log_end_offset)
            starts.labels(*key).set(log.log_start_offset)

    registry.on_expose(update)
