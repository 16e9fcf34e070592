"""The calls of a share consumer that do not wait, for the faces that live in another thread than their client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.share.core.values import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.blocking.portal import Portal
    from moldau.cluster.metadata import TopicPartition
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.share import ShareConsumer, ShareRecord
    from moldau.share.core.statistics import ShareConsumerStatistics


class ShareCalls:
    """Passes calls to the share consumer in the trio thread."""

    _consumer: ShareConsumer[Any, Any]
    _portal: Portal[Any]
    _is_closed: bool

    def _closed_elsewhere(self) -> bool:
        """Returns whether another thread or task has closed the client, perhaps during the last call."""
        return self._is_closed

    def _begin_close(self) -> None:
        """Ends iteration, also that of another thread or task.

        Raises:
            RuntimeError: the caller cannot wait for the end of the client's thread.
        """
        self._portal.check_closer()
        self._is_closed = True

    def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group for these topics; replaces an earlier subscription.

        Raises:
            InvalidTopicError: a name is not a valid topic name.
            TypeError: ``topics`` is a str instead of a list.
            ValueError: there are no topics.
        """
        self._portal.call_sync(self._consumer.subscribe, topics)

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer is subscribed to."""
        return self._portal.call_sync(lambda: self._consumer.subscription)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions from which the coordinator lets this member fetch."""
        return self._portal.call_sync(lambda: self._consumer.assignment)

    @property
    def member_id(self) -> str:
        """The id of this member, which it keeps for life."""
        return self._portal.call_sync(lambda: self._consumer.member_id)

    @property
    def acquisition_lock_timeout_ms(self) -> int | None:
        """How long records stay with this member, from the last fetch; None before the first."""
        return self._portal.call_sync(lambda: self._consumer.acquisition_lock_timeout_ms)

    def statistics(self) -> ShareConsumerStatistics:
        """Returns the consumer's numbers, under the names of Kafka's metrics of share consumers."""
        return self._portal.call_sync(self._consumer.statistics)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._portal.call_sync(lambda: self._consumer.application_metrics)

    def acknowledge(self, record: ShareRecord[Any, Any], kind: AcknowledgeType | int = AcknowledgeType.ACCEPT) -> None:
        """Notes the outcome of a record that a poll has returned; the next poll or ``commit`` sends it.

        Raises:
            RuntimeError: the mode is ``implicit``, or the record is not held.
        """
        self._portal.call_sync(self._consumer.acknowledge, record, kind)

    def acknowledge_offset(
        self, partition: tuple[str, int], offset: int, kind: AcknowledgeType | int = AcknowledgeType.ACCEPT
    ) -> None:
        """Works like ``acknowledge``, for a record that could not be deserialized too."""
        self._portal.call_sync(self._consumer.acknowledge_offset, partition, offset, kind)

    def commit_nowait(self) -> None:
        """Begins to send the acknowledgements; ``on_acknowledged`` reports the outcome."""
        self._portal.call_sync(self._consumer.commit_nowait)
