"""Builds responses of the group coordinator that contain error codes only, in the form of each version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.describe_groups import DescribeGroupsRequest
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from moldau.protocol.messages.list_groups import ListGroupsRequest
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.offset_delete import OffsetDeleteRequest
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponseGroup
from moldau.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from moldau_broker.coordinator.runtime.log_refusals import LOG_REFUSALS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.protocol.schema import Request

_COMMIT_FAILURES = {
    **LOG_REFUSALS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
"""Error codes for clients when the log refuses a write."""


_DELETION_CAUSES = {
    ErrorCode.NON_EMPTY_GROUP: "The group has members: stop them, or wait until their sessions have ended.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group has neither members nor committed offsets.",
}
"""Why a group is not deleted, for people."""


def client_error(code: ErrorCode) -> ErrorCode:
    """Returns the code for clients of an error of the log."""
    return _COMMIT_FAILURES.get(code, code)


def join_error(code: ErrorCode, version: int, member_id: str = "") -> JoinGroupResponse:
    """Returns a JoinGroup answer with an error; MEMBER_ID_REQUIRED comes with the new ``member_id``."""
    return JoinGroupResponse(
        error_code=code, member_id=member_id, protocol_name=None if version >= 7 else "", generation_id=-1
    )


def leave_answer(
    request: LeaveGroupRequest, version: int, leave: Callable[[MemberIdentity], ErrorCode]
) -> LeaveGroupResponse:
    """Returns the answer with the code of each member that ``leave`` gives; versions before 3 have one member."""
    if version < 3:
        return LeaveGroupResponse(error_code=leave(MemberIdentity(member_id=request.member_id)))
    answers = [
        MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=leave(identity)
        )
        for identity in request.members
    ]
    return LeaveGroupResponse(members=answers)


def commit_answer(request: OffsetCommitRequest, codes: Sequence[Sequence[ErrorCode]]) -> OffsetCommitResponse:
    """Returns the answer with one code for each partition, in the order of the request."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                    for part, code in zip(topic.partitions, topic_codes, strict=True)
                ],
            )
            for topic, topic_codes in zip(request.topics, codes, strict=True)
        ]
    )


def txn_commit_answer(request: TxnOffsetCommitRequest, codes: Sequence[Sequence[ErrorCode]]) -> TxnOffsetCommitResponse:
    """Returns the answer with one code for each partition, in the order of the request."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)
                    for part, code in zip(topic.partitions, topic_codes, strict=True)
                ],
            )
            for topic, topic_codes in zip(request.topics, codes, strict=True)
        ]
    )


def deletion_result(group_id: str, code: ErrorCode) -> DeletableGroupResult:
    """Returns the result of DeleteGroups for one group, with the cause of a refusal."""
    message = None if code is ErrorCode.NONE else _DELETION_CAUSES.get(code, code.message)
    return DeletableGroupResult(group_id=group_id, error_code=code, error_message=message)


def fetch_refusal(group_id: str, code: ErrorCode) -> OffsetFetchResponseGroup:
    """Returns the answer for one group of an OffsetFetch that the coordinator cannot accept."""
    return OffsetFetchResponseGroup(group_id=group_id, error_code=code)


def is_group_request(request: Request) -> bool:
    """Returns whether a group coordinator serves the request."""
    return isinstance(
        request,
        JoinGroupRequest
        | SyncGroupRequest
        | HeartbeatRequest
        | LeaveGroupRequest
        | OffsetCommitRequest
        | OffsetFetchRequest
        | TxnOffsetCommitRequest
        | OffsetDeleteRequest
        | DeleteGroupsRequest
        | DescribeGroupsRequest
        | ConsumerGroupHeartbeatRequest
        | ConsumerGroupDescribeRequest
        | ListGroupsRequest
        | ShareGroupHeartbeatRequest
        | ShareGroupDescribeRequest
        | AlterShareGroupOffsetsRequest
        | DeleteShareGroupOffsetsRequest
        | StreamsGroupHeartbeatRequest
        | StreamsGroupDescribeRequest,
    )
