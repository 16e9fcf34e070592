"""Incremental fetches (KIP-227): requests and answers name only the partitions that changed.

Theory of operation
-------------------
A fetcher opens a session with a full request of epoch 0. The broker remembers its partitions (``FetchSession``) and
answers with a session id. Each later request carries that id and the next epoch (1, 2, ... 2**31 - 1, then 1 again),
names partitions that are new or differ, and those to forget; all others are fetched as before. The answer leaves out
partitions without changes. A request of epoch -1 ends the session, or has none.

=================  =================  =========================================================================
session id         epoch              meaning
=================  =================  =========================================================================
0                  -1                 full fetch without a session
0                  0                  full fetch, open a session if there is room
n                  -1                 full fetch, close session n
n                  0                  full fetch, close session n, open another
n                  e > 0              incremental fetch; FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH
=================  =================  =========================================================================

The cache is bounded. When it is full, a session that was not used for ``eviction_ms`` is evicted; a follower's session
(privileged) also evicts a consumer's session that is older than that. Otherwise the fetcher gets session id 0 and
continues with full requests. The same bound holds for a session that grows: if the partitions that an incremental
request adds do not fit, the session ends with FETCH_SESSION_ID_NOT_FOUND, and the fetcher sends a full request.

Most partitions of a session are at rest: a look at them finds nothing to send. The session therefore keeps those that
are due (``FetchSession.due``), and a fetch looks at these alone. A partition becomes due when a request names it, when
it changes on this broker (``SessionIndex.changed``), and when something changes that all partitions depend on, such as
the fetcher's rights. The caller that finds it at rest says so (``FetchSession.at_rest``). So the work of a fetch grows
with the number of changes, not of partitions.

A follower's fetch also confirms that it still has all records of the partitions at rest. The session notes the time of
the fetch (``confirmed_ms``), and passes it on to the leader's view of the follower when a partition becomes due.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau_broker.replication.follower_progress import FollowerProgress

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1

PartitionKey = tuple[bytes, int]
"""Raw topic (its name, or from Fetch version 13 its id) and partition number."""


def next_epoch(epoch: int) -> int:
    """Returns the next epoch; wraps to 1, because 0 and -1 have special meanings."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1


@dataclass(slots=True)
class FetchPartition:
    """One partition of a fetch request; in a session also the offsets that were last sent for it."""

    topic: bytes
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: LeaderEpoch = LeaderEpoch(-1)
    last_fetched_epoch: int = -1
    log_start_offset: int = -1  # of the follower; -1 from a consumer
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1
    agreed_epoch: int = -1  # leader epoch in which the follower's log was found to agree up to ``fetch_offset``
    place: int = 0  # in the order of its session
    progress: FollowerProgress | None = None  # while at rest in a follower's session: the leader's view of the follower

    @property
    def key(self) -> PartitionKey:
        """The identity of the partition within a session."""
        return self.topic, self.partition

    def update(self, other: FetchPartition) -> None:
        """Applies the fields of a later request.

        A follower drops an answer about a leader epoch that has ended meanwhile, so its contents are sent again.
        """
        self.agreed_epoch = -1
        if other.current_leader_epoch != self.current_leader_epoch:
            self.sent_high_watermark = self.sent_log_start_offset = -1
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset

    def has_changes(
        self, high_watermark: int, log_start_offset: int, *, has_news: bool, is_refused: bool = False
    ) -> bool:
        """Returns whether an incremental answer includes this partition; records the sent offsets if so.

        ``has_news``: there are records, an error, a diverging epoch or a preferred read replica. ``is_refused``: an
        error or a diverging epoch. Readers do not take the offsets beside it, so the next answer without one has them.
        """
        if (
            not has_news
            and high_watermark == self.sent_high_watermark
            and log_start_offset == self.sent_log_start_offset
        ):
            return False
        if is_refused:
            self.sent_high_watermark = self.sent_log_start_offset = -1
        else:
            self.sent_high_watermark = high_watermark
            self.sent_log_start_offset = log_start_offset
        return True


_PLACE = attrgetter("place")


class FetchSession:
    """The session of one fetcher; its next request must have ``epoch``.

    Invariants: ``due`` is a part of ``partitions``. Each other partition was at rest when it was last looked at, and
    nothing that an answer depends on has changed since. The partitions are in the order of their places.
    """

    __slots__ = (
        "_last_place",
        "basis",
        "confirmed_ms",
        "created_ms",
        "due",
        "epoch",
        "last_used_ms",
        "partitions",
        "privileged",
        "replica_epoch",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, *, privileged: bool, uses_topic_ids: bool, now_ms: float, basis: object = None
    ) -> None:
        """``basis`` stands for what all answers depend on; see ``FetchSessionCache.open``."""
        self.session_id = session_id
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = 1
        self.partitions: dict[PartitionKey, FetchPartition] = {}
        self.due: dict[PartitionKey, FetchPartition] = {}
        """The partitions that the next answer may have to name, in no order."""
        self.basis = basis
        self.replica_epoch = -1
        """Broker epoch of the follower, when the leader last looked at all partitions."""
        self.confirmed_ms = float("-inf")
        """Time of the follower's last fetch, which confirmed the partitions that are at rest."""
        self._last_place = 0

    def add(self, partition: FetchPartition) -> None:
        """Adds a partition at the end."""
        self._last_place = partition.place = self._last_place + 1
        self.partitions[partition.key] = self.due[partition.key] = partition

    def forget(self, key: PartitionKey) -> None:
        """Removes a partition, if the session has it."""
        if key in self.partitions:
            self.wake(key)
            del self.partitions[key], self.due[key]

    def rotate(self, keys: Iterable[PartitionKey]) -> None:
        """Moves partitions that were answered with records to the end, so the next fetch begins with the others."""
        for key in keys:
            partition = self.partitions.pop(key, None)
            if partition is not None:
                self._last_place = partition.place = self._last_place + 1
                self.partitions[key] = partition

    def due_partitions(self) -> list[FetchPartition]:
        """Returns the partitions to look at, in the order of the session."""
        due = self.due
        if len(due) == len(self.partitions):
            return list(self.partitions.values())
        return sorted(due.values(), key=_PLACE) if len(due) > 1 else list(due.values())

    def at_rest(self, partition: FetchPartition, progress: FollowerProgress | None = None) -> None:
        """Notes that a look at a partition has found nothing to send, now or before it changes.

        ``progress`` is the leader's view of a follower that has all records; its fetches confirm that from now on.
        """
        self.due.pop((partition.topic, partition.partition), None)
        partition.progress = progress

    def wake(self, key: PartitionKey) -> None:
        """Makes a partition of the session due."""
        partition = self.due[key] = self.partitions[key]
        if partition.progress is not None:
            partition.progress.confirmed_until(self.confirmed_ms)
            partition.progress = None

    def look_at_all(self) -> None:
        """Makes all partitions due."""
        for key in self.partitions:
            if key not in self.due:
                self.wake(key)


class SessionIndex:
    """The sessions of one broker by the partitions that they name."""

    __slots__ = ("_sessions", "by_partition")

    def __init__(self) -> None:
        self._sessions: dict[PartitionKey, tuple[FetchSession, ...]] = {}
        self.by_partition: Mapping[PartitionKey, tuple[FetchSession, ...]] = self._sessions
        """The sessions that name a partition, oldest first."""

    def add(self, key: PartitionKey, session: FetchSession) -> None:
        """Notes that a session names a partition, which it did not name before."""
        self._sessions[key] = (*self._sessions.get(key, ()), session)

    def remove(self, key: PartitionKey, session: FetchSession) -> None:
        """Notes that a session does not name a partition any more."""
        others = tuple(each for each in self._sessions[key] if each is not session)
        if others:
            self._sessions[key] = others
        else:
            del self._sessions[key]

    def changed(self, by_id: PartitionKey, by_name: PartitionKey) -> tuple[FetchSession, ...]:
        """Makes a partition due in all sessions that name it, by topic id or by topic name; returns these sessions.

        To be called after each change of a replica that an answer can depend on.
        """
        sessions = self._sessions.get(by_id, ())
        for session in sessions:
            if by_id not in session.due:
                session.wake(by_id)
        named = self._sessions.get(by_name)
        if named is None:
            return sessions
        for session in named:
            if by_name not in session.due:
                session.wake(by_name)
        return sessions + named


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """How to serve one request. With an error, all other fields are ignored."""

    error: ErrorCode = ErrorCode.NONE
    partitions: Sequence[FetchPartition] = ()  # the partitions to look at: of an incremental fetch, those that are due
    session: FetchSession | None = None
    incremental: bool = False  # leave out partitions without ``FetchPartition.has_changes``

    @property
    def session_id(self) -> int:
        """The session id of the answer."""
        return INVALID_SESSION_ID if self.session is None else self.session.session_id


class FetchSessionCache:
    """The sessions of one broker; at most ``slots_max`` with at most ``partitions_max`` partitions together."""

    __slots__ = (
        "_eviction_ms",
        "_index",
        "_partition_count",
        "_partitions_max",
        "_sessions",
        "_slots_max",
        "ended",
        "evictions",
    )

    def __init__(
        self,
        *,
        slots_max: int,
        partitions_max: int = 1_000_000,
        eviction_ms: float = 120_000,
        index: SessionIndex | None = None,
    ) -> None:
        """``index`` receives which sessions name which partitions."""
        self._index = SessionIndex() if index is None else index
        self.ended: list[FetchSession] = []
        """Sessions that have ended since ``take_ended``."""
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._eviction_ms = eviction_ms
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0
        self.evictions = 0
        """Sessions that were removed to make room for others."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all sessions."""
        return self._partition_count

    def open(
        self,
        session_id: int,
        epoch: int,
        partitions: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
        *,
        privileged: bool,
        uses_topic_ids: bool,
        now_ms: float,
        fresh_id: int,
        basis: object = None,
    ) -> FetchContext:
        """Opens, continues or ends the session of a request.

        ``fresh_id`` is a random number that becomes the id of a new session if it is unused and not 0. ``basis`` stands
        for what the answers about all partitions depend on, such as the fetcher's rights: with another object than in
        the request before, all partitions are due.
        """
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session_id != INVALID_SESSION_ID:
                self._remove(session_id)
            if epoch == FINAL_EPOCH or not partitions:
                return FetchContext(partitions=partitions)
            return self._open_new(partitions, privileged, uses_topic_ids, now_ms, fresh_id, basis)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            return FetchContext(error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.last_used_ms = now_ms
        session.epoch = next_epoch(epoch)
        # The cache is in order of last use, so the first session is the first candidate for eviction.
        del self._sessions[session_id]
        self._sessions[session_id] = session
        known = session.partitions
        before = len(known)
        if self._partition_count + len(partitions) > self._partitions_max and not self._may_grow(
            session, partitions, forgotten, now_ms
        ):
            self._remove(session_id)
            return FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        for partition in partitions:
            key = partition.topic, partition.partition
            present = known.get(key)
            if present is None:
                session.add(partition)
                self._index.add(key, session)
            else:
                present.update(partition)
                session.wake(key)
        for key in forgotten:
            if key in known:
                session.forget(key)
                self._index.remove(key, session)
        self._partition_count += len(known) - before
        if not known:
            self._remove(session_id)
            return FetchContext()
        if basis is not session.basis:
            session.basis = basis
            session.look_at_all()
        return FetchContext(partitions=session.due_partitions(), session=session, incremental=True)

    def close(self, session_id: int) -> None:
        """Ends a session, if it exists."""
        self._remove(session_id)

    def take_ended(self) -> list[FetchSession]:
        """Returns the sessions that have ended since the last call; fetches that wait in them must be answered."""
        ended, self.ended = self.ended, []
        return ended

    def _open_new(
        self,
        partitions: Sequence[FetchPartition],
        privileged: bool,
        uses_topic_ids: bool,
        now_ms: float,
        fresh_id: int,
        basis: object,
    ) -> FetchContext:
        room = self._make_room(len(partitions), privileged, now_ms)
        if not room or fresh_id == INVALID_SESSION_ID or fresh_id in self._sessions:
            return FetchContext(partitions=partitions)
        session = FetchSession(
            fresh_id, privileged=privileged, uses_topic_ids=uses_topic_ids, now_ms=now_ms, basis=basis
        )
        for key, partition in {partition.key: partition for partition in partitions}.items():
            session.add(partition)
            self._index.add(key, session)
        self._sessions[fresh_id] = session
        self._partition_count += len(session.partitions)
        return FetchContext(partitions=partitions, session=session)

    def _may_grow(
        self,
        session: FetchSession,
        partitions: Sequence[FetchPartition],
        forgotten: Sequence[PartitionKey],
        now_ms: float,
    ) -> bool:
        """Evicts other sessions to make room for an incremental request; returns whether it fits."""
        after = dict.fromkeys(session.partitions)
        after.update(dict.fromkeys(partition.key for partition in partitions))
        for key in forgotten:
            after.pop(key, None)
        growth = len(after) - len(session.partitions)
        return growth <= 0 or self._make_room(growth, session.privileged, now_ms, sessions=0)

    def _make_room(self, partition_count: int, privileged: bool, now_ms: float, *, sessions: int = 1) -> bool:
        """Evicts sessions until the new partitions fit; returns False if they cannot.

        The session of the request itself is never evicted: it is in use, and if it may evict sessions of consumers, it
        is a follower's.
        """
        while (
            len(self._sessions) + sessions > self._slots_max
            or self._partition_count + partition_count > self._partitions_max
        ):
            victim = self._victim(privileged, now_ms)
            if victim is None:
                return False
            self._remove(victim)
            self.evictions += 1
        return True

    def _victim(self, privileged: bool, now_ms: float) -> int | None:
        for session_id, session in self._sessions.items():
            if now_ms - session.last_used_ms > self._eviction_ms:
                return session_id
            if not privileged:
                return None  # in order of last use, so the others are younger
            if not session.privileged and now_ms - session.created_ms > self._eviction_ms:
                return session_id
        return None

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            for key in session.partitions:
                self._index.remove(key, session)
            session.look_at_all()  # a fetch that waits in it hears of no change from now on
            self.ended.append(session)
