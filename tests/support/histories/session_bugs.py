"""Planted bugs of fetch sessions that short histories of one fetcher and a broker find."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau.consumer.core.fetch_session import INITIAL_EPOCH
from moldau.consumer.core.fetch_session import FetchSession as ConsumerSession
from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.fetch_session import (
    FetchPartition,
    FetchSession,
    FetchSessionCache,
    PartitionKey,
    SessionIndex,
)
from moldau_broker.replication.follower import FollowerFetcher

if TYPE_CHECKING:
    from moldau_broker.log.values import TopicPartition
    from moldau_jepsen.planted_bug import Patch


def news_of_former_epoch_not_repeated() -> list[Patch]:
    """The broker does not repeat a high watermark to a follower whose leader epoch has changed."""

    def update(self: FetchPartition, other: FetchPartition) -> None:
        self.agreed_epoch = -1
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset

    return [(FetchPartition, "update", update)]


def refusal_counts_as_answer() -> list[Patch]:
    """After a lost answer the consumer goes on with its session."""

    def lost(self: ConsumerSession, code: ErrorCode = ErrorCode.NONE) -> None:
        if code is ErrorCode.NONE:
            self.epoch += 1
            return
        self.session_id, self.epoch = 0, INITIAL_EPOCH

    return [(ConsumerSession, "lost", lost)]


def dropped_partition_fetched_on() -> list[Patch]:
    """A partition that the follower does not follow any more stays in the session."""

    def remove(self: FollowerFetcher, key: TopicPartition) -> None:
        followed = self._partitions.pop(key, None)
        if followed is not None:
            del self._by_id[followed.wire_key]
            self._count(followed, -1)

    return [(FollowerFetcher, "remove", remove)]


def recreated_topic_keeps_entry() -> list[Patch]:
    """The consumer does not forget the partition of a deleted topic whose name it still wants."""
    original = ConsumerSession.next_request

    def next_request(self, wanted, *, by_topic_id):  # type: ignore[no-untyped-def]
        request = original(self, wanted, by_topic_id=by_topic_id)
        forgotten = {each: topic_id for each, topic_id in request.forgotten.items() if each not in wanted}
        return dataclasses.replace(request, forgotten=forgotten)

    return [(ConsumerSession, "next_request", next_request)]


def evicted_session_still_counts() -> list[Patch]:
    """The partitions of an evicted session still count for the bound of the cache."""

    def remove(self: FetchSessionCache, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    return [(FetchSessionCache, "_remove", remove)]


def lower_offset_ignored() -> list[Patch]:
    """The broker keeps the higher of two fetch offsets of a partition that was added again."""
    original = FetchPartition.update

    def update(self: FetchPartition, other: FetchPartition) -> None:
        offset = self.fetch_offset
        original(self, other)
        self.fetch_offset = max(offset, other.fetch_offset)

    return [(FetchPartition, "update", update)]


def change_leaves_partition_at_rest() -> list[Patch]:
    """A partition that changes does not become due in the sessions that name it."""

    def changed(self: SessionIndex, by_id: PartitionKey, by_name: PartitionKey) -> tuple[FetchSession, ...]:
        return (*self._sessions.get(by_id, ()), *self._sessions.get(by_name, ()))

    return [(SessionIndex, "changed", changed)]


def named_partition_stays_at_rest() -> list[Patch]:
    """A partition that a request names again does not become due."""
    original = FetchSessionCache.open

    def opened(self, session_id, epoch, partitions, forgotten, **given):  # type: ignore[no-untyped-def]
        session = self._sessions.get(session_id)
        due = {} if session is None else dict(session.due)
        known = {} if session is None else dict(session.partitions)
        context = original(self, session_id, epoch, partitions, forgotten, **given)
        if session is None or not context.incremental:
            return context
        for key in known:
            if key not in due:
                session.due.pop(key, None)
        return dataclasses.replace(context, partitions=session.due_partitions())

    return [(FetchSessionCache, "open", opened)]


def ended_session_stays_in_index() -> list[Patch]:
    """The index keeps a session that has ended."""

    def remove(self: FetchSessionCache, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)

    return [(FetchSessionCache, "_remove", remove)]
