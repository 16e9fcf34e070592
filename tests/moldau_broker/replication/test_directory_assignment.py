"""Goal: no replica starts over empty if it may have a log, and the controller learns the directory of each replica.

Method: the placement rule over all its inputs; the queue against a controller that forgets, refuses and fails.
"""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.directory_assignment import (
    ASSIGNMENTS_MAX,
    AssignmentQueue,
    Placement,
    may_be_needed,
    place_of_lost,
    place_replica,
)
from moldau_quorum.metadata.directory_ids import LOST, MIGRATING, UNASSIGNED
from moldau_quorum.metadata.image import PartitionImage

MINE, AWAY = UUID(int=1001), UUID(int=1002)
ONLINE = (MINE,)
TOPIC = UUID(int=7)


@pytest.mark.parametrize(
    ("assigned", "any_offline", "is_new", "needed"),
    list(itertools.product((MINE, AWAY, LOST, UNASSIGNED, MIGRATING), (True, False), (True, False), (True, False))),
)
def test_a_needed_replica_never_starts_over(assigned: UUID, any_offline: bool, is_new: bool, needed: bool) -> None:
    """A replica that may be needed is placed only if it cannot have a log in another directory."""
    placement = place_replica(assigned, online=ONLINE, any_offline=any_offline, is_new=is_new, needed=needed)
    if assigned == AWAY:
        assert (placement is Placement.OFFLINE) == (any_offline or needed)
    elif assigned == LOST:
        assert (placement is Placement.OFFLINE) == any_offline, "if all directories work, it has no log in any"
    else:
        assert (placement is Placement.OFFLINE) == (any_offline and needed and not is_new)
    if placement is Placement.ASSIGNED:
        assert assigned == MINE
    if placement is Placement.ANY:
        assert assigned != MINE


@pytest.mark.parametrize("assigned", [MINE, AWAY, LOST, UNASSIGNED])
@pytest.mark.parametrize("any_offline", [True, False])
def test_a_copy_is_used_only_if_its_source_is_gone(assigned: UUID, any_offline: bool) -> None:
    """While a directory is away, the current log may be there, with more records than the copy."""
    placement = place_replica(assigned, online=ONLINE, any_offline=any_offline, is_new=False, needed=True, copied=MINE)
    assert (placement is Placement.COPY) == (not any_offline and assigned in (MINE, LOST))
    assert (placement is Placement.OFFLINE) == (any_offline or assigned == AWAY)


def test_a_replica_in_an_offline_directory_is_reported() -> None:
    assert place_of_lost(MINE, ONLINE) == LOST
    assert place_of_lost(UNASSIGNED, ONLINE) == LOST
    assert place_of_lost(MIGRATING, ONLINE) == LOST
    assert place_of_lost(AWAY, ONLINE) is None
    assert place_of_lost(LOST, ONLINE) is None


def test_a_replica_may_be_needed_in_any_of_four_ways() -> None:
    outside = PartitionImage(replicas=(1, 2, 3), isr=(2,), leader=2)
    assert not may_be_needed(outside, 1)
    assert may_be_needed(outside, 2)
    assert may_be_needed(PartitionImage(replicas=(1, 2), isr=(), leader=-1, elr=(1,)), 1)
    assert may_be_needed(PartitionImage(replicas=(1, 2), isr=(), leader=-1, last_known_elr=(1,)), 1)


def test_one_request_at_a_time_of_bounded_size() -> None:
    queue = AssignmentQueue(backoff_ms=100)
    for index in range(ASSIGNMENTS_MAX + 5):
        queue.submit((TOPIC, index), MINE)
    first = queue.next_request(0)
    assert len(first) == ASSIGNMENTS_MAX
    assert queue.next_request(0) == {}
    assert queue.next_deadline_ms() is None
    queue.answered(dict.fromkeys(first, ErrorCode.NONE), 0)
    assert len(queue.next_request(0)) == 5


def test_a_newer_directory_replaces_the_one_in_flight() -> None:
    """A newer directory replaces the one in flight, and the same directory is not sent twice."""
    queue = AssignmentQueue(backoff_ms=100)
    key = (TOPIC, 0)
    queue.submit(key, MINE)
    assert queue.next_request(0) == {key: MINE}
    queue.submit(key, MINE)
    assert len(queue) == 1
    queue.submit(key, AWAY)
    queue.failed(0)
    assert queue.next_request(50) == {}
    assert queue.next_deadline_ms() == 100
    assert queue.next_request(100) == {key: AWAY}
    queue.withdraw(key)
    queue.answered({key: ErrorCode.UNKNOWN_TOPIC_ID}, 100)
    assert len(queue) == 0


def test_a_move_that_was_cancelled_is_not_sent() -> None:
    """The directory in flight is right again, so the one that waited behind it is wrong."""
    queue = AssignmentQueue(backoff_ms=100)
    key = (TOPIC, 0)
    for directory in (MINE, AWAY, MINE):
        queue.submit(key, directory)
        queue.next_request(0)
    queue.answered({key: ErrorCode.NONE}, 0)
    assert queue.next_request(100) == {}
    assert len(queue) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_controller_knows_in_the_end_whatever_goes_wrong(seed: int) -> None:
    draw = random.Random(seed)
    queue = AssignmentQueue(backoff_ms=10)
    wanted: dict[tuple[UUID, int], UUID] = {}
    known: dict[tuple[UUID, int], UUID] = {}
    now_ms = 0.0
    for step in range(400):
        if step < 200 and draw.random() < 0.5:
            key = (TOPIC, draw.randrange(10))
            wanted[key] = draw.choice((MINE, AWAY))
            if known.get(key) == wanted[key]:
                queue.withdraw(key)
                if draw.random() < 0.5:
                    queue.submit(key, wanted[key])
            else:
                queue.submit(key, wanted[key])
        request = queue.next_request(now_ms)
        if request:
            outcome = draw.random()
            taken = dict(request) if outcome < 0.7 or step >= 300 else {}
            known.update(taken)
            if outcome < 0.6 or step >= 300:
                queue.answered(dict.fromkeys(taken, ErrorCode.NONE), now_ms)
            elif outcome < 0.8:
                queue.answered(dict.fromkeys(request, ErrorCode.NOT_CONTROLLER), now_ms)
            else:
                queue.failed(now_ms)
            for key in request:  # wrong assignments are submitted again
                if known.get(key) != wanted[key]:
                    queue.submit(key, wanted[key])
        now_ms += draw.choice((0, 5, 10))
    assert known == wanted
    assert len(queue) == 0


STEPS = ("mine", "away", "withdraw", "send", "accepted", "refused", "failed")


def test_a_request_names_only_what_still_holds() -> None:
    """All short series: a repetition of a withdrawn directory could take a sound replica for one that is offline."""
    key = (TOPIC, 0)
    directories = {"mine": MINE, "away": AWAY}
    for steps in itertools.product(STEPS, repeat=5):
        queue, now_ms = AssignmentQueue(backoff_ms=10), 0
        wanted: UUID | None = None
        recorded: UUID | None = None
        sent: UUID | None = None
        for step in (*steps, "accepted", "send", "accepted"):
            now_ms += 10
            if step in directories:
                wanted = directories[step]
                queue.submit(key, wanted)
            elif step == "withdraw":
                wanted = None
                queue.withdraw(key)
            elif step == "send":
                request = queue.next_request(now_ms)
                assert request in ({}, {key: wanted}), steps
                sent = request.get(key, sent)
            elif sent is not None:
                recorded = sent if step == "accepted" else recorded
                code = ErrorCode.NONE if step == "accepted" else ErrorCode.NOT_CONTROLLER
                queue.answered({} if step == "failed" else {key: code}, now_ms)
                sent = None
        assert wanted is None or recorded == wanted, steps
        assert len(queue) == 0, steps


def test_a_failed_request_delays_those_behind_it() -> None:
    """Also if nothing of it is repeated."""
    queue = AssignmentQueue(backoff_ms=100)
    queue.submit((TOPIC, 0), MINE)
    queue.next_request(0)
    queue.submit((TOPIC, 1), MINE)
    queue.withdraw((TOPIC, 0))
    queue.failed(0)
    assert queue.next_request(99) == {}
    assert queue.next_request(100) == {(TOPIC, 1): MINE}
