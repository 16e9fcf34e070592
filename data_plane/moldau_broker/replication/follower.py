"""Fetches all followed partitions of one leader broker in one request; one request is in flight.

Theory of operation
-------------------
Each followed partition is in one of these states:

=========  ===============================================================================================
state      meaning
=========  ===============================================================================================
FETCHING   part of the next request, from the local log end offset
DELAYED    left out until its back-off is over (the leader is not ready, a read failed, throttled)
RESETTING  the leader does not have the offset; the shell asks for its earliest and latest offset, then calls
           ``truncated``, ``delay`` or ``request_failed``
RESTORING  the leader has the offset only in remote storage, or the local log lacks the producers of its remote
           records; the shell restores epochs and producers from there, then calls ``truncated`` or ``delay`` (KIP-405)
FENCED     the follower's leader epoch is out of date; newer metadata will replace the partition
=========  ===============================================================================================

There is no separate truncation phase. A fetch contains the epoch of the last local batch. A leader whose history
differs answers with the end of the last epoch that both may have (``diverging_epoch``, KIP-595); the follower truncates
its log there and fetches again, at most once for each epoch of its history. An answer becomes a list of ``Step`` that
the shell performs on the log in order; it reports them with ``appended``, ``truncated`` or ``delay``.

Requests are incremental (``fetch_session``): the core remembers the partitions of the leader's session and names only
those that changed, so an idle follower of a thousand partitions sends a few dozen bytes. A failed request or an answer
with an error starts a new session. A request adds at most ``PARTITIONS_MAX`` partitions to the session, because the
leader looks at all of them in one turn of its event loop; the next ones add the others. If the leader has no room for
the session, a request names them all.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.fetch_session import INITIAL_EPOCH, INVALID_SESSION_ID, next_epoch

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from moldau.protocol.hot import FetchedPartition
    from moldau.values import LeaderEpoch, Offset
    from moldau_broker.log.values import TopicPartition

PARTITIONS_MAX: Final = 1_000
"""Partitions that one request adds to a session. Each takes a leader up to 40 microseconds."""

WireKey = tuple[bytes, int]
"""A partition as messages name it: the bytes of its topic's id, and its number. Hashed far faster than a ``UUID``."""


class FollowState(enum.Enum):
    """The states of a followed partition, as the module describes them."""

    FETCHING = "fetching"
    DELAYED = "delayed"
    RESETTING = "resetting"
    RESTORING = "restoring"
    FENCED = "fenced"


class Followed:
    """One partition that is fetched from this source. Only ``FollowerFetcher`` changes its fields."""

    __slots__ = (
        "delayed_until_ms",
        "failures",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "state",
        "topic_id",
        "wire_key",
    )

    def __init__(
        self,
        key: TopicPartition,
        topic_id: uuid.UUID,
        *,
        leader_epoch: LeaderEpoch,
        fetch_offset: Offset,
        last_fetched_epoch: int,
        log_start_offset: Offset,
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.wire_key: WireKey = (topic_id.bytes, key.partition)
        self.leader_epoch = leader_epoch
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.state = FollowState.FETCHING
        self.delayed_until_ms = 0.0
        self.failures = 0


class FollowRequest(NamedTuple):
    """The next fetch request. ``partitions`` are new in the session, or differ from it."""

    session_id: int
    session_epoch: int
    partitions: tuple[Followed, ...]
    forgotten: tuple[Followed, ...]
    has_more: bool = False
    """Whether the next request adds further partitions, so that the leader must not wait for records."""


class StepKind(enum.Enum):
    """The action of the shell for one partition of an answer."""

    ADVANCE = "advance"  # append ``records`` (may be empty) and take over high watermark and log start
    TRUNCATE = "truncate"  # cut the log at the end of ``diverging_epoch`` or at ``diverging_end_offset``, the lower one
    RESET = "reset"  # ask the leader for its earliest and latest offset
    RESTORE = "restore"  # start the log behind a segment in remote storage
    REFUSED = "refused"  # only log the error


class Step(NamedTuple):
    """One effect; the shell performs it before it calls ``next_request`` again. The answer's records are borrowed."""

    kind: StepKind
    followed: Followed
    answer: FetchedPartition


class FollowerFetcher:
    """All partitions that are followed from one source broker.

    Invariants: if ``_session_epoch`` is above 0, ``_known`` equals the partitions of the leader's session, and
    ``_dirty`` holds the keys that may differ from it; ``_delayed`` holds the partitions in DELAYED; ``_fetching``
    counts those in FETCHING.
    """

    __slots__ = (
        "_backoff_max_ms",
        "_backoff_ms",
        "_by_id",
        "_delayed",
        "_dirty",
        "_failures",
        "_fetching",
        "_known",
        "_names_all",
        "_not_before_ms",
        "_partitions",
        "_session_epoch",
        "_session_id",
    )

    def __init__(self, *, backoff_ms: float, backoff_max_ms: float) -> None:
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = max(backoff_ms, backoff_max_ms)
        self._partitions: dict[TopicPartition, Followed] = {}
        self._by_id: dict[WireKey, Followed] = {}
        self._known: dict[WireKey, Followed] = {}
        self._dirty: dict[WireKey, None] = {}
        self._delayed: dict[TopicPartition, Followed] = {}
        self._fetching = 0
        self._session_id = INVALID_SESSION_ID
        self._session_epoch = INITIAL_EPOCH
        self._names_all = False  # whether the leader has no room for a session, or for more partitions in it
        self._failures = 0
        self._not_before_ms = float("-inf")

    def __len__(self) -> int:
        return len(self._partitions)

    def partition(self, key: TopicPartition) -> Followed | None:
        """Returns the followed partition of that name, or None."""
        return self._partitions.get(key)

    # --- partitions ------------------------------------------------------------------------------------------------

    def add(self, followed: Followed) -> None:
        """Begins to follow a partition; replaces one of the same name (new leader epoch)."""
        self.remove(followed.key)
        self._partitions[followed.key] = followed
        self._by_id[followed.wire_key] = followed
        self._dirty[followed.wire_key] = None
        self._count(followed, 1)

    def remove(self, key: TopicPartition) -> None:
        """Stops to follow a partition; ignores it in an answer to the request in flight."""
        followed = self._partitions.pop(key, None)
        if followed is not None:
            del self._by_id[followed.wire_key]
            self._dirty[followed.wire_key] = None
            self._count(followed, -1)

    # --- requests --------------------------------------------------------------------------------------------------

    def next_request(self, now_ms: float) -> FollowRequest | None:
        """Returns the next request; None while there is nothing to fetch, or during a back-off."""
        if now_ms < self._not_before_ms:
            return None
        for followed in [f for f in self._delayed.values() if f.delayed_until_ms <= now_ms]:
            self._set_state(followed, FollowState.FETCHING)
        if not self._fetching:
            return None
        return self._full_request() if self._session_epoch <= INITIAL_EPOCH else self._incremental_request()

    def next_deadline_ms(self) -> float | None:
        """Returns when time alone may make ``next_request`` return a request; None if it cannot."""
        if self._fetching:
            return self._not_before_ms
        if not self._delayed:
            return None
        return max(self._not_before_ms, min(followed.delayed_until_ms for followed in self._delayed.values()))

    def _full_request(self) -> FollowRequest:
        fetching = [f for f in self._partitions.values() if f.state is FollowState.FETCHING]
        named = fetching if self._names_all else fetching[:PARTITIONS_MAX]
        self._known = {f.wire_key: f for f in named}
        self._dirty = {f.wire_key: None for f in fetching[len(named) :]}
        return FollowRequest(
            session_id=self._session_id,
            session_epoch=INITIAL_EPOCH,
            partitions=tuple(named),
            forgotten=(),
            has_more=bool(self._dirty),
        )

    def _incremental_request(self) -> FollowRequest:
        changed: list[Followed] = []
        forgotten: list[Followed] = []
        left: dict[WireKey, None] = {}
        added = 0
        for key in self._dirty:
            followed = self._by_id.get(key)
            if followed is not None and followed.state is FollowState.FETCHING:
                if key not in self._known:
                    if added == PARTITIONS_MAX:
                        left[key] = None
                        continue
                    added += 1
                changed.append(followed)
                self._known[key] = followed
            elif (known := self._known.pop(key, None)) is not None:
                forgotten.append(known)
        self._dirty = left
        return FollowRequest(
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=tuple(changed),
            forgotten=tuple(forgotten),
            has_more=bool(self._dirty),
        )

    # --- answers ---------------------------------------------------------------------------------------------------

    def answered(
        self,
        error: int,
        session_id: int,
        answers: Iterable[FetchedPartition],
        request: FollowRequest,
        now_ms: float,
    ) -> list[Step]:
        """Handles the leader's answer; returns the steps in the order of the answer.

        The answer for a partition that was replaced since the request is dropped.
        """
        if error != ErrorCode.NONE:
            self.request_failed(now_ms, session_lost=True)
            self._names_all = error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return []
        self._failures = 0
        self._session_id = session_id
        self._names_all = session_id == INVALID_SESSION_ID
        self._session_epoch = INITIAL_EPOCH if session_id == INVALID_SESSION_ID else next_epoch(request.session_epoch)
        steps = []
        for answer in answers:
            key = answer.topic_id, answer.partition
            followed = self._by_id.get(key)
            if followed is not None and followed is self._known.get(key) and followed.state is FollowState.FETCHING:
                steps.append(self._step(followed, answer, now_ms))
        return steps

    def _step(self, followed: Followed, answer: FetchedPartition, now_ms: float) -> Step:
        error = answer.error_code
        if error == ErrorCode.NONE:
            kind = StepKind.TRUNCATE if answer.diverging_end_offset >= 0 else StepKind.ADVANCE
            return Step(kind, followed, answer)
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._set_state(followed, FollowState.RESETTING)
            return Step(StepKind.RESET, followed, answer)
        if error == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._set_state(followed, FollowState.RESTORING)
            return Step(StepKind.RESTORE, followed, answer)
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._set_state(followed, FollowState.FENCED)
        else:
            self.delay(followed, now_ms)
        return Step(StepKind.REFUSED, followed, answer)

    def request_failed(self, now_ms: float, *, session_lost: bool = True) -> None:
        """Starts a new session after a growing back-off.

        Called when the request, or the request for a reset, got no answer (connection lost, deadline) or a refusal.
        Partitions in RESETTING are fetched again after a back-off of their own. Those in RESTORING depend on the store
        too, and go on.
        """
        if session_lost:
            self._session_id = INVALID_SESSION_ID
            self._session_epoch = INITIAL_EPOCH
            self._known = {}
            self._names_all = False
        self._not_before_ms = now_ms + self._grown(self._failures)
        self._failures += 1
        for followed in [f for f in self._partitions.values() if f.state is FollowState.RESETTING]:
            self.delay(followed, now_ms)

    def reset_backoff(self) -> None:
        """Ends the back-off, for example when the source registers again."""
        self._not_before_ms = float("-inf")
        self._failures = 0

    # --- reports of the shell --------------------------------------------------------------------------------------

    def is_current(self, followed: Followed) -> bool:
        """Returns whether the partition has not been replaced since the step was made."""
        return self._partitions.get(followed.key) is followed

    def appended(self, followed: Followed, log_end_offset: Offset, last_epoch: int, log_start_offset: Offset) -> None:
        """Records that the log now ends at ``log_end_offset``, with a batch of ``last_epoch``.

        This ends the growth of the back-off. An answer alone does not, because the log may refuse its records.
        """
        assert log_end_offset >= followed.fetch_offset
        followed.failures = 0
        if (
            log_end_offset != followed.fetch_offset
            or last_epoch != followed.last_fetched_epoch
            or log_start_offset != followed.log_start_offset
        ):
            followed.fetch_offset = log_end_offset
            followed.last_fetched_epoch = last_epoch
            followed.log_start_offset = log_start_offset
            self._dirty[followed.wire_key] = None

    def truncated(self, followed: Followed, log_end_offset: Offset, last_epoch: int, log_start_offset: Offset) -> None:
        """Records that the log was truncated or emptied to ``log_end_offset``, and fetches from there."""
        followed.fetch_offset = log_end_offset
        followed.last_fetched_epoch = last_epoch
        followed.log_start_offset = log_start_offset
        self._set_state(followed, FollowState.FETCHING)

    def restoring(self, followed: Followed) -> None:
        """Records that the log must be restored from remote storage before it is fetched."""
        self._set_state(followed, FollowState.RESTORING)

    def delay(self, followed: Followed, now_ms: float, delay_ms: float | None = None) -> None:
        """Leaves the partition out for ``delay_ms``, or for a back-off that grows with its failures."""
        if delay_ms is None:
            delay_ms = self._grown(followed.failures)
            followed.failures += 1
        followed.delayed_until_ms = now_ms + delay_ms
        self._set_state(followed, FollowState.DELAYED)

    def _set_state(self, followed: Followed, state: FollowState) -> None:
        if self._partitions.get(followed.key) is not followed:
            followed.state = state  # replaced meanwhile, so not counted
            return
        self._count(followed, -1)
        followed.state = state
        self._count(followed, 1)
        self._dirty[followed.wire_key] = None

    def _count(self, followed: Followed, change: int) -> None:
        if followed.state is FollowState.FETCHING:
            self._fetching += change
        elif followed.state is FollowState.DELAYED:
            if change > 0:
                self._delayed[followed.key] = followed
            else:
                self._delayed.pop(followed.key, None)

    def _grown(self, failures: int) -> float:
        return min(self._backoff_ms * (1 << min(failures, 16)), self._backoff_max_ms)
