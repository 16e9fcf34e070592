"""The configuration of a broker and of its topics while metadata changes it (KIP-226).

What the controller accepted may still not fit the file of this broker. A value that cannot be used is left out alone:
of the broker, what its file says applies; of a topic, what it had last, or what the file says if it had nothing yet.
Each is logged once, with key and reason. Nothing here raises: an error in the settings of one topic must not end a
broker, which would then end again at every start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.config import topic_defaults, usable_topic_config, with_dynamic
from moldau_broker.log.config import LogConfig
from moldau_broker.server.replica_manager import TopicSettings
from moldau_quorum.image import RESOURCE_BROKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.runtime.config import Config, Value
    from moldau.runtime.log import EventLogger
    from moldau_quorum.image import MetadataImage


class DynamicConfig:
    """``config`` is the file of the broker with the values of metadata on top."""

    def __init__(self, static: Config, broker_id: int, logger: EventLogger) -> None:
        self._static = static
        self._layers = ("", str(broker_id))  # resources of metadata, the later one on top
        self._logger = logger
        self._topic_fallback = topic_defaults(static)
        self._topic_values: dict[str, dict[str, Value]] = {}  # as they were taken over last, where they differ from it
        self._topic_reasons: dict[str, dict[str, str]] = {}  # what is logged already
        self.config = static
        self.left_out: dict[tuple[str, str], str] = {}
        """Why dynamic values of the broker do not apply, by resource name (empty: of all brokers) and key."""

    def follow(self, image: MetadataImage) -> Config:
        """Takes over the dynamic values of the broker; returns what is in force now."""
        config = self._static
        left_out: dict[tuple[str, str], str] = {}
        for layer in self._layers:
            config, reasons = with_dynamic(config, image.config(RESOURCE_BROKER, layer))
            left_out.update({(layer, key): reason for key, reason in reasons.items()})
        for (layer, key), reason in left_out.items():
            if self.left_out.get((layer, key)) != reason:
                self._logger.error("dynamic-config-left-out", key=key, of=layer or "all brokers", reason=reason)
        self.config, self.left_out = config, left_out
        return config

    def topic_settings(self, topic: str, overrides: Mapping[str, str]) -> TopicSettings:
        """The settings of a topic with ``overrides``."""
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
        return TopicSettings(
            log=LogConfig.from_config(config),
            min_insync_replicas=config.get_int("min.insync.replicas"),
            leader_throttled=config.get_list("leader.replication.throttled.replicas"),
            follower_throttled=config.get_list("follower.replication.throttled.replicas"),
        )

    def forget(self, topics: Iterable[str]) -> None:
        """The topics are gone."""
        for topic in topics:
            self._topic_values.pop(topic, None)
            self._topic_reasons.pop(topic, None)
