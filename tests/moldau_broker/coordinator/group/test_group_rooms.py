"""Goal: what consumer, share and streams groups share keeps its bounds, and forgets and refuses what it should.

Method: rooms of share groups without decisions, driven call by call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau_broker.coordinator.group.core import group_rooms
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
from moldau_broker.coordinator.group.core.group_rooms import SESSION, GroupRooms
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES, MemberMemory
from moldau_broker.coordinator.group.share.core.groups import Expiry, ShareRequest, ShareRoom
from moldau_broker.coordinator.group.share.core.state import ShareDraft, ShareEpoch, ShareGroup, ShareMember
from moldau_broker.coordinator.runtime.effects import Answer, Moment
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    import pytest

    from moldau.protocol.schema import Response

NOW = Moment(now_ms=10_000, wall_ms=1_700_000_000_000)


class Rooms:
    """The rooms, with what they take and give."""

    def __init__(self, memory_bytes: int = 1 << 30) -> None:
        self.memory = MemberMemory(bytes_max=memory_bytes)
        self.effects = EffectQueue(5_000, Deadlines())
        self.config = GroupConfig(metadata_bytes_max=10_000)
        self.rooms: GroupRooms[ShareRoom, ShareGroup] = GroupRooms(
            lambda group_id: ShareRoom(group=ShareGroup(group_id=group_id)),
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


def asked(request_id: int, session_ms: int | None = None) -> ShareRequest:
    """A heartbeat of member ``m``."""
    request = ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)
    return ShareRequest(request_id=request_id, request=request, version=1, session_ms=session_ms)


def test_memory_is_held_and_given_back() -> None:
    subject = Rooms(memory_bytes=GROUP_BYTES + 1_000)
    room = subject.rooms.open_if_fits("g")
    assert room is not None
    assert subject.rooms.open_if_fits("g") is room
    assert subject.memory.used_bytes == GROUP_BYTES + 1
    assert subject.rooms.open_if_fits("h") is None, "no memory is left for another group"

    subject.rooms.count(room, "m", 700)
    subject.rooms.count(room, "n", 200)
    subject.rooms.count(room, "m", 600)
    assert (room.held_bytes, subject.memory.used_bytes) == (GROUP_BYTES + 801, GROUP_BYTES + 801)
    assert subject.rooms.has_room(room, 199) is ErrorCode.NONE
    assert subject.rooms.has_room(room, 200) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert subject.rooms.has_room(room, 10_000) is ErrorCode.GROUP_MAX_SIZE_REACHED
    subject.memory.used_bytes += 10_000
    assert subject.rooms.has_room(room, 0) is ErrorCode.NONE, "what needs no more memory is taken"

    subject.rooms.count(room, "m", None)
    assert room.held == {"n": 200}
    assert subject.rooms.close_if_forgotten(room)
    assert subject.memory.used_bytes == 10_000
    assert subject.rooms.all == {}


def test_a_group_stays_while_something_is_left_of_it() -> None:
    rooms = Rooms().rooms
    room = rooms.open("g")
    room.parked.append(Expiry(member_id="m"))
    assert not rooms.close_if_forgotten(room)
    room.parked.clear()
    room.group.apply(ShareEpoch(group_id="g", epoch=1, metadata_hash=0))
    assert not rooms.close_if_forgotten(room)
    assert rooms.get("g") is room.group
    assert list(rooms.committed) == ["g"]


def test_requests_are_parked_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_rooms, "PARKED_MAX", 2)
    subject = Rooms()
    room = subject.rooms.open("g")
    assert [subject.rooms.park(room, asked(number)) for number in range(3)] == [True, True, False]
    room.parked.clear()
    room.timed_out = True
    assert not subject.rooms.park(room, asked(3))
    assert not subject.rooms.park(None, asked(4))
    assert subject.answers() == [(number, ErrorCode.COORDINATOR_NOT_AVAILABLE) for number in (2, 3, 4)]


def test_only_a_final_refusal_takes_the_renewal_back() -> None:
    subject = Rooms()
    room, deadlines = subject.rooms.open("g"), subject.rooms.deadlines
    key = (SESSION, "g", "m")
    subject.rooms.renew("g", "m", 1_000, NOW)
    former_ms = subject.rooms.renew("g", "m", 9_000, NOW)
    assert former_ms == 11_000
    for code, until_ms in ((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 19_000), (ErrorCode.UNKNOWN_MEMBER_ID, 11_000)):
        subject.rooms.refuse(room, asked(1, former_ms), KafkaError(code))
        assert deadlines.get(key) == until_ms, code
    subject.rooms.renew("g", "m", 9_000, NOW)
    subject.rooms.refuse(room, asked(2), KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
    assert deadlines.get(key) == 19_000, "the arrival of the request had not renewed the session"


def test_a_failed_write_refuses_what_waits_for_it() -> None:
    subject = Rooms()
    room = subject.rooms.open("g")
    room.draft = ShareDraft(room.group)
    room.draft.raise_epoch()
    subject.rooms.in_flight(room, 7)
    assert subject.rooms.writing(7) is room
    assert subject.rooms.writing(8) is None
    assert (subject.rooms.latest("g"), subject.rooms.get("g")) == (room.draft.group, None)
    expiry = Expiry(member_id="n")
    room.waiting = [(asked(1), asked(1).refused(ErrorCode.NONE))]
    room.parked.extend([asked(2), expiry, asked(3)])

    subject.rooms.refuse_all(room, ErrorCode.NOT_COORDINATOR)
    assert subject.answers() == [(number, ErrorCode.NOT_COORDINATOR) for number in (1, 2, 3)]
    assert (room.waiting, list(room.parked)) == ([], [expiry])

    room.timed_out = True
    assert subject.rooms.landed(8) is None
    assert subject.rooms.landed(7) is room
    assert (room.append_id, room.timed_out, subject.rooms.landed(7)) == (None, False, None)


def test_groups_that_may_end() -> None:
    rooms = Rooms().rooms
    assert rooms.is_deletable("g") is None
    room = rooms.open("g")
    assert rooms.is_deletable("g") is None, "the log has nothing of it"
    assert rooms.keeps_id(room) is ErrorCode.NONE
    room.group.apply(ShareEpoch(group_id="g", epoch=1, metadata_hash=0))
    assert (rooms.is_deletable("g"), rooms.keeps_id(room)) == (ErrorCode.NONE, ErrorCode.NONE)
    room.parked.append(Expiry(member_id="m"))
    assert rooms.is_deletable("g") is rooms.keeps_id(room) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    room.parked.append(asked(1))
    assert rooms.keeps_id(room) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "a member may be about to join"
    room.parked.clear()
    room.group.members["m"] = ShareMember(member_id="m")
    assert rooms.is_deletable("g") is ErrorCode.NON_EMPTY_GROUP
    assert rooms.keeps_id(room) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_resigning_refuses_requests_and_gives_memory_back() -> None:
    subject = Rooms()
    for group_id in ("g", "h"):
        subject.rooms.open(group_id)
    subject.rooms.all["h"].parked.append(asked(5))
    subject.rooms.resign(ErrorCode.NOT_COORDINATOR)
    assert subject.answers() == [(5, ErrorCode.NOT_COORDINATOR)]
    assert subject.memory.used_bytes == 0
