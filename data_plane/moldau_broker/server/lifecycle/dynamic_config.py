"""The dynamic configuration of a broker and of its topics (KIP-226).

A value that the controller accepted may still be unusable with the file of this broker. Only that value is left out: a
broker then uses the value of its file; a topic its last value, or that of the file if it had none. Each is logged once,
with key and reason. No function here raises: a wrong setting of one topic must not end a broker, which would then end
again at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.runtime.config import topic_defaults, unserved_keys, unserved_texts, usable_topic_config, with_dynamic
from moldau_broker.log.config import LogConfig
from moldau_broker.server.replicas.collaborators import TopicSettings
from moldau_quorum.controller.context import MIN_INSYNC_REPLICAS, min_insync_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.runtime.config import Config, Value
    from moldau.runtime.telemetry.log import EventLogger
    from moldau.values import BrokerId
    from moldau_broker.server.replicas.replica_manager import ReplicaManager
    from moldau_quorum.metadata.image import MetadataImage


def set_throttles(replicas: ReplicaManager, config: Config) -> None:
    """Sets the rates of replication that ``config`` has, in bytes per second."""
    replicas.set_throttles(
        float(config.get_int("leader.replication.throttled.rate")),
        float(config.get_int("follower.replication.throttled.rate")),
    )


class _Kept(NamedTuple):
    """The settings of a topic, and the values that they follow from."""

    broker: Config
    overrides: Mapping[str, str]
    settings: TopicSettings


class DynamicConfig:
    """The configuration of a broker: the values of its file, overridden by those of the metadata."""

    def __init__(self, static: Config, broker_id: BrokerId, logger: EventLogger) -> None:
        self._static = static
        self._broker_id = broker_id
        self._logger = logger
        self._topic_fallback = topic_defaults(static)
        self._topic_values: dict[str, dict[str, Value]] = {}  # the last values, if they differ from the fallback
        self._topic_reasons: dict[str, dict[str, str]] = {}  # reasons that were logged
        self._topic_settings: dict[str, _Kept] = {}
        self._warned_minimum: tuple[int, int] | None = None  # file and metadata in the last warning
        self._warned_unserved: tuple[str, ...] = ()
        self.config = static
        self.left_out: dict[tuple[str, str], str] = {}
        """Reasons why dynamic values do not apply, by resource name (empty: all brokers) and key."""

    def follow(self, image: MetadataImage) -> Config:
        """Applies the dynamic values of the broker; returns the configuration in force."""
        config = self._static
        left_out: dict[tuple[str, str], str] = {}
        for layer, values in zip(("", str(self._broker_id)), image.dynamic_layers(self._broker_id), strict=True):
            config, reasons = with_dynamic(config, values)
            left_out.update({(layer, key): reason for key, reason in reasons.items()})
        for (layer, key), reason in left_out.items():
            if self.left_out.get((layer, key)) != reason:
                self._logger.error("dynamic-config-left-out", key=key, of=layer or "all brokers", reason=reason)
        self.config, self.left_out = config, left_out
        self._warn_of_other_minimum()
        self._warn_of_unserved()
        return config

    def _warn_of_unserved(self) -> None:
        """Warns of Kafka's keys in the metadata that have no effect here; the node warns of those in its file."""
        unserved = tuple(key for key in unserved_keys(self.config) if not self._static.is_set(key))
        if unserved and unserved != self._warned_unserved:
            for keys, reason in unserved_texts(unserved):
                self._logger.warning("keys-not-served", keys=keys, why=reason)
        self._warned_unserved = unserved

    def _warn_of_other_minimum(self) -> None:
        """Warns if metadata override the file's ``min.insync.replicas``, on which the guarantee of acks=all rests."""
        wanted, held = self._static.get_int(MIN_INSYNC_REPLICAS), self.config.get_int(MIN_INSYNC_REPLICAS)
        if not self._static.is_set(MIN_INSYNC_REPLICAS) or wanted == held:
            self._warned_minimum = None
        elif self._warned_minimum != (wanted, held):
            self._warned_minimum = (wanted, held)
            self._logger.warning(
                "min-insync-replicas-overridden", file=wanted, in_force=held, change=min_insync_command(wanted)
            )

    def topic_settings(self, topic: str, overrides: Mapping[str, str]) -> TopicSettings:
        """Returns the settings of a topic with ``overrides``.

        They are kept, because each partition of a topic asks for them when it is created.
        """
        kept = self._topic_settings.get(topic)
        if kept is not None and kept.broker is self.config and kept.overrides == overrides:
            return kept.settings
        settings, is_sound = self._parse_topic(topic, overrides)
        if is_sound:
            self._topic_settings[topic] = _Kept(self.config, dict(overrides), settings)
        else:
            self._topic_settings.pop(topic, None)
        return settings

    def _parse_topic(self, topic: str, overrides: Mapping[str, str]) -> tuple[TopicSettings, bool]:
        """Returns the settings of a topic, and whether all of its overrides can be used."""
        fallback = self._topic_values.get(topic, self._topic_fallback)
        config, reasons = usable_topic_config(self.config, overrides, fallback)
        known = self._topic_reasons.pop(topic, {})
        for key, reason in reasons.items():
            if known.get(key) != reason:
                self._logger.error("topic-config-left-out", topic=topic, key=key, reason=reason)
        if reasons:
            self._topic_reasons[topic] = reasons
        values = config.explicit()
        if values != self._topic_fallback:
            self._topic_values[topic] = values
        else:
            self._topic_values.pop(topic, None)
        settings = TopicSettings(
            log=LogConfig.from_config(config),
            min_insync_replicas=config.get_int("min.insync.replicas"),
            leader_throttled=config.get_list("leader.replication.throttled.replicas"),
            follower_throttled=config.get_list("follower.replication.throttled.replicas"),
        )
        return settings, not reasons

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets deleted topics."""
        for topic in topics:
            self._topic_values.pop(topic, None)
            self._topic_reasons.pop(topic, None)
            self._topic_settings.pop(topic, None)
