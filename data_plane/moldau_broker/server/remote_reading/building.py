"""Builds the reads of a broker from remote segments, whose modules a broker without tiered storage does not load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_broker.server.handlers.context import BrokerContext
    from moldau_broker.server.replicas.replica_fetcher import ReplicaFetchers


def connect_reads(context: BrokerContext, fetchers: ReplicaFetchers) -> None:
    """Builds the parts for a broker with tiered storage, and gives them to its other parts."""
    manager, config = context.remote_log, context.static_config
    if manager is None:
        return
    from moldau_broker.server.remote_reading.parts import RemoteReading
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.remote_reading.reads import RemoteReads
    from moldau_broker.server.replicas.leader_producers import LeaderProducers
    from moldau_broker.server.replicas.remote_start import RemoteStarts

    environment = context.environment
    reader = RemoteReader(
        environment.clock,
        environment.disk,
        manager.store,
        manager,
        context.follower.image.cluster_id,
        chunks_bytes_max=config.get_int("remote.log.read.cache.bytes"),
        parts_bytes_max=lambda: context.config.get_int("remote.log.index.file.cache.total.size.bytes"),
    )
    reads = RemoteReads(
        environment.clock,
        reader,
        reads_max=lambda: context.config.get_int("remote.log.reader.threads"),
        max_wait_ms=lambda: float(context.config.get_int("remote.fetch.max.wait.ms")),
        rate=lambda: float(context.config.get_int("remote.log.manager.fetch.max.bytes.per.second")),
    )
    context.remote_reading = RemoteReading(reader, reads)
    context.share_partitions.remote_reader, context.share_partitions.remote_reads = reader, reads
    fetchers.remote_starts = RemoteStarts(
        environment.clock,
        context.broker_id,
        context.replicas,
        reader,
        timeout_ms=float(config.get_int("replica.socket.timeout.ms")),
    )
    producers = LeaderProducers(context.broker_id, reader, manager.tasks, context.replicas.directory_failed)
    context.replicas.leadership_listeners.append(producers.leadership_changed)
