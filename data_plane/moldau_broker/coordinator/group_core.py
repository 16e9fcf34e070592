"""The group coordinator of one partition of ``__consumer_offsets``, as a pure replicated core.

Theory of operation. Durable state (committed offsets, and the last written generation of each group) is a function of
the committed log: `replay` is its only mutator, called for every record while the partition is loaded and again for
each own write when it is committed. A request is checked against the state, its records become an `Append`, and its
answer is held back until the append is committed (`committed`) or known to have failed (`failed`). Nothing is visible
before it is committed, and nothing that a client was told can be lost with the coordinator.

Soft state (members, sessions, requests that wait) lives in `membership` and dies with the leadership.

A write whose commit takes longer than ``offsets.commit.timeout.ms`` is answered with an error, but stays in the
queue: it may be committed yet, and then is replayed at its place. The client will find out by reading, or write again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau_broker.coordinator.effects import Answer, Append, Effect, Marker, TransactionalProducer
from moldau_broker.coordinator.gone_offsets import GoneOffsets, is_gone
from moldau_broker.coordinator.group import Group, GroupState
from moldau_broker.coordinator.group_records import GroupRecord, OffsetRecord, group_record, offset_record, parse_record
from moldau_broker.coordinator.membership import Membership
from moldau_broker.coordinator.offset_requests import (
    check_commit,
    commit_records,
    delete_offsets,
    failed_codes,
    fetch_offsets,
)
from moldau_broker.coordinator.offsets import OffsetStore
from moldau_broker.coordinator.pending import AssignmentWritten, GoneRemoved, PendingWrite, Reply, StaticMemberWritten
from moldau_broker.coordinator.responses import client_error, commit_answer, refusal, txn_commit_answer
from moldau_broker.coordinator.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moldau.protocol.field import Buffer
    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.effects import Moment, RequestContext, StateRecord
    from moldau_broker.coordinator.group_config import GroupConfig
    from moldau_broker.coordinator.pending import Continuation
    from moldau_broker.coordinator.ports import TopicNames

_WRITING = (
    JoinGroupRequest,
    SyncGroupRequest,
    OffsetCommitRequest,
    TxnOffsetCommitRequest,
    OffsetDeleteRequest,
    DeleteGroupsRequest,
)
_COMMIT = "commit"
_EXPIRY = ("expiry",)
_GONE = ("gone",)


class GroupCore:
    """One partition's coordinator. All methods but `replay` return effects, in the order in which to perform them.

    Invariants: ids of pending writes grow; every request id taken in is answered once.
    """

    def __init__(self, config: GroupConfig, topics: TopicNames) -> None:
        """Nothing loaded yet. ``topics`` are those that exist at the moment of a call."""
        self.membership = Membership(config, self)
        self.offsets = OffsetStore()
        self._config = config
        self._topics = topics
        self._gone = GoneOffsets(self.offsets, topics)
        self._written_groups: dict[str, GroupMetadataValue] = {}
        """The last committed record of each group."""
        self._pending: dict[int, PendingWrite] = {}
        self._next_append_id = 0
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects: list[Effect] = []
        self.unreadable_records = 0
        """Records of the log that could not be parsed; a newer or a broken coordinator wrote them."""

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

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Applies the committed end of a producer's transaction."""
        self.offsets.replay_marker(producer_id, commit)

    def start(self, moment: Moment) -> list[Effect]:
        """The log is loaded: groups come to life, with sessions that begin now."""
        for group_id, value in self._written_groups.items():
            self.membership.load(Group.load(group_id, value), moment)
        self._deadlines.set(_EXPIRY, moment.now_ms + self._config.offsets_retention_check_interval_ms)
        self._gone.look(())
        self._remove_gone(moment)
        return self._take()

    def topics_deleted(self, names: Collection[str], moment: Moment) -> list[Effect]:
        """The deletion of topics is observed; others may have their names by now. Removes their offsets, also those
        of open transactions, as Kafka does."""
        self._gone.look(self._in_flight(), names)
        self._remove_gone(moment)
        return self._take()

    def committed(self, append_id: int, moment: Moment) -> list[Effect]:
        """A write is committed, and with it all before it. Replays it, then tells its outcome."""
        assert append_id in self._pending, f"write {append_id} is not pending"
        while self._pending:
            pending = next(iter(self._pending.values()))
            if pending.append_id > append_id:
                break
            producer_id = None if pending.producer is None else pending.producer.producer_id
            for key, value in pending.records:
                self.replay(key, value, producer_id)
            if pending.marker is not None:
                self.replay_marker(pending.marker.producer.producer_id, pending.marker.commit)
            del self._pending[pending.append_id]
            self._settle(pending, ErrorCode.NONE, moment)
        return self._take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """The log refused a write; nothing of it will ever be committed. ``code`` is the log's."""
        pending = self._pending.pop(append_id)
        self._settle(pending, client_error(code), moment)
        return self._take()

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Leadership is lost: answers everything that waits. The core must not be used afterwards."""
        self.membership.resign(code)
        for pending in list(self._pending.values()):
            if not isinstance(pending.then, AssignmentWritten):
                self._settle(pending, code, moment)
        self._pending.clear()
        return self._take()

    def _settle(self, pending: PendingWrite, code: ErrorCode, moment: Moment) -> None:
        """Tells the outcome of a write, once."""
        then = pending.then
        pending.then = None
        self._deadlines.cancel((_COMMIT, str(pending.append_id)))
        if isinstance(then, Reply):
            self.answer(then.request_id, then.respond(code))
        elif isinstance(then, AssignmentWritten):
            self.membership.assignment_written(then, pending.append_id, code, moment)
        elif isinstance(then, StaticMemberWritten):
            self.membership.static_member_written(then, code)
        elif isinstance(then, GoneRemoved) and code is not ErrorCode.NONE:
            self._gone.put_back(then.keys)
            self._deadlines.set(_GONE, moment.now_ms + self._config.gone_offsets_retry_ms)

    # Effects

    def answer(self, request_id: int, response: Response) -> None:
        """Collects an answer (called by `membership`)."""
        self._effects.append(Answer(request_id=request_id, response=response))

    def write(self, records: tuple[StateRecord, ...], then: Continuation | None, moment: Moment) -> int:
        """Collects a write (called by `membership`)."""
        return self._append(records, then, moment)

    def _append(
        self,
        records: tuple[StateRecord, ...],
        then: Continuation | None,
        moment: Moment,
        producer: TransactionalProducer | None = None,
        marker: Marker | None = None,
    ) -> int:
        append_id = self._next_append_id
        self._next_append_id += 1
        self._pending[append_id] = PendingWrite(
            append_id=append_id, records=records, producer=producer, marker=marker, then=then
        )
        if then is not None:
            self._deadlines.set((_COMMIT, str(append_id)), moment.now_ms + self._config.commit_timeout_ms)
        self._effects.append(Append(append_id=append_id, records=records, producer=producer, marker=marker))
        return append_id

    def _take(self) -> list[Effect]:
        effects = self._effects
        self._effects = []
        return effects

    # Time

    def next_deadline_ms(self) -> int | None:
        """When `on_timer` has to be called next."""
        times = [time for time in (self._deadlines.next_ms(), self.membership.deadlines.next_ms()) if time is not None]
        return min(times, default=None)

    def on_timer(self, moment: Moment) -> list[Effect]:
        """Performs what is due."""
        while (key := self._deadlines.pop_due(moment.now_ms)) is not None:
            if key == _EXPIRY:
                self._expire(moment)
                self._deadlines.set(_EXPIRY, moment.now_ms + self._config.offsets_retention_check_interval_ms)
            elif key == _GONE:
                self._remove_gone(moment)
            else:
                self._settle(self._pending[int(key[1])], client_error(ErrorCode.REQUEST_TIMED_OUT), moment)
        self.membership.on_timer(moment)
        return self._take()

    # Requests

    def handle(self, request_id: int, request: Request, context: RequestContext, moment: Moment) -> list[Effect]:
        """Takes in a request about groups of this partition; its answer is among these effects or later ones.

        FindCoordinator and requests about several groups are split by the shell: DescribeGroups, DeleteGroups and
        ListGroups come with the groups of this partition only; OffsetFetch goes through `fetch`.
        """
        if isinstance(request, _WRITING) and len(self._pending) >= self._config.appends_pending_max:
            self.answer(request_id, refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, context.version))
            return self._take()
        if isinstance(request, JoinGroupRequest):
            self.membership.join(request_id, request, context, moment)
        elif isinstance(request, SyncGroupRequest):
            self.membership.sync(request_id, request, context, moment)
        elif isinstance(request, HeartbeatRequest):
            self.answer(request_id, self.membership.heartbeat(request, moment))
        elif isinstance(request, LeaveGroupRequest):
            self.answer(request_id, self.membership.leave(request, context, moment))
        elif isinstance(request, OffsetCommitRequest):
            self._commit(request_id, request, moment)
        elif isinstance(request, TxnOffsetCommitRequest):
            self._commit_in_transaction(request_id, request, moment)
        elif isinstance(request, OffsetDeleteRequest):
            self._delete_offsets(request_id, request, moment)
        elif isinstance(request, DeleteGroupsRequest):
            self._delete_groups(request_id, request, moment)
        elif isinstance(request, DescribeGroupsRequest):
            groups = [self._describe(group_id, context.version) for group_id in request.groups]
            self.answer(request_id, DescribeGroupsResponse(groups=groups))
        elif isinstance(request, ListGroupsRequest):
            self.answer(request_id, ListGroupsResponse(groups=self._list(request)))
        elif isinstance(request, OffsetFetchRequest):
            answers = [self.fetch(group, request.require_stable) for group in request.groups]
            self.answer(request_id, OffsetFetchResponse(groups=answers))
        else:
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")
        return self._take()

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """The committed offsets of one group."""
        return fetch_offsets(self.offsets, request, require_stable, partial(is_gone, self._topics))

    def complete_transaction(self, request_id: int, marker: Marker, reply: Reply, moment: Moment) -> list[Effect]:
        """Writes the end of a producer's transaction; offsets it committed take effect with the commit of the
        marker."""
        assert reply.request_id == request_id
        self._append((), reply, moment, marker=marker)
        return self._take()

    def _commit(self, request_id: int, request: OffsetCommitRequest, moment: Moment) -> None:
        code = check_commit(self.membership, request, moment)
        if code is not ErrorCode.NONE:
            self.answer(request_id, commit_answer(request, [[code] * len(t.partitions) for t in request.topics]))
            return
        records, codes = commit_records(request, self._config, self._topics, moment)
        self._reply_when_written(
            request_id, records, lambda failure: commit_answer(request, failed_codes(codes, failure)), moment, None
        )

    def _commit_in_transaction(self, request_id: int, request: TxnOffsetCommitRequest, moment: Moment) -> None:
        code = check_commit(self.membership, request, moment)
        if code is not ErrorCode.NONE:
            self.answer(request_id, txn_commit_answer(request, [[code] * len(t.partitions) for t in request.topics]))
            return
        records, codes = commit_records(request, self._config, self._topics, moment)
        producer = TransactionalProducer(producer_id=request.producer_id, producer_epoch=request.producer_epoch)
        self._reply_when_written(
            request_id,
            records,
            lambda failure: txn_commit_answer(request, failed_codes(codes, failure)),
            moment,
            producer,
        )

    def _reply_when_written(
        self,
        request_id: int,
        records: tuple[StateRecord, ...],
        respond: Callable[[ErrorCode], Response],
        moment: Moment,
        producer: TransactionalProducer | None,
    ) -> None:
        if not records:
            self.answer(request_id, respond(ErrorCode.NONE))
            return
        self._append(records, Reply(request_id=request_id, respond=respond), moment, producer)

    def _delete_offsets(self, request_id: int, request: OffsetDeleteRequest, moment: Moment) -> None:
        group = self.membership.groups.get(request.group_id)
        code, records, response = delete_offsets(group, self.offsets, request)
        if code is not ErrorCode.NONE:
            self.answer(request_id, OffsetDeleteResponse(error_code=code))
            return
        self._reply_when_written(
            request_id,
            records,
            lambda failure: response if failure is ErrorCode.NONE else OffsetDeleteResponse(error_code=failure),
            moment,
            None,
        )

    def _delete_groups(self, request_id: int, request: DeleteGroupsRequest, moment: Moment) -> None:
        records: list[StateRecord] = []
        codes: dict[str, ErrorCode] = {}
        for group_id in request.groups_names:
            codes[group_id] = self._deletable(group_id)
            if codes[group_id] is ErrorCode.NONE:
                records += self._tombstones(group_id)
                group = self.membership.groups.get(group_id)
                if group is not None:
                    self.membership.forget(group)

        def respond(failure: ErrorCode) -> DeleteGroupsResponse:
            results = [
                DeletableGroupResult(group_id=name, error_code=failure if code is ErrorCode.NONE else code)
                for name, code in codes.items()
            ]
            return DeleteGroupsResponse(results=results)

        self._reply_when_written(request_id, tuple(records), respond, moment, None)

    def _deletable(self, group_id: str) -> ErrorCode:
        group = self.membership.groups.get(group_id)
        if group is None:
            known = bool(self.offsets.committed(group_id))
            return ErrorCode.NONE if known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _tombstones(self, group_id: str) -> list[StateRecord]:
        """Everything the log holds of a group, undone; also what is on its way there and will be before the
        tombstones."""
        keys = dict.fromkeys(self.offsets.committed(group_id))
        for record in self._in_flight():
            if record.group_id == group_id and record.committed is not None:
                keys[record.topic, record.partition] = None
        records = [offset_record(group_id, topic, partition, None) for topic, partition in keys]
        return [*records, group_record(group_id, None)]

    def _in_flight(self) -> list[OffsetRecord]:
        """Offsets that are written but not committed yet."""
        parsed = [parse_record(*record) for pending in self._pending.values() for record in pending.records]
        return [record for record in parsed if isinstance(record, OffsetRecord)]

    def _state(self, group_id: str) -> GroupState:
        group = self.membership.groups.get(group_id)
        if group is not None:
            return group.state
        return GroupState.EMPTY if self.offsets.committed(group_id) else GroupState.DEAD

    def _describe(self, group_id: str, version: int) -> DescribedGroup:
        group = self.membership.groups.get(group_id)
        state = self._state(group_id)
        if state is GroupState.DEAD and version >= 6:
            return DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
                group_id=group_id,
                group_state=state.value,
            )
        if group is None:
            return DescribedGroup(group_id=group_id, group_state=state.value)
        stable = group.state is GroupState.STABLE
        members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ]
        return DescribedGroup(
            group_id=group_id,
            group_state=state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol_name or "") if stable else "",
            members=members,
        )

    def _list(self, request: ListGroupsRequest) -> list[ListedGroup]:
        """Groups with members, and those that only have offsets; filters compare as Kafka does, without regard to
        case."""
        states = {name.lower() for name in request.states_filter}
        types = {name.lower() for name in request.types_filter}
        if types and "classic" not in types:
            return []
        names = sorted({*self.membership.groups, *self.offsets.group_ids()})
        listed: list[ListedGroup] = []
        for group_id in names:
            state = self._state(group_id)
            group = self.membership.groups.get(group_id)
            if not states or state.value.lower() in states:
                protocol_type = (group.protocol_type or "") if group is not None else ""
                listed.append(
                    ListedGroup(
                        group_id=group_id, protocol_type=protocol_type, group_state=state.value, group_type="classic"
                    )
                )
        return listed

    # Deleted topics, and expiry

    def _remove_gone(self, moment: Moment) -> None:
        """Writes one batch of tombstones for offsets of deleted topics; what is left comes later."""
        records, keys = self._gone.take(self._in_flight(), self._config.expired_batch_records_max)
        if records:
            self._append(records, GoneRemoved(keys=keys), moment)
        if len(self._gone):
            wait_ms = 1 if records else self._config.gone_offsets_retry_ms
            self._deadlines.set(_GONE, moment.now_ms + wait_ms)

    def _expire(self, moment: Moment) -> None:
        """Writes tombstones for offsets that outlived their retention, and for groups that have nothing left
        (KIP-211)."""
        records: list[StateRecord] = []
        limit = self._config.expired_batch_records_max
        # A tombstone would come after a commit that is on its way, and undo it: such groups wait for the next round.
        busy = {record.group_id for record in self._in_flight()}
        for group_id in sorted({*self.membership.groups, *self.offsets.group_ids()}):
            if len(records) >= limit:
                break
            if group_id in busy:
                continue
            records += self._expired_of(group_id, moment)
        for first in range(0, len(records), limit):
            self._append(tuple(records[first : first + limit]), None, moment)

    def _expired_of(self, group_id: str, moment: Moment) -> list[StateRecord]:
        group = self.membership.groups.get(group_id)
        idle_since: int | None = None
        if group is not None and not group.is_simple:
            if group.state is not GroupState.EMPTY:
                return self._expired_unread(group, moment)
            idle_since = group.state_since_ms
        retention = self._config.offsets_retention_ms
        expired = list(self.offsets.expired(group_id, moment.wall_ms, retention, idle_since))
        records = [offset_record(group_id, topic, partition, None) for topic, partition in expired]
        nothing_left = len(expired) == len(self.offsets.committed(group_id)) and not self.offsets.has_pending(group_id)
        if nothing_left and (group is None or (group.state is GroupState.EMPTY and not group.pending_members)):
            if group_id in self._written_groups:
                records.append(group_record(group_id, None))
            if group is not None:
                self.membership.forget(group)
        return records

    def _expired_unread(self, group: Group, moment: Moment) -> list[StateRecord]:
        """Of a live consumer group only offsets of topics that no member reads may expire."""
        if group.protocol_type != "consumer" or group.state is not GroupState.STABLE:
            return []
        expired = self.offsets.expired(group.group_id, moment.wall_ms, self._config.offsets_retention_ms, None)
        return [
            offset_record(group.group_id, topic, partition, None)
            for topic, partition in expired
            if not group.is_subscribed(topic)
        ]
