"""Exports tiered storage: copies, deletions, and what waits for them, by topic and in total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_broker.server.remote_log.remote_partition import NO_STATISTICS

if TYPE_CHECKING:
    from moldau.runtime.telemetry.metrics import Registry
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.remote_log.manager import RemoteLogManager

_TOPIC: Final = "kafka_server_brokertopicmetrics_"
_TRAFFIC: Final = {
    "remote_copy_bytes": ("remotecopybytes_total", "Bytes of segments copied to the object store."),
    "remote_copy_requests": ("remotecopyrequests_total", "Copies of segments that were begun."),
    "remote_copy_errors": ("remotecopyerrors_total", "Copies of segments that failed."),
    "remote_fetch_bytes": ("remotefetchbytes_total", "Bytes of remote records that fetches read."),
    "remote_fetch_requests": ("remotefetchrequests_total", "Reads of remote records that fetches began."),
    "remote_fetch_errors": ("remotefetcherrors_total", "Reads of remote records that failed."),
    "remote_start_requests": (
        "buildremotelogauxstaterequests_total",
        "Attempts to start logs behind remote segments.",
    ),
    "remote_start_errors": ("buildremotelogauxstateerrors_total", "Attempts that failed, and are repeated."),
    "remote_delete_requests": ("remotedeleterequests_total", "Segments whose remote deletion was begun."),
    "remote_delete_errors": ("remotedeleteerrors_total", "Remote deletions that failed."),
}
_STATES: Final = {
    "copy_lag_bytes": ("remotecopylagbytes", "Bytes of closed segments that wait to be copied."),
    "copy_lag_segments": ("remotecopylagsegments", "Closed segments that wait to be copied."),
    "delete_lag_bytes": ("remotedeletelagbytes", "Bytes of remote segments that wait to be deleted."),
    "delete_lag_segments": ("remotedeletelagsegments", "Remote segments that wait to be deleted."),
    "size_bytes": ("remotelogsizebytes", "Bytes of the records in the object store; each record counts once."),
    "segments": ("remotelogmetadatacount", "Remote segments."),
}


def register_remote_log(registry: Registry, broker: Broker, remote_log: RemoteLogManager, topics_max: int) -> None:
    """Adds tiered storage. Of more than ``topics_max`` topics, only the first get series."""
    counters = {field: registry.counter(_TOPIC + name, text, "topic") for field, (name, text) in _TRAFFIC.items()}
    gauges = {field: registry.gauge(_TOPIC + name, text, "topic") for field, (name, text) in _STATES.items()}
    damaged = registry.gauge(
        "moldau_remote_log_damaged_partitions", "Led partitions some of whose records are lost or damaged."
    ).labels()
    listings = registry.counter("moldau_remote_log_listings_total", "Listings of partitions' folders.").labels()
    failed = registry.counter("moldau_remote_log_listing_errors_total", "Listings that failed.").labels()

    def update() -> None:
        traffic, states = broker.context.replicas.traffic, remote_log.statistics()
        all_traffic, total = traffic.total(), NO_STATISTICS
        for state in states.values():
            total = total.plus(state)
        topics = sorted(states)[:topics_max]
        for field, counter in counters.items():
            counter.clear()
            counter.labels("").value = getattr(all_traffic, field)
            for topic in topics:
                if topic in traffic.topics:
                    counter.labels(topic).value = getattr(traffic.topics[topic], field)
        for field, gauge in gauges.items():
            gauge.clear()
            gauge.labels("").set(getattr(total, field))
            for topic in topics:
                gauge.labels(topic).set(getattr(states[topic], field))
        damaged.set(total.damaged)
        listings.value, failed.value = remote_log.listings, remote_log.listing_errors

    registry.on_expose(update)
    register_remote_reads(registry, broker)


def register_remote_reads(registry: Registry, broker: Broker) -> None:
    """Adds the memory and the bounds of reads of remote segments."""
    reading = broker.context.remote_reading
    if reading is None:
        return
    progress = registry.gauge("moldau_remote_reads", "Reads of remote records in progress.").labels()
    held = registry.gauge("moldau_remote_reads_held_bytes", "Bytes of these reads, and of results that wait.").labels()
    refused = registry.counter(
        "moldau_remote_reads_refused_total", "Fetches of a partition that found no room for their read."
    ).labels()
    kept = registry.gauge("moldau_remote_cache_bytes", "Bytes of remote segments in memory.", "part")
    hits = registry.counter("moldau_remote_cache_hits_total", "Pieces of remote segments found in memory.", "part")
    misses = registry.counter("moldau_remote_cache_misses_total", "Pieces that were not in memory.", "part")

    def update() -> None:
        reads = reading.reads.statistics()
        progress.set(reads.in_progress)
        held.set(reads.held_bytes)
        refused.value = reads.refused
        for part, cache in zip(("records", "indexes"), reading.reader.statistics(), strict=True):
            kept.labels(part).set(cache.size_bytes)
            hits.labels(part).value, misses.labels(part).value = cache.hits, cache.misses

    registry.on_expose(update)
