"""Checks of static members, for groups of each kind whose members heartbeat (KIP-345, KIP-848, KIP-1071). Pure."""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode, KafkaError


def check_instance(instance_id: str, holder_id: str | None, member_id: str, *, joins: bool) -> None:
    """Checks that a member may use an instance id, which the member ``holder_id`` has; None: it is free.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID if it is free and the member does not join; FENCED_INSTANCE_ID if another member
            has it, UNRELEASED_INSTANCE_ID where the member joins.
    """
    if holder_id is None:
        if not joins:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    elif holder_id != member_id:
        code = ErrorCode.UNRELEASED_INSTANCE_ID if joins else ErrorCode.FENCED_INSTANCE_ID
        raise KafkaError(code, f"Instance id {instance_id} belongs to member {holder_id}.")
