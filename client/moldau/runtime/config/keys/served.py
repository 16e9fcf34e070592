"""Which declared keys this version does not serve yet. Keys leave these lists when the code that reads them arrives.

Declaring them anyway keeps their names, types and defaults in one place and files written for Kafka readable. All of
them merely tune, so they are accepted and documented as having no effect.
"""

from __future__ import annotations

WITHOUT_EFFECT = frozenset(
    {
        "controller.quorum.append.linger.ms",
        "controller.quorum.election.backoff.max.ms",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "group.coordinator.append.linger.ms",
        "log.initial.task.delay.ms",
        "max.request.partition.size.limit",
        "metadata.log.max.snapshot.interval.ms",
        "metadata.log.segment.bytes",
        "metadata.max.idle.interval.ms",
        "metadata.max.retention.bytes",
        "metadata.max.retention.ms",
        "num.replica.fetchers",
        "offsets.topic.compression.codec",
        "producer.id.expiration.check.interval.ms",
        "queued.max.requests",
        "replica.socket.receive.buffer.bytes",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "server.max.startup.time.ms",
    }
)
"""Keys of brokers that are accepted and change nothing."""
