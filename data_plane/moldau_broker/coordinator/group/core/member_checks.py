"""Checks of members, for groups of each kind whose members heartbeat (KIP-345, KIP-848, KIP-1071). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Member(Protocol):
    @property
    def member_id(self) -> str: ...


M = TypeVar("M", bound=_Member)
M_co = TypeVar("M_co", bound=_Member, covariant=True)


class _Group(Protocol[M_co]):
    @property
    def group_id(self) -> str: ...

    @property
    def members(self) -> Mapping[str, M_co]: ...

    def static_member(self, instance_id: str) -> M_co | None: ...


def is_blank(text: str | None) -> bool:
    """Returns whether Kafka takes a text for an empty one: it has no characters but control characters and spaces.

    None stands for a field that the request leaves out, which is not blank.
    """
    return text is not None and all(character <= " " for character in text)


def check_texts(**texts: str | None) -> None:
    """Checks that no field of a request is blank; the names are those of the fields.

    Raises:
        KafkaError: INVALID_REQUEST.
    """
    for name, text in texts.items():
        if is_blank(text):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")


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


def leaving_member(group: _Group[M], member_id: str, instance_id: str | None) -> M:
    """Returns the member that leaves; a static one names its instance id as well.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID if there is no such member, FENCED_INSTANCE_ID if another one has the instance id.
    """
    member = group.members.get(member_id)
    if instance_id is not None:
        member = group.static_member(instance_id)
        if member is not None:
            check_instance(instance_id, member.member_id, member_id, joins=False)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return member
