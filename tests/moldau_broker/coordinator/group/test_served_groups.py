"""Goal: what consumer, share and streams groups share keeps its bounds, and forgets and refuses what it should.

Method: share groups without decisions, driven call by call.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau_broker.coordinator.group.core import served_groups
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES, MemberMemory
from moldau_broker.coordinator.group.core.served_groups import SESSION, WRITE_BYTES_MAX, ServedGroups, WriteRecords
from moldau_broker.coordinator.group.share.core.groups import Expiry, ServedShareGroup, ShareRequest
from moldau_broker.coordinator.group.share.core.state import ShareDraft, ShareEpoch, ShareGroup, ShareMember
from moldau_broker.coordinator.runtime.effects import Answer, Moment, StateRecord
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    import pytest

    from moldau.protocol.schema import Response

NOW = Moment(now_ms=10_000, wall_ms=1_700_000_000_000)


class Subject:
    """The groups, with what they take and give."""

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.memory = MemberMemory(bytes_max=memory_bytes)
        self.effects = EffectQueue(5_000, Deadlines())
        self.config = GroupConfig(metadata_bytes_max=10_000)
        self.served: ServedGroups[ServedShareGroup, ShareGroup] = ServedGroups(
            lambda group_id: ServedShareGroup(group=ShareGroup(group_id=group_id)),
            ShareRequest,
            self.effects,
            self.memory,
            self.config,
        )

    def answers(self) -> list[tuple[int, int]]:
        """Takes the answers since the last call: request id and error code."""
        taken = [effect for effect in self.effects.take() if isinstance(effect, Answer)]
        return [(answer.request_id, _code(answer.response)) for answer in taken]


def _code(response: Response) -> int:
    code = response.error_code  # type: ignore[attr-defined]
    assert isinstance(code, int)
    return code


def test_keys_and_values_fill_a_write() -> None:
    """The log refuses a batch above ``max.message.bytes``, whatever takes the room."""
    half = WRITE_BYTES_MAX // 2
    for key, value, is_full in ((2 * half, 0, True), (0, 2 * half, True), (half, half, True), (half, half - 1, False)):
        write = WriteRecords[StateRecord](lambda record: record)
        write.add([StateRecord(bytes(key), bytes(value) or None)])
        assert write.is_full is is_full


def asked(request_id: int, session_ms: int | None = None) -> ShareRequest:
    """A heartbeat of member ``m``."""
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    return ShareRequest(request_id=request_id, request=request, version=1, session_ms=session_ms)


def test_memory_is_held_and_given_back() -> None:
    subject = Subject(memory_bytes=GROUP_BYTES + 1_000)
    group = subject.served.open_if_fits("g")
    assert group is not None
    assert subject.served.open_if_fits("g") is group
    assert subject.memory.used_bytes == GROUP_BYTES + 1
    assert subject.served.open_if_fits("h") is None, "no memory is left for another group"

    subject.served.count(group, "m", 700)
    subject.served.count(group, "n", 200)
    subject.served.count(group, "m", 600)
    assert (group.held_bytes, subject.memory.used_bytes) == (GROUP_BYTES + 801, GROUP_BYTES + 801)
    assert subject.served.has_room(group, 199) is ErrorCode.NONE
    assert subject.served.has_room(group, 200) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert subject.served.has_room(group, 10_000) is ErrorCode.GROUP_MAX_SIZE_REACHED
    subject.memory.used_bytes += 10_000
    assert subject.served.has_room(group, 0) is ErrorCode.NONE, "what needs no more memory is taken"

    subject.served.count(group, "m", None)
    assert group.held == {"n": 200}
    assert subject.served.close_if_forgotten(group)
    assert subject.memory.used_bytes == 10_000
    assert subject.served.all == {}


def test_a_group_stays_while_something_is_left_of_it() -> None:
    served = Subject().served
    group = served.open("g")
    group.parked.append(Expiry(member_id="m"))
    assert not served.close_if_forgotten(group)
    group.parked.clear()
    group.group.apply(ShareEpoch(group_id="g", epoch=1, metadata_hash=0))
    assert not served.close_if_forgotten(group)
    assert served.get("g") is group.group
    assert list(served.committed) == ["g"]


def test_requests_are_parked_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_groups, "PARKED_MAX", 2)
    subject = Subject()
    group = subject.served.open("g")
    assert [subject.served.park(group, asked(number)) for number in range(3)] == [True, True, False]
    group.parked.clear()
    group.timed_out = True
    assert not subject.served.park(group, asked(3))
    assert not subject.served.park(None, asked(4))
    assert subject.answers() == [(number, ErrorCode.COORDINATOR_NOT_AVAILABLE) for number in (2, 3, 4)]


def test_only_a_final_refusal_takes_the_renewal_back() -> None:
    subject = Subject()
    group, deadlines = subject.served.open("g"), subject.served.deadlines
    key = (SESSION, "g", "m")
    subject.served.renew("g", "m", 1_000, NOW)
    former_ms = subject.served.renew("g", "m", 9_000, NOW)
    assert former_ms == 11_000
    for code, until_ms in ((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 19_000), (ErrorCode.UNKNOWN_MEMBER_ID, 11_000)):
        subject.served.refuse(group, asked(1, former_ms), KafkaError(code))
        assert deadlines.get(key) == until_ms, code
    subject.served.renew("g", "m", 9_000, NOW)
    subject.served.refuse(group, asked(2), KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
    assert deadlines.get(key) == 19_000, "the arrival of the request had not renewed the session"


def test_a_failed_write_refuses_what_waits_for_it() -> None:
    subject = Subject()
    group = subject.served.open("g")
    group.draft = ShareDraft(group.group)
    group.draft.raise_epoch()
    subject.served.in_flight(group, 7)
    assert subject.served.writing(7) is group
    assert subject.served.writing(8) is None
    assert (subject.served.latest("g"), subject.served.get("g")) == (group.draft.group, None)
    expiry = Expiry(member_id="n")
    group.waiting = [(asked(1), asked(1).refused(ErrorCode.NONE))]
    group.parked.extend([asked(2), expiry, asked(3)])

    subject.served.refuse_all(group, ErrorCode.NOT_COORDINATOR)
    assert subject.answers() == [(number, ErrorCode.NOT_COORDINATOR) for number in (1, 2, 3)]
    assert (group.waiting, list(group.parked)) == ([], [expiry])

    group.timed_out = True
    assert subject.served.landed(8) is None
    assert subject.served.landed(7) is group
    assert (group.append_id, group.timed_out, subject.served.landed(7)) == (None, False, None)


def test_groups_that_may_end() -> None:
    served = Subject().served
    assert served.is_deletable("g") is None
    group = served.open("g")
    assert served.is_deletable("g") is None, "the log has nothing of it"
    assert served.keeps_id(group) is ErrorCode.NONE
    group.group.apply(ShareEpoch(group_id="g", epoch=1, metadata_hash=0))
    assert (served.is_deletable("g"), served.keeps_id(group)) == (ErrorCode.NONE, ErrorCode.NONE)
    group.parked.append(Expiry(member_id="m"))
    assert served.is_deletable("g") is served.keeps_id(group) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    group.parked.append(asked(1))
    assert served.keeps_id(group) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member may be about to join"
    group.parked.clear()
    group.group.members["m"] = ShareMember(member_id="m")
    assert served.is_deletable("g") is ErrorCode.NON_EMPTY_GROUP
    assert served.keeps_id(group) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def state(kind: str) -> ShareGroup:
    """Returns a group that is gone, or one that exists without members or with the member ``m``."""
    group = ShareGroup(group_id="g")
    if kind != "gone":
        group.apply(ShareEpoch(group_id="g", epoch=1, metadata_hash=0))
    if kind == "m":
        group.members["m"] = ShareMember(member_id="m")
    return group


def test_only_members_that_stay_keep_an_id_for_good() -> None:
    """While a write decides whether a group has members, the refusal is one that clients repeat."""
    for committed, written, parked in itertools.product(("gone", "", "m"), (None, "gone", "", "m"), (None, "e", "r")):
        served = Subject().served
        group = served.open("g")
        group.group = state(committed)
        group.draft = None if written is None else ShareDraft(group=state(written))
        group.parked.extend([] if parked is None else [Expiry(member_id="m") if parked == "e" else asked(1)])
        newest = committed if written is None else written
        expected = ErrorCode.NONE
        if newest == "m" or parked == "r":
            expected = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif committed == "m" or (newest != "gone" and (written is not None or parked is not None)):
            expected = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert served.keeps_id(group) is expected, (committed, written, parked)


def test_resigning_refuses_requests_and_gives_memory_back() -> None:
    subject = Subject()
    for group_id in ("g", "h"):
        subject.served.open(group_id)
    subject.served.all["h"].parked.append(asked(5))
    subject.served.resign(ErrorCode.NOT_COORDINATOR)
    assert subject.answers() == [(5, ErrorCode.NOT_COORDINATOR)]
    assert subject.memory.used_bytes == 0
