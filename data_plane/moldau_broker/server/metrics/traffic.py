"""Counts records and bytes by topic. Pure.

Each local replica holds the counts of its topic, so that counting costs no lookup. When the last replica of a topic
leaves the broker, its counts move into those of the past: totals of the broker only grow, and memory is bounded by the
number of topics here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Traffic:
    """Counts since the start of the process; Kafka's ``BrokerTopicMetrics``."""

    messages_in: int = 0
    """Records appended as leader."""
    bytes_in: int = 0
    """Bytes appended as leader, compressed as they are in the log."""
    bytes_out: int = 0
    """Bytes sent to consumers."""
    replication_bytes_in: int = 0
    """Bytes appended as follower."""
    replication_bytes_out: int = 0
    """Bytes sent to followers."""
    failed_produce: int = 0
    """Batches of Produce requests that were refused."""
    remote_copy_bytes: int = 0
    """Bytes of segments that were copied to the object store."""
    remote_copy_requests: int = 0
    """Copies of segments that were begun."""
    remote_copy_errors: int = 0
    """Copies of segments that failed."""
    remote_fetch_bytes: int = 0
    """Bytes of records that fetches read from the object store, or from the cache of it."""
    remote_fetch_requests: int = 0
    """Reads of remote records that fetches began."""
    remote_fetch_errors: int = 0
    """Reads of remote records that failed."""
    remote_start_requests: int = 0
    """Attempts to start a follower's log behind remote segments."""
    remote_start_errors: int = 0
    """Attempts that failed; they are repeated."""
    remote_delete_requests: int = 0
    """Segments whose deletion from the object store was begun."""
    remote_delete_errors: int = 0
    """Deletions from the object store that failed."""

    def add(self, other: Traffic) -> None:
        """Adds the counts of ``other``."""
        for name in FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))


FIELDS = tuple(field.name for field in fields(Traffic))


class BrokerTraffic:
    """The counts of all topics. Invariant: a topic has an entry while a local replica of it exists."""

    __slots__ = ("_past", "_users", "topics")

    def __init__(self) -> None:
        """Starts with counters at zero."""
        self.topics: dict[str, Traffic] = {}
        self._users: dict[str, int] = {}
        self._past = Traffic()

    def join(self, topic: str) -> Traffic:
        """Returns the counts of a topic for one more replica."""
        self._users[topic] = self._users.get(topic, 0) + 1
        return self.topics.setdefault(topic, Traffic())

    def leave(self, topic: str) -> None:
        """Gives back what one ``join`` returned."""
        users = self._users.get(topic, 0)
        assert users > 0, f"no replica of {topic} counts"
        if users > 1:
            self._users[topic] = users - 1
            return
        del self._users[topic]
        self._past.add(self.topics.pop(topic))

    def total(self) -> Traffic:
        """Returns the counts of all topics, deleted ones included."""
        total = Traffic()
        total.add(self._past)
        for traffic in self.topics.values():
            total.add(traffic)
        return total
