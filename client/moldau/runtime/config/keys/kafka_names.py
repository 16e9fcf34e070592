"""Names of the configuration keys that Kafka 4's brokers and controllers know and this version does not serve.

They are facts about Kafka, up to its version 4.4, and no declarations: a file or a tool that sets one of them works,
the value is kept as text, and a warning says that it has no effect. A key leaves this table when another
module of this folder declares it. Keys that Kafka 4 removed (``zookeeper.connect`` ...) are not among them.
"""

from __future__ import annotations

from typing import Final

from moldau.runtime.config.declaration import ConfigKey, ConfigType, DynamicScope

_READ_ONLY: Final = """
alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds
broker.id
client.quota.callback.class
controlled.shutdown.max.retries
controlled.shutdown.retry.backoff.ms
controller.performance.always.log.threshold.ms
controller.performance.sample.period.ms
controller.quorum.append.linger.ms
controller.quorum.auto.join.enable
controller.quorum.election.backoff.max.ms
controller.quorum.fetch.max.bytes
controller.quorum.fetch.snapshot.max.bytes
controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms
controller.socket.timeout.ms
create.topic.policy.class.name
delete.records.purgatory.purge.interval.requests
early.start.listeners
group.coordinator.append.linger.ms
group.coordinator.background.threads
group.coordinator.threads
group.share.enable
group.share.initialize.retry.interval.ms
group.share.max.groups
group.share.persister.class.name
group.streams.assignors
group.streams.rack.aware.assignment.tags
group.streams.topology.description.plugin.class
kafka.metrics.polling.interval.secs
kafka.metrics.reporters
metadata.log.max.snapshot.interval.ms
metadata.log.segment.bytes
metadata.log.segment.ms
metadata.max.idle.interval.ms
metadata.max.retention.bytes
metadata.max.retention.ms
metrics.num.samples
metrics.recording.level
metrics.sample.window.ms
num.replica.alter.log.dirs.threads
offsets.topic.compression.codec
queued.max.requests
remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds
remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds
remote.log.manager.thread.pool.size
remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name
remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix
remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks
remote.log.storage.manager.class.name
remote.log.storage.manager.class.path
remote.log.storage.manager.impl.prefix
replica.socket.receive.buffer.bytes
replication.quota.window.num
replication.quota.window.size.seconds
sasl.client.callback.handler.class
sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms
sasl.login.retry.backoff.ms
sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
sasl.oauthbearer.jwt.retriever.class
sasl.oauthbearer.jwt.validator.class
security.providers
share.coordinator.append.linger.ms
share.coordinator.state.topic.compression.codec
share.coordinator.threads
share.fetch.max.fetch.records
share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms
transaction.two.phase.commit.enable
unclean.leader.election.interval.ms
unstable.api.versions.enable
unstable.feature.versions.enable
"""

_PER_BROKER: Final = """
principal.builder.class
sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor
sasl.login.callback.handler.class
sasl.login.class
sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter
sasl.server.callback.handler.class
ssl.engine.factory.class
ssl.keymanager.algorithm
ssl.provider
ssl.secure.random.implementation
ssl.trustmanager.algorithm
"""

_CLUSTER_WIDE: Final = """
follower.fetch.last.tiered.offset.enable
group.consumer.assignor.offload.enable
group.coordinator.cached.buffer.max.bytes
group.share.assignor.offload.enable
group.streams.assignor.offload.enable
log.remote.copy.lag.bytes
log.remote.copy.lag.ms
max.decompressed.message.bytes
metric.reporters
num.replica.fetchers
remote.log.manager.follower.thread.pool.size
share.coordinator.cached.buffer.max.bytes
ssl.allow.dn.changes
ssl.allow.san.changes
"""

_SECRETS: Final = (".password", ".passphrase", ".secret", ".secret.key")
"""Ends of the names of keys whose values are never shown."""

KAFKA_PREFIXES: Final = ("rsm.config.", "rlmm.config.")
"""Prefixes of keys for the plugins of Kafka's tiered storage."""


_OF_METADATA: Final = "the object store itself says which remote segments exist; no topic holds that"
_OF_PLUGINS: Final = (
    "remote.log.storage.url and remote.log.storage.s3.* choose the object store, and no class is loaded"
)
_OF_WINDOWS: Final = "the rate is not counted in windows: the next {} waits until the average is within the rate"
UNSERVED_REASONS: Final = {
    "follower.fetch.last.tiered.offset.enable": "a new replica starts behind the remote segment that its leader's "
    "local log follows",
    "remote.log.manager.copy.quota.window.num": _OF_WINDOWS.format("copy"),
    "remote.log.manager.copy.quota.window.size.seconds": _OF_WINDOWS.format("copy"),
    "remote.log.manager.fetch.quota.window.num": _OF_WINDOWS.format("read"),
    "remote.log.manager.fetch.quota.window.size.seconds": _OF_WINDOWS.format("read"),
    "remote.log.manager.follower.thread.pool.size": "followers have no threads; their listings count in "
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.thread.pool.size": "set remote.log.manager.copier.thread.pool.size and "
    "remote.log.manager.expiration.thread.pool.size instead",
    "remote.log.metadata.custom.metadata.max.bytes": _OF_METADATA,
    "remote.log.metadata.manager.class.name": _OF_METADATA,
    "remote.log.metadata.manager.class.path": _OF_METADATA,
    "remote.log.metadata.manager.impl.prefix": _OF_METADATA,
    "remote.log.metadata.manager.listener.name": _OF_METADATA,
    "remote.log.reader.max.pending.tasks": "no read waits: beyond remote.log.reader.threads a consumer gets an empty "
    "answer and asks again",
    "remote.log.storage.manager.class.name": _OF_PLUGINS,
    "remote.log.storage.manager.class.path": _OF_PLUGINS,
    "remote.log.storage.manager.impl.prefix": _OF_PLUGINS,
    "rlmm.config.": _OF_METADATA,
    "rsm.config.": _OF_PLUGINS,
}
"""Why keys of tiered storage have no effect, and which keys have; by name, or by prefix with a dot at its end."""


def unserved_reason(name: str) -> str | None:
    """Returns why a key of Kafka has no effect here; None if nothing more is to be said."""
    prefix = next((prefix for prefix in KAFKA_PREFIXES if name.startswith(prefix)), name)
    return UNSERVED_REASONS.get(prefix)


def unserved_key(name: str, dynamic: DynamicScope = DynamicScope.READ_ONLY) -> ConfigKey:
    """Declares a key whose value is kept as it is given."""
    reason = unserved_reason(name)
    return ConfigKey(
        name=name,
        type=ConfigType.PASSWORD if name.endswith(_SECRETS) else ConfigType.STRING,
        default=None,
        doc=f"A key of Kafka that this version does not serve{'' if reason is None else f': {reason}'}.",
        group="Not served",
        dynamic=dynamic,
        has_effect=False,
    )


KAFKA_KEYS: Final = tuple(
    sorted(
        (
            *(unserved_key(name) for name in _READ_ONLY.split()),
            *(unserved_key(name, DynamicScope.PER_BROKER) for name in _PER_BROKER.split()),
            *(unserved_key(name, DynamicScope.CLUSTER_WIDE) for name in _CLUSTER_WIDE.split()),
        ),
        key=lambda key: key.name,
    )
)
