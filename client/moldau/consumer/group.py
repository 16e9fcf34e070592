"""The client of a group coordinator: finds it, joins, sends heartbeats and commits, as ``membership`` decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.client import GROUP_COORDINATOR, TRANSPORT_ERRORS
from moldau.cluster.committed import OffsetsUnknownError
from moldau.consumer.core.membership import NO_MEMBERSHIP, Membership, MemberState, Next, assign_partitions
from moldau.consumer.core.offset_answers import committed_offsets, refused_commits, unplaced
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau.protocol.schema import Response
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.statistics import ConsumerCounters
    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config

R = TypeVar("R", bound=Response)

GROUP_PURPOSE = "group"
"""The connection for group requests; it is separate because JoinGroup waits for the other members."""

_COMMIT_VERSION_MAX = 9
_FETCH_VERSION_MAX = 9
_COORDINATOR_CODES = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_JOIN_GRACE_MS = 5_000.0
_STATIC_MEMBERS = NeededVersion(5, "group.instance.id (KIP-345, Kafka 2.3)")
_STALE_EPOCH = ErrorCode.STALE_MEMBER_EPOCH
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_UNKNOWN_TOPIC_MS = 1_000.0
"""How long an automatic commit waits until the coordinator knows a topic, which may be new, or deleted."""


class CommitFailedError(KafkaError):
    """Reports that offsets were not committed because this member no longer belongs to the generation.

    Its partitions may belong to other members.
    """


class OffsetsRefusedError(KafkaError):
    """Reports that the coordinator refused the offsets of some partitions; it has committed those of the others."""

    def __init__(self, group_id: str, failures: Mapping[TopicPartition, KafkaError]) -> None:
        partition, error = next(iter(failures.items()))
        super().__init__(error.code, f"group {group_id}: {partition}: {error.message}")
        self.failures = dict(failures)
        self.refused = {each: failure.code for each, failure in failures.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCommit:
    """Offsets to commit, with the generation and member id that held the partitions at the time of the call.

    The identity is None if the member had lost its assignment. ``number`` counts the commits of one consumer.
    """

    offsets: Mapping[TopicPartition, CommittedOffset]
    member: tuple[int, str] | None
    number: int
    epoch: int = -1
    """The generation or member epoch at the time of the call."""
    clusters_left: int = 0
    """How often the client had gone to another cluster then."""
    is_automatic: bool = False
    """An automatic commit, or an administrator's, is soon given up for topics that the coordinator does not know."""


class GroupClient:
    """Talks to the coordinator of one group. ``membership`` is None for a consumer that only commits."""

    def __init__(self, client: ClusterClient, group_id: str, config: Config, membership: Membership | None) -> None:
        self._client = client
        self._group_id = group_id
        self.membership = membership
        self._node_id: int | None = None
        self._api_timeout_ms = config.get_int("default.api.timeout.ms")
        self._heartbeat_ms = config.get_int("heartbeat.interval.ms")
        self._session_ms = config.get_int("session.timeout.ms")
        self._poll_interval_ms = config.get_int("max.poll.interval.ms")
        self._commits_asked = 0
        self.commit_trouble = ""  # why the last attempt to commit must be repeated
        self.counters: ConsumerCounters | None = None
        self.on_commit: Callable[[Mapping[TopicPartition, CommittedOffset]], None] | None = None
        # The committing task holds it. At most the consumer's task and one background task wait for it, in order.
        self._commit_turn = trio.Lock()
        self._refused: KafkaError | None = None  # by a heartbeat or an automatic commit, which no call awaits
        self.partition_counts: dict[str, int] | None = None
        """The partitions of all topics of the group in the last assignment; None if another member computed it."""

    # --- the coordinator

    async def coordinator(self, deadline_ms: float) -> int:
        """Returns the coordinator's node.

        Raises:
            trio.TooSlowError: the deadline has passed.
            KafkaError: the error is not retriable.
        """
        failures = 0
        while self._node_id is None:
            try:
                self._node_id = await self._client.find_coordinator(self._group_id, GROUP_COORDINATOR)
            except TRANSPORT_ERRORS as error:
                last: Exception = error
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            else:
                break
            failures += 1
            if self._client.now_ms >= deadline_ms:
                raise trio.TooSlowError(f"group {self._group_id}: no coordinator: {last}")
            await self._client.backoff(failures)
        return self._node_id

    def _forget_coordinator(self) -> None:
        self._node_id = None

    async def _request(
        self,
        response_class: type[R],
        message: Request,
        deadline_ms: float,
        *,
        version: int | None = None,
        timeout_ms: float | None = None,
        purpose: str = "",
    ) -> R:
        """Sends one request to the coordinator; a transport error is raised and discards the known coordinator."""
        clusters_left = self._client.clusters_left
        node_id = await self.coordinator(deadline_ms)
        if clusters_left != self._client.clusters_left:  # the request is about the group in the former cluster
            self._forget_coordinator()
            raise ConnectionAbortedError("the client has gone to another cluster")
        try:
            with self._client.silence.coordinator(node_id, self._group_id, GROUP_COORDINATOR) as call:
                connection = await call.connect(purpose)
                if isinstance(message, JoinGroupRequest) and message.group_instance_id is not None:
                    connection.require(message, _STATIC_MEMBERS)
                chosen = connection.version_for(message, version)
                limit_ms = self._client.request_timeout_ms if timeout_ms is None else timeout_ms
                return await connection.request_as(response_class, message, chosen, limit_ms)
        except TRANSPORT_ERRORS:
            self._forget_coordinator()
            raise

    # --- joining

    async def join(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Joins the group, with as many attempts as needed, and returns the assignment.

        Raises:
            KafkaError: the error is not retriable.
        """
        membership = self._member()
        failures = 0
        while True:
            try:
                step, assigned = await self._join_once(membership, topics, owned)
            except TRANSPORT_ERRORS as error:
                self._client.logger.info("join-failed", group=self._group_id, error=error)
                membership.rejoin("the coordinator did not answer")
                step, assigned = Next.RETRY, []
            except KafkaError as error:
                if membership.state is not MemberState.UNJOINED:  # no answer about the membership: the next poll joins
                    membership.rejoin(f"joining failed: {error.code.name}")
                raise
            if step is Next.GO_ON:
                return assigned
            if step is Next.JOIN_AGAIN:
                # The coordinator answers this at once, so the loop must pause.
                await trio.lowlevel.checkpoint()
                failures = 0
                continue
            if step is Next.FIND_COORDINATOR:
                self._forget_coordinator()
            failures += 1
            await self._client.backoff(failures)

    async def _join_once(
        self, membership: Membership, topics: Sequence[str], owned: Sequence[TopicPartition]
    ) -> tuple[Next, list[TopicPartition]]:
        wait_ms = max(membership.identity.rebalance_timeout_ms, self._client.request_timeout_ms) + _JOIN_GRACE_MS
        request = membership.join_request(topics, owned)
        joined = await self._request(JoinGroupResponse, request, math.inf, timeout_ms=wait_ms, purpose=GROUP_PURPOSE)
        step = membership.on_join(joined)
        if step is not Next.GO_ON:
            return step, []
        assignment = self.partition_counts = None
        if joined.leader == joined.member_id:
            members = membership.members_of(joined, self._client.logger.warning)
            wanted = list(dict.fromkeys(topic for member in members for topic in member.topics))
            counts = await self._counts(wanted)
            self.partition_counts = {topic: counts.get(topic, 0) for topic in wanted}
            if membership.is_leader(joined):
                assignment = assign_partitions(membership.assignor, counts, members)
        synced = await self._request(
            SyncGroupResponse,
            membership.sync_request(assignment),
            math.inf,
            timeout_ms=wait_ms,
            purpose=GROUP_PURPOSE,
        )
        return membership.on_sync(synced)

    async def _counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Returns the number of partitions of the topics of all members.

        It fetches fresh metadata, because other members may know newer topics.
        """
        client = self._client
        for topic in topics:
            client.add_topic(topic)
        try:
            await client.wait_update(client.now_ms + client.request_timeout_ms)
        except trio.TooSlowError as error:
            client.logger.warning("assigning-with-old-metadata", group=self._group_id, error=error)
        known = client.cluster_metadata.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known and known[topic].partitions}

    def _member(self) -> Membership:
        assert self.membership is not None, "only a subscriber is a member of its group"
        return self.membership

    # --- heartbeats

    async def heartbeat_forever(self, last_poll_ms: Callable[[], float], changed: Callable[[], None]) -> None:
        """Sends heartbeats until cancelled; calls ``changed`` when the member must join again."""
        membership = self._member()
        client = self._client
        alive_ms = client.now_ms
        while True:
            await trio.sleep(self._heartbeat_ms / 1000)
            if not membership.sends_heartbeats:
                alive_ms = client.now_ms
                continue
            if client.now_ms - last_poll_ms() > self._poll_interval_ms:
                client.logger.warning(
                    "poll-too-late", group=self._group_id, max_poll_interval_ms=self._poll_interval_ms
                )
                await self.leave(f"no poll within max.poll.interval.ms = {self._poll_interval_ms}")
                changed()
                continue
            try:
                step = await self._heartbeat(membership)
            except TRANSPORT_ERRORS as error:
                client.logger.info("heartbeat-failed", group=self._group_id, error=error)
                step = Next.FIND_COORDINATOR
            except KafkaError as error:
                client.logger.warning("heartbeat-refused", group=self._group_id, error=error)
                self._refused = error
                step = Next.FIND_COORDINATOR
            if step in (Next.GO_ON, Next.JOIN_AGAIN):
                alive_ms = client.now_ms
            elif step is Next.FIND_COORDINATOR:
                self._forget_coordinator()
            if client.now_ms - alive_ms > self._session_ms and membership.has_generation:
                membership.lose_generation("the session timed out")
                changed()
            elif step is not Next.GO_ON:
                changed()

    async def _heartbeat(self, membership: Membership) -> Next:
        generation = (membership.generation, membership.member_id)
        response = await self._request(
            HeartbeatResponse,
            membership.heartbeat_request(),
            self._client.now_ms + self._session_ms,
            timeout_ms=self._session_ms,
            purpose=GROUP_PURPOSE,
        )
        if generation != (membership.generation, membership.member_id) or not membership.sends_heartbeats:
            return Next.GO_ON  # it says nothing about the present membership, nor about what was refused since
        step = membership.on_heartbeat(ErrorCode.of(response.error_code))
        if step is Next.GO_ON:
            self._refused = None
        return step

    def check(self) -> None:
        """Reports what the coordinator has refused for good in the background since the last call.

        Raises:
            KafkaError: FENCED_INSTANCE_ID, among others.
        """
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def adopted(self) -> None:
        """Notes that the positions are those of the last assignment."""

    def still_given(self, assigned: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions of an assignment that the coordinator has not taken back meanwhile."""
        return list(assigned)

    async def leave(self, reason: str) -> None:
        """Leaves the group, so that others need not wait for the session timeout; a failure only delays them."""
        # While the broker holds a JoinGroup it answers nothing else on that connection.
        purpose = GROUP_PURPOSE if self._member().is_stable else ""
        self._refused = None
        request = self._member().leave_request(reason)
        if request is None:
            return
        try:
            with trio.move_on_after(self._client.request_timeout_ms / 1000):
                await self._request(LeaveGroupResponse, request, self._client.now_ms, purpose=purpose)
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            self._client.logger.info("leave-failed", group=self._group_id, error=error)

    # --- offsets

    def ask_commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, is_automatic: bool = False
    ) -> AskedCommit:
        """Returns a commit for ``carry_out``; no checkpoint may lie between reading the positions and this call."""
        self._commits_asked += 1
        membership = self.membership
        member = NO_MEMBERSHIP if membership is None else membership.commits_as
        epoch = -1 if membership is None else membership.generation
        return AskedCommit(
            offsets=offsets,
            member=member,
            number=self._commits_asked,
            epoch=epoch,
            clusters_left=self._client.clusters_left,
            is_automatic=is_automatic,
        )

    async def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], deadline_ms: float | None = None) -> None:
        """Commits offsets for the member's present generation; see ``carry_out``."""
        await self.carry_out(self.ask_commit(offsets), deadline_ms)

    async def carry_out(self, asked: AskedCommit, deadline_ms: float | None = None, *, gives_way: bool = False) -> None:
        """Commits offsets; they are durable on the coordinator's in-sync replicas on return.

        Commits are sent one at a time, in the order of the calls. A commit waits, until its own deadline, for the
        previous one to be answered or given up. A commit with ``gives_way`` is dropped, and the call returns, if a
        newer commit was requested before it was sent or retried. Each commit applies to the generation of its call; the
        coordinator refuses it in another.

        As with Kafka's clients, the coordinator may still carry out a commit that was given up without an answer. On
        the same connection it does so before any newer commit. If the connection broke with the request unread, it may
        do so afterwards, because only the connection and the generation order OffsetCommit requests.

        Raises:
            CommitFailedError: this member no longer belongs to the group's generation.
            OffsetsRefusedError: the coordinator refused the offsets of partitions.
            KafkaError: the coordinator cannot be found.
            trio.TooSlowError: the deadline has passed.
        """
        if not asked.offsets:
            await trio.lowlevel.checkpoint()
            return
        limit_ms = self._client.now_ms + self._api_timeout_ms if deadline_ms is None else deadline_ms
        await self._wait_commit_turn(limit_ms)
        began_ms = self._client.now_ms
        is_committed = None
        try:
            is_committed = await self._commit_until(asked, limit_ms, gives_way=gives_way)
        except (KafkaError, trio.TooSlowError):
            is_committed = False
            raise
        finally:
            self._commit_turn.release()
            if self.counters is not None and is_committed is not None:
                now_ms = self._client.now_ms
                self.counters.committed(now_ms - began_ms, now_ms, failed=not is_committed)
        if is_committed and self.on_commit is not None:
            self.on_commit(asked.offsets)

    async def _wait_commit_turn(self, limit_ms: float) -> None:
        try:
            self._commit_turn.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(max(limit_ms - self._client.now_ms, 0) / 1000):
                await self._commit_turn.acquire()
                return
            raise trio.TooSlowError(
                f"group {self._group_id}: offsets were not committed in time (the commit before has no answer)"
            ) from None

    async def _commit_until(self, asked: AskedCommit, limit_ms: float, *, gives_way: bool) -> bool | None:
        """Returns True for a committed, None for a dropped commit."""
        failures, unknown_since_ms = 0, math.inf
        while True:
            if gives_way and asked.number != self._commits_asked:
                self._client.logger.debug("commit-gave-way", group=self._group_id)
                await trio.lowlevel.checkpoint()
                return None
            if asked.clusters_left != self._client.clusters_left:
                text = f"group {self._group_id}: the offsets are those of another cluster, which the client has left"
                raise CommitFailedError(ErrorCode.UNKNOWN_MEMBER_ID, text)
            code, refused = await self._commit_once(asked, limit_ms)
            if code is ErrorCode.NONE:
                return True
            left = {each: offset for each, offset in asked.offsets.items() if each in refused}
            if left:  # the others are committed: a newer offset of theirs may follow, from another client
                asked = replace(asked, offsets=left)
            if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT):
                self._forget_coordinator()
            elif code in (
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.UNKNOWN_MEMBER_ID,
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.FENCED_INSTANCE_ID,
            ):
                membership = self.membership
                if (
                    membership is not None
                    and membership.is_stable
                    and asked.member == (membership.generation, membership.member_id)
                ):
                    try:
                        membership.on_heartbeat(code)
                    except KafkaError as error:
                        if asked.is_automatic:
                            self._refused = error
                        raise
                raise self._refusal(code)
            elif code is not _STALE_EPOCH and not code.retriable:
                # A stale epoch is renewed by the answer to a heartbeat that is on its way, or the member is lost.
                raise OffsetsRefusedError(self._group_id, refused)
            if asked.is_automatic and left and all(each.code is _UNKNOWN_TOPIC for each in refused.values()):
                unknown_since_ms = min(unknown_since_ms, self._client.now_ms)
                if self._client.now_ms - unknown_since_ms >= _UNKNOWN_TOPIC_MS:
                    raise OffsetsRefusedError(self._group_id, refused)  # a rebalance, or the end, may wait for this
            failures += 1
            self.commit_trouble = unplaced(refused, self._client.cluster_metadata) or code.name
            if self._client.now_ms >= limit_ms:
                raise trio.TooSlowError(
                    f"group {self._group_id}: offsets were not committed in time ({self.commit_trouble})"
                )
            await self._client.backoff(failures)

    def _refusal(self, code: ErrorCode) -> CommitFailedError:
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            advice = "poll again to take part in the rebalance, and commit then"
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            advice = "another member uses the same group.instance.id"
        else:
            advice = (
                "other members may have the partitions now, and read the records again. If work between two polls "
                f"lasts longer than max.poll.interval.ms = {self._poll_interval_ms}, raise it or lower max.poll.records"
            )
        text = f"group {self._group_id}: offsets were not committed ({code.name}: {code.message}); {advice}"
        return CommitFailedError(code, text)

    async def _commit_once(
        self, asked: AskedCommit, deadline_ms: float
    ) -> tuple[ErrorCode, dict[TopicPartition, KafkaError]]:
        """Returns the first error, one that stays if there is one, and the error of each refused partition."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for partition, committed in asked.offsets.items():
            topics.setdefault(partition.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition,
                    committed_offset=committed.offset,
                    committed_leader_epoch=committed.leader_epoch,
                    committed_metadata=committed.metadata,
                )
            )
        membership = self.membership
        if membership is not None and membership.commits_as is None:
            raise self._refusal(ErrorCode.FENCED_INSTANCE_ID if membership.is_fenced else ErrorCode.UNKNOWN_MEMBER_ID)
        if asked.member is None or (membership is not None and membership.commits_as != asked.member):
            raise self._refusal(ErrorCode.ILLEGAL_GENERATION)
        generation, member_id = asked.member
        is_member = membership is not None and asked.member != NO_MEMBERSHIP
        if membership is not None and is_member:
            generation = membership.commit_generation(asked.member)
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=membership.identity.instance_id if membership is not None and is_member else None,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=parts) for topic, parts in topics.items()],
        )
        try:
            response = await self._request(OffsetCommitResponse, request, deadline_ms, version=_COMMIT_VERSION_MAX)
        except TRANSPORT_ERRORS as error:
            self._client.logger.info("commit-unanswered", group=self._group_id, error=error)
            return ErrorCode.REQUEST_TIMED_OUT, {}
        refused = refused_commits(asked.offsets, response)
        staying_first = sorted(refused.items(), key=lambda each: each[1].retriable or each[1].code is _STALE_EPOCH)
        return next((error.code for _, error in staying_first), ErrorCode.NONE), dict(staying_first)

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the committed offsets; partitions without one are left out.

        Waits for open transactions with offsets of the group, whatever the isolation of records: an offset before them
        would lead to records that they have processed (KIP-447).

        Raises:
            OffsetsUnknownError: the coordinator answered for partitions with an error; it has the others.
            KafkaError: the coordinator answered with an error.
            trio.TooSlowError: the deadline has passed.
        """
        deadline_ms = self._client.now_ms + self._api_timeout_ms
        found: dict[TopicPartition, CommittedOffset] = {}
        errors: dict[TopicPartition, KafkaError] = {}  # those that another attempt would find again
        left = list(partitions)
        failures, clusters_left = 0, self._client.clusters_left
        while True:
            if clusters_left != self._client.clusters_left:  # what was found means other records now
                clusters_left, left, found, errors = self._client.clusters_left, list(partitions), {}, {}
            retried: dict[TopicPartition, KafkaError] = {}
            try:
                code, offsets, refused = await self._committed_once(left, deadline_ms)
            except TRANSPORT_ERRORS as error:
                self._client.logger.info("committed-unanswered", group=self._group_id, error=error)
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            else:
                found |= offsets
                for partition, each in refused.items():
                    (retried if each.retriable else errors)[partition] = each
            if code is ErrorCode.NONE and not retried:
                if errors:
                    raise OffsetsUnknownError(self._group_id, errors, found)
                return found
            if code in _COORDINATOR_CODES:
                self._forget_coordinator()
            elif code is not ErrorCode.NONE and not code.retriable:
                raise KafkaError(code, f"group {self._group_id}: {code.message}")
            failures += 1
            if self._client.now_ms >= deadline_ms:
                names = ", ".join(f"{partition}: {each.code.name}" for partition, each in (errors | retried).items())
                raise trio.TooSlowError(
                    f"group {self._group_id}: committed offsets did not come in time ({names or code.name})"
                )
            if code is ErrorCode.NONE:
                left = list(retried)
            await self._client.backoff(failures)

    async def _committed_once(
        self, partitions: Sequence[TopicPartition], deadline_ms: float
    ) -> tuple[ErrorCode, dict[TopicPartition, CommittedOffset], dict[TopicPartition, KafkaError]]:
        """Returns the error of the whole group, the committed offsets, and the errors of single partitions."""
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        request = OffsetFetchRequest(
            group_id=self._group_id,
            topics=[
                OffsetFetchRequestTopic(name=topic, partition_indexes=numbers) for topic, numbers in topics.items()
            ],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=self._group_id,
                    topics=[
                        OffsetFetchRequestTopics(name=topic, partition_indexes=numbers)
                        for topic, numbers in topics.items()
                    ],
                )
            ],
            require_stable=True,
        )
        response = await self._request(OffsetFetchResponse, request, deadline_ms, version=_FETCH_VERSION_MAX)
        return committed_offsets(self._group_id, partitions, response)
