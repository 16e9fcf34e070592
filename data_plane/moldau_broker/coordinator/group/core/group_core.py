"""The replicated core of the group coordinator of one partition of ``__consumer_offsets``. Pure.

Theory of operation. Durable state (committed offsets, and the last written generation of each group) is a function of
the committed log. `replay` is its only mutator; it is called for every record while the partition is loaded, and for
each write of this core when it is committed. A request is checked against the state, its records become an `Append`,
and its answer waits until the append is committed (`committed`) or has failed (`failed`). So clients see committed
state only, and a failover loses nothing that a client has seen.

Soft state (members of classic groups, sessions, open requests) belongs to `rebalancer` and ends with the leadership.
`membership` checks the requests of classic members, `consumers` serves the consumer groups (KIP-848), whose members are
durable. All put their effects into one `EffectQueue`, which the core hands out after each event.

A write whose commit takes longer than ``offsets.commit.timeout.ms`` is answered with an error but stays pending: it
may still be committed, and is then replayed in its place. The client has to read its offsets, or commit again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.consumer.core import offset_checks, views
from moldau_broker.coordinator.group.consumer.core.groups import ConsumerGroups
from moldau_broker.coordinator.group.consumer.core.heartbeat import HeartbeatDecisions
from moldau_broker.coordinator.group.core.classic_side import ClassicSide
from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
from moldau_broker.coordinator.group.core.group_views import (
    CONSUMER_TYPE,
    described,
    listed,
    listed_of_type,
    not_classic,
)
from moldau_broker.coordinator.group.core.member_memory import MemberMemory
from moldau_broker.coordinator.group.core.membership import Membership
from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.core.offsets.gone import GoneOffsets
from moldau_broker.coordinator.group.core.offsets.requests import (
    check_commit,
    commit_records,
    failed_codes,
    fetch_offsets,
)
from moldau_broker.coordinator.group.core.rebalance import Rebalancer
from moldau_broker.coordinator.group.core.records import (
    GroupRecord,
    OffsetRecord,
    parse_record,
)
from moldau_broker.coordinator.group.core.removals import Removals
from moldau_broker.coordinator.group.core.responses import (
    client_error,
    commit_answer,
    fetch_refusal,
    txn_commit_answer,
)
from moldau_broker.coordinator.group.share.core.groups import ShareGroups
from moldau_broker.coordinator.group.share.core.heartbeat import ShareDecisions
from moldau_broker.coordinator.group.share.core.neighbours import GroupTypes
from moldau_broker.coordinator.group.share.core.state import SHARE_CHANGES, SHARE_TYPE
from moldau_broker.coordinator.group.streams.core import offset_checks as streams_checks
from moldau_broker.coordinator.group.streams.core.groups import StreamsGroups
from moldau_broker.coordinator.group.streams.core.heartbeat import StreamsDecisions
from moldau_broker.coordinator.group.streams.core.state import STREAMS_CHANGES, STREAMS_TYPE
from moldau_broker.coordinator.runtime.effects import TransactionalProducer
from moldau_broker.coordinator.runtime.pending import (
    AssignmentWritten,
    GoneRemoved,
    PartRemoved,
    Reply,
    StaticMemberWritten,
)
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.schema import Request, Response
    from moldau.values import Buffer
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue, Compile
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.served_groups import GroupsOfType
    from moldau_broker.coordinator.runtime.effects import Effect, Marker, Moment, RequestContext
    from moldau_broker.coordinator.runtime.pending import PendingWrite

_WRITING = (
    ShareGroupHeartbeatRequest,
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    StreamsGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
    OffsetCommitRequest,
    TxnOffsetCommitRequest,
    OffsetDeleteRequest,
    DeleteGroupsRequest,
)
_EXPIRY = ("expiry",)
_GONE = ("gone",)


class GroupCore:
    """The coordinator of one partition. Events return effects, in the order in which to perform them.

    Invariant: every request id is answered once.
    """

    def __init__(
        self, config: GroupConfig, catalogue: Catalogue, compile_regex: Compile, memory: MemberMemory | None = None
    ) -> None:
        """Starts with nothing loaded.

        Args:
            config: limits.
            catalogue: the topics and settings at the moment of a call.
            compile_regex: compiles the regular expressions of subscriptions.
            memory: counts the members of all partitions of the broker.
        """
        self._memory = memory if memory is not None else MemberMemory()
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects = EffectQueue(config.commit_timeout_ms, self._deadlines)
        self.rebalancer = Rebalancer(config, self._effects)
        self._written_groups: dict[str, GroupMetadataValue] = {}
        """The last committed record of each classic group."""
        self.membership = Membership(config, self.rebalancer, self._effects, self._memory, self._written_groups)
        self.offsets = OffsetStore()
        self._config = config
        self._catalogue = catalogue
        self._gone = GoneOffsets(self.offsets, catalogue)
        self._classic = ClassicSide(self.rebalancer, self.membership, self._effects, self._memory, self._written_groups)
        decisions = HeartbeatDecisions(config, catalogue, compile_regex)
        self.consumers = ConsumerGroups(config, self._effects, decisions, catalogue, self._memory, self._classic)
        self.shares = ShareGroups(config, self._effects, ShareDecisions(config, catalogue), catalogue, self._memory)
        self.streams = StreamsGroups(
            config, self._effects, StreamsDecisions(config, catalogue), self._memory, self._classic
        )
        self._all: tuple[GroupsOfType[Any, Any], ...] = (self.consumers, self.shares, self.streams)
        """The groups whose members are in the log, type by type, in the order in which they hear of events."""
        self._types = GroupTypes(
            self.shares,
            self.consumers,
            self.streams,
            self.rebalancer,
            self.offsets,
            self._effects,
            self._written_groups,
            catalogue,
        )
        self._removals = Removals(
            config,
            self._effects,
            self.rebalancer,
            (self.consumers, self.streams),
            self.offsets,
            self._written_groups,
            catalogue,
        )
        self.unreadable_records = 0
        """Counts records that could not be parsed; a newer or a broken coordinator wrote them."""

    # The log

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int | None = None) -> None:
        """Applies one committed record. ``producer_id`` is that of a transactional batch, else None."""
        try:
            record = parse_record(key, value)
        except DecodeError:
            self.unreadable_records += 1
            return
        if isinstance(record, OffsetRecord):
            self.offsets.replay_offset(record, producer_id)
        elif isinstance(record, GroupRecord):
            if record.value is None:
                self._written_groups.pop(record.group_id, None)
            else:
                self._written_groups[record.group_id] = record.value
        elif isinstance(record, SHARE_CHANGES):
            self.shares.replay(record)
        elif isinstance(record, STREAMS_CHANGES):
            self.streams.replay(record)
        elif record is not None:
            self.consumers.replay(record)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Applies the committed end of a producer's transaction."""
        self.offsets.replay_marker(producer_id, commit)

    def start(self, moment: Moment) -> list[Effect]:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for group_id in self._written_groups:
            self._classic.begin(group_id, moment)
        for groups in self._all:
            groups.start(moment)
        self._deadlines.set(_EXPIRY, moment.now_ms + self._config.offsets_retention_check_interval_ms)
        self._gone.look(())
        self._remove_gone(moment)
        return self._effects.take()

    def topics_deleted(self, names: Collection[str], moment: Moment) -> list[Effect]:
        """Removes the offsets of deleted topics, also those of open transactions, as Kafka does.

        Topics created since may have the same names.
        """
        self._gone.look(self._effects.offsets_in_flight(), names)
        self._remove_gone(moment)
        self.shares.topics_deleted(moment)
        return self._effects.take()

    def share_state_answered(self, question_id: int, response: Response, moment: Moment) -> list[Effect]:
        """Goes on after the answer of share coordinators to an `AskShareState`."""
        self.shares.share_state_answered(question_id, response, moment)
        return self._effects.take()

    def topics_created(self, group_id: str, errors: Mapping[str, ErrorCode], moment: Moment) -> list[Effect]:
        """Goes on after the outcome of a `CreateTopics`."""
        self.streams.topics_created(group_id, errors, moment)
        return self._effects.take()

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """Replays a committed write and all writes before it, and delivers their outcomes."""
        assert append_id in self._effects.pending, f"write {append_id} is not pending"
        while self._effects.pending:
            pending = next(iter(self._effects.pending.values()))
            if pending.append_id > append_id:
                break
            producer_id = None if pending.producer is None else pending.producer.producer_id
            for key, value in pending.records:
                self.replay(key, value, producer_id)
            if pending.marker is not None:
                self.replay_marker(pending.marker.producer.producer_id, pending.marker.commit)
            del self._effects.pending[pending.append_id]
            self._deliver(pending, ErrorCode.NONE, moment)
            for groups in self._all:
                groups.written(pending.append_id, moment)
        return self._effects.take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Delivers the failure of a write that will never be committed; ``code`` is that of the log."""
        pending = self._effects.pending.pop(append_id)
        self._deliver(pending, client_error(code), moment)
        for groups in self._all:
            groups.written(append_id, moment, failed=True)
        return self._effects.take()

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Answers all open requests after leadership is lost. The core must not be used afterwards."""
        self.rebalancer.resign(code)
        for pending in list(self._effects.pending.values()):
            if not isinstance(pending.then, AssignmentWritten):
                self._deliver(pending, code, moment)
        self._effects.pending.clear()
        for groups in self._all:
            groups.resign(code)
        self._classic.resign()
        return self._effects.take()

    def _deliver(self, pending: PendingWrite, code: ErrorCode, moment: Moment) -> None:
        """Delivers the outcome of a write, once."""
        then = pending.then
        pending.then = None
        self._effects.cancel_deadline(pending)
        for groups in self._all:
            groups.answer_write(pending.append_id, code)
        if isinstance(then, Reply):
            self._effects.answer(then.request_id, then.respond(code))
        elif isinstance(then, AssignmentWritten):
            self.rebalancer.assignment_written(then, pending.append_id, code, moment)
        elif isinstance(then, StaticMemberWritten):
            self.rebalancer.static_member_written(then, code)
        elif isinstance(then, PartRemoved) and code is not ErrorCode.NONE:
            then.failures.append(code)
        elif isinstance(then, GoneRemoved) and code is ErrorCode.NONE:
            self._gone.written(then.keys)
        elif isinstance(then, GoneRemoved):
            self._gone.put_back(then.keys)
            self._deadlines.set(_GONE, moment.now_ms + self._config.gone_offsets_retry_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        sources = (self._deadlines, self.rebalancer.deadlines, *(groups.deadlines for groups in self._all))
        return min([time for each in sources if (time := each.next_ms()) is not None], default=None)

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Performs what is due."""
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == _EXPIRY:
                self._deadlines.set(_EXPIRY, moment.now_ms + self._removals.expire(moment))
            elif key == _GONE:
                self._remove_gone(moment)
            else:
                self._deliver(self._effects.pending[int(key[1])], client_error(ErrorCode.REQUEST_TIMED_OUT), moment)
        self.rebalancer.on_timer(moment)
        for groups in self._all:
            groups.on_timer(moment)
        return self._effects.take()

    # Requests

    def handle(self, request_id: int, request: Request, context: RequestContext, moment: Moment) -> list[Effect]:
        """Handles a request about groups of this partition; its answer is among these effects or later ones.

        The shell answers FindCoordinator and splits requests about several groups: DescribeGroups, DeleteGroups and
        ListGroups name groups of this partition only. The shell serves OffsetFetch through `fetch`.
        """
        if isinstance(request, _WRITING) and len(self._effects.pending) >= self._config.appends_pending_max:
            refused = refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, version=context.version)
            self._effects.answer(request_id, refused)
            return self._effects.take()
        misplaced = self._types.misplaced(request, context.version, moment)
        if misplaced is not None:
            self._effects.answer(request_id, misplaced)
        elif isinstance(request, ShareGroupHeartbeatRequest):
            self.shares.heartbeat(request_id, request, context, moment)
        elif isinstance(request, AlterShareGroupOffsetsRequest | DeleteShareGroupOffsetsRequest):
            self.shares.administrate(request_id, request.group_id, request, context.version, moment)
        elif isinstance(request, DeleteGroupsRequest) and any(map(self.shares.has, request.groups_names)):
            (name,) = request.groups_names  # the shell asks for the deletion of one group at a time
            self.shares.administrate(request_id, name, request, context.version, moment)
        elif isinstance(request, ShareGroupDescribeRequest):
            shares = [self._types.described(name) for name in request.group_ids]
            self._effects.answer(request_id, ShareGroupDescribeResponse(groups=shares))
        elif isinstance(request, ConsumerGroupHeartbeatRequest):
            self.consumers.heartbeat(request_id, request, context, moment)
        elif isinstance(request, StreamsGroupHeartbeatRequest):
            self.streams.heartbeat(request_id, request, context, moment)
        elif isinstance(request, StreamsGroupDescribeRequest):
            streams = [self._types.described_streams(name, request) for name in request.group_ids]
            self._effects.answer(request_id, StreamsGroupDescribeResponse(groups=streams))
        elif isinstance(request, JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest):
            if self.consumers.serves_classic(request.group_id):
                self.consumers.classic_request(request_id, request, context, moment)
            else:
                self._classic.serve(request_id, request, context, moment)
        elif isinstance(request, OffsetCommitRequest):
            self._commit(request_id, request, context, moment)
        elif isinstance(request, TxnOffsetCommitRequest):
            self._commit_in_transaction(request_id, request, context, moment)
        elif isinstance(request, OffsetDeleteRequest):
            self._removals.delete_offsets(request_id, request, moment)
        elif isinstance(request, DeleteGroupsRequest):
            self._removals.delete_groups(request_id, request, moment)
        elif isinstance(request, DescribeGroupsRequest):
            groups = [self._described(name, context.version) for name in request.groups]
            self._effects.answer(request_id, DescribeGroupsResponse(groups=groups))
        elif isinstance(request, ConsumerGroupDescribeRequest):
            self._effects.answer(request_id, self._describe_consumer_groups(request))
        elif isinstance(request, ListGroupsRequest):
            consumers, streams_groups = self.consumers.committed, self.streams.committed
            others = [name for name in self.offsets.group_ids() if name not in consumers and name not in streams_groups]
            found = listed(request, self._classic.shown(), others)
            found += listed_of_type(request, consumers.values(), CONSUMER_TYPE)
            found += listed_of_type(request, streams_groups.values(), STREAMS_TYPE)
            found += listed_of_type(request, self.shares.committed.values(), SHARE_TYPE)
            self._effects.answer(request_id, ListGroupsResponse(groups=found))
        elif isinstance(request, OffsetFetchRequest):
            answers = [self.fetch(group, request.require_stable) for group in request.groups]
            self._effects.answer(request_id, OffsetFetchResponse(groups=answers))
        else:
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")
        return self._effects.take()

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Returns the committed offsets of one group."""
        if self.shares.get(request.group_id) is not None:
            return fetch_refusal(request.group_id, ErrorCode.GROUP_ID_NOT_FOUND)
        group = self.consumers.get(request.group_id)
        code = ErrorCode.NONE if group is None else offset_checks.check_fetch(group, request)
        streams = self.streams.get(request.group_id)
        if streams is not None:
            code = streams_checks.check_fetch(streams, request)
        if code is not ErrorCode.NONE:
            return fetch_refusal(request.group_id, code)
        return fetch_offsets(self.offsets, request, require_stable, self._gone.is_gone)

    def complete_transaction(self, request_id: int, marker: Marker, reply: Reply, moment: Moment) -> list[Effect]:
        """Writes the marker of a producer's transaction; its offsets take effect when the marker is committed."""
        assert reply.request_id == request_id
        if len(self._effects.pending) >= self._config.appends_pending_max:
            self._effects.answer(request_id, reply.respond(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._effects.append((), reply, moment, marker=marker)
        return self._effects.take()

    def _described(self, name: str, version: int) -> DescribedGroup:
        if any(groups.get(name) is not None for groups in self._all):
            return not_classic(name, version)
        return described(name, self._classic.shown().get(name), self.offsets.has_group(name), version)

    def _describe_consumer_groups(self, request: ConsumerGroupDescribeRequest) -> ConsumerGroupDescribeResponse:
        groups = [(name, self.consumers.get(name)) for name in request.group_ids]
        return ConsumerGroupDescribeResponse(
            groups=[
                views.described(
                    name,
                    group,
                    "" if group is None else self.consumers.assignor_of(group),
                    self._catalogue,
                    is_other=group is None and self._types.has_any(name),
                )
                for name, group in groups
            ]
        )

    def _check_commit(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest, context: RequestContext, moment: Moment
    ) -> ErrorCode:
        streams = self.streams.latest(request.group_id)
        if streams is not None:
            return streams_checks.check_commit(streams, request, context.version)
        group = self.consumers.for_commits(request.group_id)
        if group is not None:
            return offset_checks.check_commit(group, request, context.version)
        code = check_commit(self.membership, request, moment)
        if code is ErrorCode.ILLEGAL_GENERATION and request.group_id not in self.membership.groups:
            transactional = isinstance(request, TxnOffsetCommitRequest)
            knows = transactional and offset_checks.knows_member_epochs(request, context.version)
            return ErrorCode.GROUP_ID_NOT_FOUND if knows else code
        return code

    def _commit(self, request_id: int, request: OffsetCommitRequest, context: RequestContext, moment: Moment) -> None:
        code = self._check_commit(request, context, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(
                request_id, commit_answer(request, [[code] * len(t.partitions) for t in request.topics])
            )
            return
        records, codes = commit_records(request, context.version, self._config, self._catalogue, moment)
        self._effects.reply_when_written(
            request_id, records, lambda failure: commit_answer(request, failed_codes(codes, failure)), moment
        )

    def _commit_in_transaction(
        self, request_id: int, request: TxnOffsetCommitRequest, context: RequestContext, moment: Moment
    ) -> None:
        code = self._check_commit(request, context, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(
                request_id, txn_commit_answer(request, [[code] * len(t.partitions) for t in request.topics])
            )
            return
        records, codes = commit_records(request, context.version, self._config, self._catalogue, moment)
        producer = TransactionalProducer(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
        self._effects.reply_when_written(
            request_id,
            records,
            lambda failure: txn_commit_answer(request, failed_codes(codes, failure)),
            moment,
            producer,
        )

    # Deleted topics

    def _remove_gone(self, moment: Moment) -> None:
        """Writes one batch of tombstones for offsets of deleted topics, and schedules the next batch."""
        records, keys = self._gone.take(self._effects.offsets_in_flight(), self._config.expired_batch_records_max)
        if records:
            self._effects.append(records, GoneRemoved(keys=keys), moment)
        if len(self._gone):
            wait_ms = 1 if records else self._config.gone_offsets_retry_ms
            self._deadlines.set(_GONE, moment.now_ms + wait_ms)
