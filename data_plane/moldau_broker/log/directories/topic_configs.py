"""The settings of topics, as the logs of a broker use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.directories.log_table import LogTable
    from moldau_broker.log.values import TopicPartition


class TopicConfigs:
    """The broker's default settings and those of single topics; changes are passed on to the loaded logs."""

    def __init__(self, table: LogTable, default: LogConfig) -> None:
        self._table = table
        self._default = default
        self._by_topic: dict[str, LogConfig] = {}

    def of(self, topic: str) -> LogConfig:
        """Returns the settings of a topic's logs."""
        return self._by_topic.get(topic, self._default)

    def replace(self, default: LogConfig, by_topic: Mapping[str, LogConfig]) -> None:
        """Replaces all settings before the first log is loaded."""
        self._default = default
        self._by_topic = dict(by_topic)

    def update(self, topic: str, config: LogConfig) -> None:
        """Changes the settings of a topic, also for its loaded logs."""
        for _ in self.update_steps(topic, config):
            pass

    def update_steps(self, topic: str, config: LogConfig) -> Iterator[TopicPartition]:
        """Changes the settings of a topic, and yields each partition whose loaded logs have them now.

        Logs may come, go and move between two steps: a log that comes has the new settings.
        """
        self._by_topic[topic] = config
        both = (self._table.current, self._table.future)
        for key in {log.topic_partition: None for logs in both for log in logs.of_topic(topic)}:
            for logs in both:
                log = logs.get(key)
                if log is not None:
                    log.update_config(config)
            yield key

    def update_for(self, topic_partition: TopicPartition, config: LogConfig) -> None:
        """Changes the settings of a topic for one log that was just claimed or created.

        The topic's other logs are visited only if their settings differ, so that creating a thousand logs takes linear
        time.
        """
        topic = topic_partition.topic
        if self._by_topic.get(topic) != config:
            self.update(topic, config)
            return
        for logs in (self._table.current, self._table.future):
            log = logs.get(topic_partition)
            if log is not None:
                log.update_config(config)

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets the settings of deleted topics; logs that are still to be deleted keep theirs."""
        for topic in topics:
            self._by_topic.pop(topic, None)
