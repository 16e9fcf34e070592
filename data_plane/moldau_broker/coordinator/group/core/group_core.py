"""The replicated core of the group coordinator of one partition of ``__consumer_offsets``. Pure.

Theory of operation. Durable state (committed offsets, and the last written generation of each group) is a function of
the committed log. `replay` is its only mutator; it is called for every record while the partition is loaded, and for
each write of this core when it is committed. A request is checked against the state, its records become an `Append`,
and its answer waits until the append is committed (`committed`) or has failed (`failed`). So clients see committed
state only, and a failover loses nothing that a client has seen.

Soft state (members, sessions, open requests) belongs to `rebalancer` and ends with the leadership. `membership` checks
the requests of members. Both put their effects into one `EffectQueue`, which the core hands out after each event.

A write whose commit takes longer than ``offsets.commit.timeout.ms`` is answered with an error but stays pending: it
may still be committed, and is then replayed in its place. The client has to read its offsets, or commit again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
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
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
from moldau_broker.coordinator.group.core.gone_offsets import GoneOffsets, is_gone
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.group_views import described, listed
from moldau_broker.coordinator.group.core.member_memory import MemberMemory
from moldau_broker.coordinator.group.core.membership import Membership
from moldau_broker.coordinator.group.core.offset_requests import (
    check_commit,
    commit_records,
    delete_offsets,
    failed_codes,
    fetch_offsets,
)
from moldau_broker.coordinator.group.core.offsets import OffsetStore
from moldau_broker.coordinator.group.core.rebalance import Rebalancer
from moldau_broker.coordinator.group.core.records import (
    GroupRecord,
    OffsetRecord,
    group_record,
    offset_record,
    parse_record,
)
from moldau_broker.coordinator.group.core.responses import client_error, commit_answer, txn_commit_answer
from moldau_broker.coordinator.runtime.effects import TransactionalProducer
from moldau_broker.coordinator.runtime.pending import (
    AssignmentWritten,
    GoneRemoved,
    Reply,
    StaticMemberWritten,
)
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.schema import Request, Response
    from moldau.values import Buffer
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.offsets import TopicPartition
    from moldau_broker.coordinator.runtime.effects import Effect, Marker, Moment, RequestContext, StateRecord
    from moldau_broker.coordinator.runtime.pending import PendingWrite
    from moldau_broker.coordinator.runtime.ports import TopicNames

_WRITING = (
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

    def __init__(self, config: GroupConfig, topics: TopicNames, memory: MemberMemory | None = None) -> None:
        """Starts with nothing loaded.

        Args:
            config: limits.
            topics: the topics that exist at the moment of a call.
            memory: counts the members of all partitions of the broker.
        """
        self._memory = memory if memory is not None else MemberMemory()
        self._deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._effects = EffectQueue(config.commit_timeout_ms, self._deadlines)
        self.rebalancer = Rebalancer(config, self._effects)
        self.membership = Membership(config, self.rebalancer, self._effects, self._memory)
        self.offsets = OffsetStore()
        self._config = config
        self._topics = topics
        self._gone = GoneOffsets(self.offsets, topics)
        self._written_groups: dict[str, GroupMetadataValue] = {}
        """The last committed record of each group."""
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

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """Applies the committed end of a producer's transaction."""
        self.offsets.replay_marker(producer_id, commit)

    def start(self, moment: Moment) -> list[Effect]:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for group_id, value in self._written_groups.items():
            self.rebalancer.load(Group.load(group_id, value, self._memory), moment)
        self._deadlines.set(_EXPIRY, moment.now_ms + self._config.offsets_retention_check_interval_ms)
        self._gone.look(())
        self._remove_gone(moment)
        return self._effects.take()

    def topics_deleted(self, names: Collection[str], moment: Moment) -> list[Effect]:
        """Removes the offsets of deleted topics, also those of open transactions, as Kafka does.

        Topics created since may have the same names.
        """
        self._gone.look(self._in_flight(), names)
        self._remove_gone(moment)
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
            self._settle(pending, ErrorCode.NONE, moment)
        return self._effects.take()

    def failed(self, append_id: int, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Delivers the failure of a write that will never be committed; ``code`` is that of the log."""
        pending = self._effects.pending.pop(append_id)
        self._settle(pending, client_error(code), moment)
        return self._effects.take()

    def resign(self, code: ErrorCode, moment: Moment) -> list[Effect]:
        """Answers all open requests after leadership is lost. The core must not be used afterwards."""
        self.rebalancer.resign(code)
        for pending in list(self._effects.pending.values()):
            if not isinstance(pending.then, AssignmentWritten):
                self._settle(pending, code, moment)
        self._effects.pending.clear()
        return self._effects.take()

    def _settle(self, pending: PendingWrite, code: ErrorCode, moment: Moment) -> None:
        """Delivers the outcome of a write, once."""
        then = pending.then
        pending.then = None
        self._effects.cancel_deadline(pending)
        if isinstance(then, Reply):
            self._effects.answer(then.request_id, then.respond(code))
        elif isinstance(then, AssignmentWritten):
            self.rebalancer.assignment_written(then, pending.append_id, code, moment)
        elif isinstance(then, StaticMemberWritten):
            self.rebalancer.static_member_written(then, code)
        elif isinstance(then, GoneRemoved) and code is not ErrorCode.NONE:
            self._gone.put_back(then.keys)
            self._deadlines.set(_GONE, moment.now_ms + self._config.gone_offsets_retry_ms)

    # Time

    def next_deadline_ms(self) -> int | None:
        """Returns when `on_timer` has to be called next."""
        times = [time for time in (self._deadlines.next_ms(), self.rebalancer.deadlines.next_ms()) if time is not None]
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
                self._settle(self._effects.pending[int(key[1])], client_error(ErrorCode.REQUEST_TIMED_OUT), moment)
        self.rebalancer.on_timer(moment)
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
        if isinstance(request, JoinGroupRequest):
            self.membership.join(request_id, request, context, moment)
        elif isinstance(request, SyncGroupRequest):
            self.membership.sync(request_id, request, context, moment)
        elif isinstance(request, HeartbeatRequest):
            self._effects.answer(request_id, self.membership.heartbeat(request, moment))
        elif isinstance(request, LeaveGroupRequest):
            self._effects.answer(request_id, self.membership.leave(request, context, moment))
        elif isinstance(request, OffsetCommitRequest):
            self._commit(request_id, request, moment)
        elif isinstance(request, TxnOffsetCommitRequest):
            self._commit_in_transaction(request_id, request, moment)
        elif isinstance(request, OffsetDeleteRequest):
            self._delete_offsets(request_id, request, moment)
        elif isinstance(request, DeleteGroupsRequest):
            self._delete_groups(request_id, request, moment)
        elif isinstance(request, DescribeGroupsRequest):
            groups = [
                described(name, self.membership.groups.get(name), self.offsets.has_group(name), context.version)
                for name in request.groups
            ]
            self._effects.answer(request_id, DescribeGroupsResponse(groups=groups))
        elif isinstance(request, ListGroupsRequest):
            found = listed(request, self.membership.groups, self.offsets.group_ids())
            self._effects.answer(request_id, ListGroupsResponse(groups=found))
        elif isinstance(request, OffsetFetchRequest):
            answers = [self.fetch(group, request.require_stable) for group in request.groups]
            self._effects.answer(request_id, OffsetFetchResponse(groups=answers))
        else:
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")
        return self._effects.take()

    def fetch(self, request: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Returns the committed offsets of one group."""
        return fetch_offsets(self.offsets, request, require_stable, partial(is_gone, self._topics))

    def complete_transaction(self, request_id: int, marker: Marker, reply: Reply, moment: Moment) -> list[Effect]:
        """Writes the marker of a producer's transaction; its offsets take effect when the marker is committed."""
        assert reply.request_id == request_id
        if len(self._effects.pending) >= self._config.appends_pending_max:
            self._effects.answer(request_id, reply.respond(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._effects.append((), reply, moment, marker=marker)
        return self._effects.take()

    def _commit(self, request_id: int, request: OffsetCommitRequest, moment: Moment) -> None:
        code = check_commit(self.membership, request, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(
                request_id, commit_answer(request, [[code] * len(t.partitions) for t in request.topics])
            )
            return
        records, codes = commit_records(request, self._config, self._topics, moment)
        self._reply_when_written(
            request_id, records, lambda failure: commit_answer(request, failed_codes(codes, failure)), moment, None
        )

    def _commit_in_transaction(self, request_id: int, request: TxnOffsetCommitRequest, moment: Moment) -> None:
        code = check_commit(self.membership, request, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(
                request_id, txn_commit_answer(request, [[code] * len(t.partitions) for t in request.topics])
            )
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
            self._effects.answer(request_id, respond(ErrorCode.NONE))
            return
        self._effects.append(records, Reply(request_id=request_id, respond=respond), moment, producer)

    def _delete_offsets(self, request_id: int, request: OffsetDeleteRequest, moment: Moment) -> None:
        group = self.membership.groups.get(request.group_id)
        code, records, response = delete_offsets(group, self._keys_of(request.group_id), request)
        if code is not ErrorCode.NONE:
            self._effects.answer(request_id, OffsetDeleteResponse(error_code=code))
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
                    self.rebalancer.forget(group)

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
            # If the log refused the last deletion of a group, it still holds the group.
            is_known = group_id in self._written_groups or self._keys_of(group_id)
            return ErrorCode.NONE if is_known else ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if group.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def _tombstones(self, group_id: str) -> list[StateRecord]:
        """Returns tombstones for all records of a group, including pending ones, which precede them in the log."""
        records = [offset_record(group_id, topic, partition, None) for topic, partition in self._keys_of(group_id)]
        return [*records, group_record(group_id, None)]

    def _keys_of(self, group_id: str) -> dict[TopicPartition, None]:
        """Returns the partitions with an offset of the group: committed, in an open transaction, or in flight."""
        keys = dict.fromkeys(self.offsets.keys(group_id))
        for record in self._in_flight():
            if record.group_id == group_id and record.committed is not None:
                keys[record.topic, record.partition] = None
        return keys

    def _in_flight(self) -> list[OffsetRecord]:
        """Returns the offsets that are written but not committed yet, in the order of the log."""
        return [record for pending in self._effects.pending.values() for record in pending.offset_records()]

    # Deleted topics, and expiry

    def _remove_gone(self, moment: Moment) -> None:
        """Writes one batch of tombstones for offsets of deleted topics, and schedules the next batch."""
        records, keys = self._gone.take(self._in_flight(), self._config.expired_batch_records_max)
        if records:
            self._effects.append(records, GoneRemoved(keys=keys), moment)
        if len(self._gone):
            wait_ms = 1 if records else self._config.gone_offsets_retry_ms
            self._deadlines.set(_GONE, moment.now_ms + wait_ms)

    def _expire(self, moment: Moment) -> None:
        """Writes tombstones for expired offsets and for groups that have no offsets left (KIP-211)."""
        records: list[StateRecord] = []
        limit = self._config.expired_batch_records_max
        # A tombstone would follow a commit in flight and delete it: such groups wait for the next round.
        busy = {record.group_id for record in self._in_flight()}
        for group_id in sorted({*self.membership.groups, *self.offsets.group_ids(), *self._written_groups}):
            if len(records) >= limit:
                break
            if group_id in busy:
                continue
            records += self._expired_of(group_id, moment)
        for first in range(0, len(records), limit):
            self._effects.append(tuple(records[first : first + limit]), None, moment)

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
                self.rebalancer.forget(group)
        return records

    def _expired_unread(self, group: Group, moment: Moment) -> list[StateRecord]:
        """Returns tombstones for the expired offsets of a live consumer group, of topics that no member reads."""
        if group.protocol_type != "consumer" or group.state is not GroupState.STABLE:
            return []
        read = group.subscription()
        if read is None:
            return []
        expired = self.offsets.expired(group.group_id, moment.wall_ms, self._config.offsets_retention_ms, None)
        return [
            offset_record(group.group_id, topic, partition, None) for topic, partition in expired if topic not in read
        ]
