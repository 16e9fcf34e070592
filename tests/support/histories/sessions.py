"""Small fetch sessions: one fetcher, a broker that may forget, answers that may get lost, and a neighbour.

The fetcher is the consumer's core or the follower's. Whatever happened before, a request that is answered makes the
broker fetch exactly what the fetcher wants, and tells it the newest high watermark of each partition (KIP-227). The
broker looks only at the partitions that are due, as long as nothing changes that all answers depend on.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from moldau.cluster.metadata import TopicPartition
from moldau.consumer.core.fetch_session import Asked
from moldau.consumer.core.fetch_session import FetchSession as ConsumerSession
from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchedPartition
from moldau.values import LeaderEpoch, Offset
from moldau_broker.log.values import TopicPartition as LogPartition
from moldau_broker.replication.fetch_session import (
    FetchContext,
    FetchPartition,
    FetchSessionCache,
    PartitionKey,
    SessionIndex,
)
from moldau_broker.replication.follower import Followed, FollowerFetcher, FollowRequest, StepKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.histories.explorer import Action

TOPIC = uuid.UUID(int=7)
OTHER_TOPIC = uuid.UUID(int=8)
NUMBERS = (0, 1)
EVICTION_MS = 1_000
CHANGES_MAX = 4
Sent = tuple[int, int, tuple[FetchPartition, ...], tuple[PartitionKey, ...]]
"""Session id, epoch, partitions, forgotten partitions."""


class ConsumerSide:
    """The consumer's half, with positions that the application moves."""

    privileged = False

    def __init__(self) -> None:
        self.session = ConsumerSession()
        self.ids = dict.fromkeys(NUMBERS, TOPIC)
        self.offsets: dict[int, int] = {}

    def add(self, number: int, offset: int = 0) -> None:
        self.offsets[number] = offset

    def remove(self, number: int) -> None:
        del self.offsets[number]

    def advance(self, number: int) -> None:
        self.offsets[number] += 1

    def wanted(self) -> dict[PartitionKey, int]:
        return {(self.ids[number].bytes, number): offset for number, offset in self.offsets.items()}

    def request(self) -> Sent | None:
        wanted = {TopicPartition("t", n): Asked(self.ids[n], 1, at, 100) for n, at in self.offsets.items()}
        asked = self.session.next_request(wanted, by_topic_id=True)
        parts = tuple(
            FetchPartition(each.topic_id.bytes, key.partition, each.fetch_offset, each.max_bytes)
            for key, each in asked.partitions.items()
        )
        forgotten = tuple((topic_id.bytes, key.partition) for key, topic_id in asked.forgotten.items())
        return asked.session_id, asked.epoch, parts, forgotten

    def answered(self, context: FetchContext, sent_news: Mapping[PartitionKey, int]) -> None:
        del sent_news
        if context.error is ErrorCode.NONE:
            self.session.answered(context.session_id)
        else:
            self.session.lost(context.error)

    def lost(self) -> None:
        self.session.lost()

    def key(self) -> object:
        known = tuple(sorted((key.partition, asked) for key, asked in self.session._known.items()))
        return self.session.epoch, self.session.session_id, known, tuple(self.offsets.items()), tuple(self.ids.items())


class FollowerSide:
    """The follower's half: partitions are added again with each leader epoch, and may be delayed."""

    privileged = True

    def __init__(self) -> None:
        self.fetcher = FollowerFetcher(backoff_ms=0, backoff_max_ms=0)
        self.ids = dict.fromkeys(NUMBERS, TOPIC)
        self.epochs = dict.fromkeys(NUMBERS, 0)
        self.offsets: dict[int, int] = {}
        self.asked: FollowRequest | None = None

    def add(self, number: int, offset: int = 0) -> None:
        self.epochs[number] += 1
        self.offsets[number] = offset
        self.fetcher.add(
            Followed(
                LogPartition("t", number),
                self.ids[number],
                leader_epoch=LeaderEpoch(self.epochs[number]),
                fetch_offset=Offset(offset),
                last_fetched_epoch=-1,
                log_start_offset=Offset(0),
            )
        )

    def remove(self, number: int) -> None:
        del self.offsets[number]
        self.fetcher.remove(LogPartition("t", number))

    def advance(self, number: int) -> None:
        followed = self.fetcher.partition(LogPartition("t", number))
        assert followed is not None
        self.offsets[number] += 1
        self.fetcher.appended(followed, Offset(self.offsets[number]), 1, Offset(0))

    def wanted(self) -> dict[PartitionKey, int]:
        return {(self.ids[number].bytes, number): offset for number, offset in self.offsets.items()}

    def request(self) -> Sent | None:
        asked = self.asked = self.fetcher.next_request(0.0)
        if asked is None:
            return None
        parts = tuple(
            FetchPartition(each.topic_id.bytes, each.key.partition, each.fetch_offset, 100, each.leader_epoch)
            for each in asked.partitions
        )
        forgotten = tuple((each.topic_id.bytes, each.key.partition) for each in asked.forgotten)
        return asked.session_id, asked.session_epoch, parts, forgotten

    def answered(self, context: FetchContext, sent_news: Mapping[PartitionKey, int]) -> None:
        assert self.asked is not None
        answers = [
            FetchedPartition(topic_id, number, ErrorCode.NONE, high_watermark, 0, memoryview(b""))
            for (topic_id, number), high_watermark in sent_news.items()
        ]
        steps = self.fetcher.answered(context.error, context.session_id, answers, self.asked, 0.0)
        if context.error is ErrorCode.NONE:
            assert len(steps) == len(answers), "an answer about a wanted partition is dropped"
            assert all(step.kind is StepKind.ADVANCE for step in steps)

    def lost(self) -> None:
        self.fetcher.request_failed(0.0)

    def key(self) -> object:
        fetcher = self.fetcher
        known = tuple(sorted((key, each.fetch_offset) for key, each in fetcher._known.items()))
        return (
            *(fetcher._session_epoch, fetcher._session_id, known, tuple(fetcher._dirty)),
            *(tuple(self.offsets.items()), tuple(self.ids.items())),
        )


class Sessions:
    """The world."""

    def __init__(self, side: ConsumerSide | FollowerSide | None = None) -> None:
        self.side = ConsumerSide() if side is None else side
        self.side.add(0)
        self._start()
        self.basis = 0
        self.now = 0.0
        self.made = 0
        self.changes = 0
        self.high_watermarks: dict[PartitionKey, int] = {}
        self.learned: dict[PartitionKey, int] = {}
        """The high watermarks that the fetcher knows."""

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = [("fetch", "answered"), ("fetch", "request lost"), ("fetch", "answer lost")]
        if self.changes >= CHANGES_MAX:
            return found
        if self.side.privileged:
            found += [("fetch", "answered", number) for number in self.side.offsets]
        for number in NUMBERS:
            if number in self.side.offsets:
                found += [("drop", number), ("advance", number), ("produce", number)]
            else:
                found += [("add", number), ("add_recreated", number)]
        if not self.basis:
            found.append(("rebase",))
        return [*found, ("neighbour",), ("restart",)]

    def add(self, number: int) -> None:
        """The fetcher wants another partition, or one again."""
        self.changes += 1
        self.side.add(number)

    def add_recreated(self, number: int) -> None:
        """The fetcher wants a partition whose topic was deleted and recreated."""
        self.side.ids[number] = OTHER_TOPIC if self.side.ids[number] == TOPIC else TOPIC
        self.add(number)

    def drop(self, number: int) -> None:
        """The fetcher does not want a partition any more."""
        self.changes += 1
        self.side.remove(number)

    def advance(self, number: int) -> None:
        """The position of a partition moves."""
        self.changes += 1
        self.side.advance(number)

    def produce(self, number: int) -> None:
        """The high watermark of a partition advances."""
        self.changes += 1
        key = (self.side.ids[number].bytes, number)
        self.high_watermarks[key] = self.high_watermarks.get(key, 0) + 1
        self.index.changed(key, (b"t", number))

    def rebase(self) -> None:
        """The rights of the fetcher change, so that the broker must look at each partition."""
        self.changes += 1
        self.basis += 1

    def neighbour(self) -> None:
        """Another fetcher opens a session much later, and may take the place of this one."""
        self.changes += 1
        self.now += 2 * EVICTION_MS
        part = FetchPartition(b"n" * 16, 0, 0, 100)
        context = self.cache.open(
            0, 0, (part,), (), privileged=True, uses_topic_ids=True, now_ms=self.now, fresh_id=self._fresh()
        )
        assert context.session is not None, "a follower finds no place beside an old session"

    def restart(self) -> None:
        """The broker restarts, and has no sessions."""
        self.changes += 1
        self._start()

    def fetch(self, fate: str, replaced: int = -1) -> None:
        """The fetcher sends its next request.

        ``replaced`` is a partition that a follower follows in another leader epoch when the answer arrives.
        """
        sent = self.side.request()
        if sent is None:
            return
        if fate == "request lost":
            self.side.lost()
            return
        session_id, epoch, parts, forgotten = sent
        continued = self.cache._sessions.get(session_id)
        is_rebased = continued is not None and continued.basis != self.basis
        context = self.cache.open(
            session_id,
            epoch,
            parts,
            forgotten,
            privileged=self.side.privileged,
            uses_topic_ids=True,
            now_ms=self.now,
            fresh_id=self._fresh(),
            basis=self.basis,
        )
        sent_news = {} if context.error is not ErrorCode.NONE else self._serve(context)
        if fate == "answer lost":
            self.side.lost()
            return
        if context.error is ErrorCode.NONE:
            session = context.session
            everything = context.partitions if session is None else session.partitions.values()
            served = {part.key: part.fetch_offset for part in everything}
            looked_at = {part.key for part in context.partitions}
            assert {part.key for part in parts} - set(forgotten) <= looked_at, "a named partition is not looked at"
            assert not is_rebased or looked_at == set(served), "the rights have changed, and not all is looked at"
            assert served == self.side.wanted(), f"the broker fetches {served}, not {self.side.wanted()}"
            if replaced >= 0:
                self.changes += 1
                key = (self.side.ids[replaced].bytes, replaced)
                served.pop(key)
                sent_news.pop(key, None)  # the answer was about the former leader epoch
                offset = self.side.offsets[replaced]
                self.side.remove(replaced)
                self.side.add(replaced, offset)
            self.learned |= sent_news
            for key in served:
                newest = self.high_watermarks.get(key, 0)
                assert self.learned.get(key) == newest, f"{key}: {self.learned.get(key)} is known, {newest} is true"
        self.side.answered(context, sent_news)

    def settle(self) -> None:
        """All disturbances end: within two requests the fetcher knows all high watermarks."""
        for _ in range(2):
            self.fetch("answered")
        for key in self.side.wanted():
            newest = self.high_watermarks.get(key, 0)
            assert self.learned.get(key) == newest, f"{key}: {self.learned.get(key)} stays known, {newest} is true"

    # --- what follows

    def _start(self) -> None:
        self.index = SessionIndex()
        self.cache = FetchSessionCache(slots_max=1, partitions_max=2, eviction_ms=EVICTION_MS, index=self.index)

    def _fresh(self) -> int:
        self.made += 1
        return self.made

    def _serve(self, context: FetchContext) -> dict[PartitionKey, int]:
        """Returns the high watermarks that the answer holds."""
        sent_news = {}
        session = context.session
        for part in context.partitions:
            high_watermark = self.high_watermarks.get(part.key, 0)
            if context.incremental and part.sent_high_watermark == high_watermark:
                assert session is not None
                session.at_rest(part)
                continue
            changed = part.has_changes(high_watermark, 0, has_news=False)
            if changed or not context.incremental:
                sent_news[part.key] = high_watermark
        return sent_news

    # --- rules

    def key(self) -> object:
        sessions = tuple(
            (
                *(each.session_id, each.epoch, self.now - each.last_used_ms, each.privileged),
                *((key, part.fetch_offset, part.sent_high_watermark) for key, part in each.partitions.items()),
                *(tuple(sorted(each.due)), each.basis == self.basis),
            )
            for each in self.cache._sessions.values()
        )
        return (
            *(self.side.key(), sessions, self.changes),
            *(tuple(sorted(self.learned.items())), tuple(sorted(self.high_watermarks.items()))),
        )

    def check(self) -> None:
        held = sum(len(each.partitions) for each in self.cache._sessions.values())
        assert self.cache.partition_count == held, "the cache miscounts its partitions"
        self.cache.take_ended()
        assert held <= 2
        assert len(self.cache) <= 1
        named = {key: (each,) for each in self.cache._sessions.values() for key in each.partitions}
        assert self.index.by_partition == named, "the index does not name the sessions that exist"
        for each in self.cache._sessions.values():
            places = [part.place for part in each.partitions.values()]
            assert places == sorted(places), "the places are not those of the order"


def follower_sessions() -> Sessions:
    """Returns a world whose fetcher is a follower."""
    return Sessions(FollowerSide())


def open_session() -> Sessions:
    """Returns a world whose consumer has an open session with both partitions."""
    world = Sessions()
    world.side.add(1)
    world.fetch("answered")
    return world


def open_follower_session() -> Sessions:
    """Returns a world whose follower has an open session with both partitions."""
    world = follower_sessions()
    world.side.add(1)
    world.fetch("answered")
    return world


def advanced_session() -> Sessions:
    """Returns a world whose consumer has moved a position in an open session."""
    world = open_session()
    world.advance(0)
    world.fetch("answered")
    return world


SCENES = (Sessions, follower_sessions, open_session, open_follower_session, advanced_session)
