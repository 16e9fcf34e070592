"""Groups whose state is a function of the log, with their writes in flight and what waits for these. Pure.

Consumer, share and streams groups have this in common: a group has at most one write in flight. Operations that arrive
meanwhile are parked; then all of them are decided on one copy of the group, and their changes are one write again. So
each decision sees the decisions before it, clients see committed state only, and a group of many members needs few
writes.

Each wait has an end: a write that is not committed within ``offsets.commit.timeout.ms`` is answered with an error,
together with everything that is parked behind it, and further requests are refused until its outcome is known. The
sessions of members are soft state; they start over with each coordinator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.protocol.errors import KafkaError
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.runtime.effects import Moment, StateRecord

SESSION = "session"
"""The kind of deadline by which a member must send a heartbeat."""
REBALANCE = "rebalance"
"""The kind of deadline by which a member must have given back what it has lost."""
CHANGES_MAX = 1_000
"""Changes after which a write takes no more parked operations."""
WRITE_BYTES_MAX = 1 << 18
"""Bytes of keys and values after which a write takes no more parked operations: the log refuses batches above
``max.message.bytes``. The last operation may exceed it, because its records stay together; ``gone.BATCH_BYTES_MAX`` is
the bound for tombstones, which may be divided."""
PARKED_MAX = 10_000
"""Parked operations of a group; further requests are refused with COORDINATOR_NOT_AVAILABLE."""


ChangeT = TypeVar("ChangeT")


class WriteRecords(Generic[ChangeT]):
    """The records of a write. They are made while its changes are decided, so that it ends before it is too large."""

    def __init__(self, record_of: Callable[[ChangeT], StateRecord]) -> None:
        """Starts without records; ``record_of`` makes the record of a change."""
        self.records: list[StateRecord] = []
        self._record_of = record_of
        self._bytes = 0

    def add(self, changes: Sequence[ChangeT]) -> None:
        """Makes the records of those changes of a draft that are new."""
        for change in changes[len(self.records) :]:
            record = self._record_of(change)
            self._bytes += len(record.key) + len(record.value or b"")
            self.records.append(record)

    @property
    def is_full(self) -> bool:
        """True if the write takes no more operations."""
        return len(self.records) >= CHANGES_MAX or self._bytes >= WRITE_BYTES_MAX


class LoggedGroup(Protocol):
    """A group as the log has it, or with the changes of a draft."""

    group_id: str
    exists: bool

    @property
    def is_forgotten(self) -> bool:
        """Whether nothing is left of the group."""
        ...


class GroupDraft(Protocol):
    """A copy of a group with the changes that are made to it."""

    group: Any


class ParkedRequest(Protocol):
    """A request that waits for its turn."""

    @property
    def request_id(self) -> int:
        """The request, for effects."""
        ...

    @property
    def session_ms(self) -> int | None:
        """When the sender's session ends if the request is refused; None if its arrival did not renew the session."""
        ...

    @property
    def member_id(self) -> str:
        """The sender; empty if the request shows none."""
        ...

    def refused(self, code: ErrorCode, message: str | None = None) -> Response:
        """Returns the answer to the request if it is refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The removal of a member whose session or rebalance timeout has passed; ``epoch`` is the one it was stuck in."""

    member_id: str
    kind: str
    epoch: int


class RevokingMember(Protocol):
    """A member that may have to give back what others wait for."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...

    @property
    def epoch(self) -> int:
        """The group epoch that it has reached."""
        ...

    @property
    def rebalance_timeout_ms(self) -> int:
        """The time that it has for giving back."""
        ...

    @property
    def is_revoking(self) -> bool:
        """Whether it has something left to give back."""
        ...


GroupT = TypeVar("GroupT", bound=LoggedGroup)
DraftT = TypeVar("DraftT", bound=GroupDraft)
AskedT = TypeVar("AskedT", bound=ParkedRequest)
OperationT = TypeVar("OperationT")


@dataclass(slots=True, kw_only=True)
class ServedGroup(Generic[GroupT, DraftT, AskedT, OperationT]):
    """A group with what its coordinator knows of it beyond the log.

    Invariants: ``draft`` is set while a write is in flight; ``group`` contains committed changes only.
    """

    group: GroupT
    draft: DraftT | None = None
    append_id: int | None = None
    timed_out: bool = False
    """True while a write is in flight whose requests have been answered with an error."""
    waiting: list[tuple[AskedT, Response]] = field(default_factory=list)
    """Answers that follow the commit of the write."""
    parked: deque[OperationT] = field(default_factory=deque)
    """Requests, and other operations, that are decided after the write."""
    held: dict[str, int] = field(default_factory=dict)
    """The approximate memory of each part, as a rule of each member by its id."""
    held_bytes: int = 0

    @property
    def latest(self) -> GroupT:
        """The group with the changes of the write in flight."""
        if self.draft is None:
            return self.group
        group: GroupT = self.draft.group
        return group

    @property
    def is_idle(self) -> bool:
        """True if no write is in flight and nothing is parked."""
        return self.draft is None and not self.parked


@dataclass(slots=True, kw_only=True)
class FencedGroup(ServedGroup[GroupT, DraftT, AskedT, OperationT]):
    """A group whose members have time limits for giving back what they have lost."""

    fences: list[Fence] = field(default_factory=list)
    """Removals in the write; they are repeated if it fails."""


ServedT = TypeVar("ServedT", bound=ServedGroup[Any, Any, Any, Any])
FencedT = TypeVar("FencedT", bound=FencedGroup[Any, Any, Any, Any])


class ServedGroups(Generic[ServedT, GroupT]):
    """All groups of one kind of one partition: their memory, their writes in flight, their deadlines."""

    def __init__(
        self,
        make: Callable[[str], ServedT],
        requests: type[ParkedRequest],
        effects: EffectQueue,
        memory: MemberMemory,
        config: GroupConfig,
    ) -> None:
        """Starts without groups.

        Args:
            make: returns a new group by its id.
            requests: the type of parked operations that are requests.
            effects: takes answers.
            memory: the memory of all groups of the broker.
            config: the memory of one group.
        """
        self.all: dict[str, ServedT] = {}
        """By group id."""
        self.deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        """Of members and groups: kind, group id, and the member's id."""
        self._make = make
        self._requests = requests
        self._effects = effects
        self._memory = memory
        self._config = config
        self._writing: dict[int, str] = {}  # groups by the id of their write in flight

    # Groups

    @property
    def committed(self) -> Mapping[str, GroupT]:
        """The groups that the committed log contains, by id."""
        return {group_id: served.group for group_id, served in self.all.items() if served.group.exists}

    def get(self, group_id: str) -> GroupT | None:
        """Returns a group as the committed log has it; None if there is none."""
        served = self.all.get(group_id)
        group: GroupT | None = None if served is None or not served.group.exists else served.group
        return group

    def latest(self, group_id: str) -> GroupT | None:
        """Returns a group with the changes of its write in flight: commits of offsets follow that write in the log."""
        served = self.all.get(group_id)
        group: GroupT | None = None if served is None or not served.latest.exists else served.latest
        return group

    def is_deletable(self, group_id: str) -> ErrorCode | None:
        """Returns whether a group can be deleted now; None if it is none of these groups."""
        served = self.all.get(group_id)
        if served is None or not (served.group.exists or served.latest.exists):
            return None
        if served.latest.members or served.group.members:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE if served.is_idle else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def keeps_id(self, served: ServedT) -> ErrorCode:
        """Returns the code with which a group of another kind is refused the id; NONE if this group may end for it.

        The refusal is retriable while the outcome of a write decides: the last members may have gone with it.
        """
        is_asked = any(isinstance(each, self._requests) for each in served.parked)
        if served.latest.members or is_asked:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        is_open = served.group.members or (served.latest.exists and not served.is_idle)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if is_open else ErrorCode.NONE

    def open(self, group_id: str) -> ServedT:
        """Returns a group that is served; begins with a new one under an unknown id."""
        served = self.all.get(group_id)
        if served is None:
            served = self.all[group_id] = self._make(group_id)
            self._hold(served, GROUP_BYTES + len(group_id))
        return served

    def open_if_fits(self, group_id: str) -> ServedT | None:
        """Returns a group that is served; None if the id is unknown and there is no memory for a new one."""
        if group_id not in self.all and not self._memory.has_room(GROUP_BYTES + len(group_id)):
            return None
        return self.open(group_id)

    def close_if_forgotten(self, served: ServedT) -> bool:
        """Forgets a group of which nothing is left; returns whether it did."""
        if not (served.group.is_forgotten and served.is_idle):
            return False
        del self.all[served.group.group_id]
        self._hold(served, -served.held_bytes)
        return True

    # Memory

    def _hold(self, served: ServedT, more_bytes: int) -> None:
        served.held_bytes += more_bytes
        self._memory.used_bytes += more_bytes

    def count(self, served: ServedT, name: str, size: int | None) -> None:
        """Notes the memory of a part of a group; None if the part is gone."""
        held = served.held.pop(name, 0)
        if size is not None:
            served.held[name] = size
        self._hold(served, (size or 0) - held)

    def has_room(self, served: ServedT, more_bytes: int) -> ErrorCode:
        """Returns the code with which the limits refuse so much more memory for a group; NONE if it fits."""
        if more_bytes <= 0:
            return ErrorCode.NONE
        if served.held_bytes + more_bytes > self._config.metadata_bytes_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE if self._memory.has_room(more_bytes) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    # Requests

    def park(self, served: ServedT | None, asked: ParkedRequest) -> bool:
        """Parks a request, or refuses it if the group can take none; returns whether it is parked."""
        if served is None or served.timed_out or len(served.parked) >= PARKED_MAX:
            self._effects.answer(asked.request_id, asked.refused(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return False
        served.parked.append(asked)
        return True

    def refuse(self, served: ServedT, asked: ParkedRequest, error: KafkaError) -> None:
        """Answers a request that a decision refuses; the sender's session goes on as if it had not been sent.

        A client repeats what is refused with a retriable error: such a refusal says nothing about the member.
        """
        self._effects.answer(asked.request_id, asked.refused(error.code, error.message))
        if asked.session_ms is not None and not error.code.retriable:
            self.deadlines.put_back((SESSION, served.group.group_id, asked.member_id), asked.session_ms)

    def answer_waiting(self, served: ServedT) -> None:
        """Sends the answers that have waited for the commit of a write."""
        waiting, served.waiting = served.waiting, []
        for asked, response in waiting:
            self._effects.answer(asked.request_id, response)

    def refuse_all(self, served: ServedT, code: ErrorCode) -> None:
        """Refuses the requests that wait for a write, and those that are parked behind it."""
        waiting, served.waiting = served.waiting, []
        for asked, _ in waiting:
            self._effects.answer(asked.request_id, asked.refused(code))
        self.refuse_parked(served, code)

    def refuse_parked(self, served: ServedT, code: ErrorCode) -> None:
        """Refuses the requests that are parked; other operations stay."""
        parked, served.parked = served.parked, deque()
        for operation in parked:
            if isinstance(operation, self._requests):
                self._effects.answer(operation.request_id, operation.refused(code))
            else:
                served.parked.append(operation)

    def resign(self, code: ErrorCode) -> None:
        """Refuses what is parked after leadership is lost, and gives the memory of all groups back."""
        for served in self.all.values():
            self.refuse_parked(served, code)
            self._hold(served, -served.held_bytes)

    # Writes

    def in_flight(self, served: ServedT, append_id: int) -> None:
        """Names the write that contains the changes of a group's draft."""
        assert served.append_id is None
        assert served.draft is not None
        served.append_id = append_id
        self._writing[append_id] = served.group.group_id

    def writing(self, append_id: int) -> ServedT | None:
        """Returns the group whose write this is; None if it is none of these groups."""
        group_id = self._writing.get(append_id)
        return None if group_id is None else self.all[group_id]

    def landed(self, append_id: int) -> ServedT | None:
        """Ends a write whose outcome is known, and returns its group; the draft stays for the caller to look at."""
        group_id = self._writing.pop(append_id, None)
        if group_id is None:
            return None
        served = self.all[group_id]
        assert served.append_id == append_id
        served.append_id, served.timed_out = None, False
        return served

    def answer_write(self, append_id: int, code: ErrorCode) -> ServedT | None:
        """Answers the requests of a write, and returns its group; None if it is none of these groups.

        ``code`` is not NONE if the write has failed or takes too long; then what is parked is refused too.
        """
        served = self.writing(append_id)
        if served is None:
            return None
        if code is ErrorCode.NONE:
            self.answer_waiting(served)
        else:
            served.timed_out = True
            self.refuse_all(served, code)
        return served

    # Sessions

    def retry_removal(self, kind: str, group_id: str, member_id: str, moment: Moment) -> None:
        """Has a member removed later whose removal was not written, unless it comes back: it is still in the group."""
        self.deadlines.set((kind, group_id, member_id), moment.now_ms + self._config.gone_offsets_retry_ms)

    def renew(self, group_id: str, member_id: str, timeout_ms: int, moment: Moment) -> int:
        """Begins a session again, and returns when it would have ended."""
        return self.deadlines.renew((SESSION, group_id, member_id), moment.now_ms + timeout_ms, moment.now_ms)


class GroupsOfType(ABC, Generic[ServedT, GroupT]):
    """The groups of one type in one partition, as the core calls those of each type in turn."""

    def __init__(self, served: ServedGroups[ServedT, GroupT]) -> None:
        """Serves these groups."""
        self._served = served
        self.deadlines = served.deadlines

    # Queries

    @property
    def committed(self) -> Mapping[str, GroupT]:
        """The groups that the committed log contains, by id."""
        return self._served.committed

    def get(self, group_id: str) -> GroupT | None:
        """Returns a group as the committed log has it; None if there is none."""
        return self._served.get(group_id)

    def latest(self, group_id: str) -> GroupT | None:
        """Returns a group with the changes of its write in flight: commits of offsets follow that write in the log."""
        return self._served.latest(group_id)

    def is_deletable(self, group_id: str) -> ErrorCode | None:
        """Returns whether a group can be deleted now; None if it is none of these groups."""
        return self._served.is_deletable(group_id)

    # Events

    @abstractmethod
    def start(self, moment: Moment) -> None:
        """Begins to serve the loaded groups; the sessions of their members begin now."""

    def answer_write(self, append_id: int, code: ErrorCode) -> None:
        """Answers the requests of a write, if it is one of these groups; see ``ServedGroups.answer_write``."""
        self._served.answer_write(append_id, code)

    @abstractmethod
    def written(self, append_id: int, moment: Moment, *, failed: bool = False) -> None:
        """Goes on after the outcome of a write is known: its changes have been replayed, or are lost."""

    @abstractmethod
    def on_timer(self, moment: Moment) -> None:
        """Performs what is due."""

    def deleting(self, group_id: str, append_id: int) -> None:
        """Names the write that contains the records of the deletion of a group."""
        self._served.in_flight(self._served.all[group_id], append_id)

    def resign(self, code: ErrorCode) -> None:
        """Answers what is parked after leadership is lost; `answer_write` serves what waits for a write."""
        self._served.resign(code)


class FencingGroups(GroupsOfType[FencedT, GroupT]):
    """Groups of a type whose members are removed if they do not give back what they have lost: consumer and streams."""

    @abstractmethod
    def _work(self, served: FencedT, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""

    @abstractmethod
    def _remove(self, served: FencedT, draft: Any, member_id: str) -> None:  # noqa: ANN401 - the draft of the type
        """Removes a member from a draft."""

    def _fence(self, served: FencedT, draft: Any, fence: Fence) -> None:  # noqa: ANN401 - the draft of the type
        """Removes a member whose time is up, unless it has been heard of, or has moved on, since."""
        member: RevokingMember | None = draft.group.members.get(fence.member_id)
        if member is None:
            return
        key = (fence.kind, served.group.group_id, fence.member_id)
        if fence.kind != REBALANCE and self.deadlines.get(key) is not None:
            return
        if fence.kind == REBALANCE and not _is_stuck(member, fence):
            if _is_stuck(served.group.members.get(fence.member_id), fence):
                # It moves on with the write that follows, and has its time again if that fails.
                served.fences.append(fence)
            return
        self._remove(served, draft, fence.member_id)
        served.fences.append(fence)

    def _watch(self, group_id: str, member: RevokingMember, moment: Moment) -> None:
        """Sets the deadline of a member that has something to give back, or cancels it."""
        key = (REBALANCE, group_id, member.member_id)
        if member.is_revoking:
            self.deadlines.set(key, moment.now_ms + member.rebalance_timeout_ms)
        else:
            self.deadlines.cancel(key)

    def on_timer(self, moment: Moment) -> None:
        """Removes the members whose time is up, and performs what else is due."""
        while (key := self.deadlines.pop_due(moment.now_ms)) is not None:
            served = self._served.all.get(key[1])
            operation = None if served is None else self._due(served, key)
            if served is not None and operation is not None:
                served.parked.append(operation)
                self._work(served, moment)

    def _due(self, served: FencedT, key: tuple[str, ...]) -> object | None:
        """Returns the operation that a deadline begins; None if its member is gone."""
        kind, _, member_id = key
        # A member that joins, or leaves, with the write in flight: that write may fail.
        member = served.group.members.get(member_id) or served.latest.members.get(member_id)
        return None if member is None else Fence(member_id=member_id, kind=kind, epoch=member.epoch)


def _is_stuck(member: RevokingMember | None, fence: Fence) -> bool:
    """Returns whether a member still has to give back that for which its time is over."""
    return member is not None and member.is_revoking and member.epoch == fence.epoch
