"""Goal: the judge of a streams group convicts two actors, lost and older commits, and no run that follows the rules.

Method: histories made by hand, good and bad.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moldau_jepsen.checkers.group.streams import Commit, History, Holding, Read, StreamsAnomalyKind, judge

K = StreamsAnomalyKind
SESSION_MS = 1_000
TASK = ("0", 0)


def holding(member: str, begun: float, ended: float | None, *epochs: int, coordinator: str = "b1") -> Holding:
    return Holding(TASK, member, begun, ended, set(epochs), coordinator)


def commit(
    held: Holding, offset: int, begun: float, *, accepted: bool | None = True, coordinator: str = "b1"
) -> Commit:
    return Commit(
        holding=held,
        partition=0,
        offset=offset,
        begun_ms=begun,
        ended_ms=begun + 1,
        accepted=accepted,
        coordinator=coordinator,
    )


def kinds(history: History) -> list[StreamsAnomalyKind]:
    return [each.kind for each in judge(history, SESSION_MS)]


def test_a_task_that_is_released_first_may_move() -> None:
    history = History(holdings=[holding("m1", 0, 10, 1), holding("m2", 10, None, 2)])
    history.accepted = {"m1": [(0.0, "b1")], "m2": [(9.0, "b1")]}
    assert kinds(history) == []


def test_two_members_of_one_epoch_are_convicted() -> None:
    history = History(holdings=[holding("m1", 0, 10, 1), holding("m2", 10, None, 1)])
    assert kinds(history) == [K.TWO_IN_EPOCH]


@pytest.mark.parametrize(
    ("accepted", "coordinator", "is_wrong"),
    [
        (500.0, "b1", True),  # the coordinator heard of the first member just now
        (-600.0, "b1", False),  # its session may have ended
        (500.0, "b2", False),  # another coordinator, which had been replaced, accepted the heartbeat
    ],
)
def test_two_members_at_once_need_an_ended_session(accepted: float, coordinator: str, *, is_wrong: bool) -> None:
    history = History(holdings=[holding("m1", -700, None, 1), holding("m2", 600, None, 2)])
    history.accepted = {"m1": [(accepted, coordinator)], "m2": [(590.0, "b1")]}
    assert kinds(history) == ([K.TWO_AT_ONCE] if is_wrong else [])


def test_a_heartbeat_of_a_later_membership_convicts_nothing() -> None:
    """The member learned that it was removed, let its task go, and joined again: only then was it heard again."""
    history = History(holdings=[holding("m1", -700, 650, 1), holding("m2", 600, None, 2)])
    history.accepted = {"m1": [(-600.0, "b1"), (700.0, "b1")], "m2": [(590.0, "b1")]}
    assert kinds(history) == []


def test_a_member_that_never_let_go_is_convicted() -> None:
    """Another coordinator, which knew nothing of it, gave the task to a member that has released it since."""
    history = History(
        holdings=[
            holding("m1", 0, None, 1, coordinator="b2"),
            holding("m2", 2_000, 2_100, 2),
            holding("m3", 2_200, None, 3, coordinator="b2"),
        ]
    )
    history.accepted = {"m1": [(2_150.0, "b2")], "m2": [(1_990.0, "b1")], "m3": [(2_190.0, "b2")]}
    assert kinds(history) == [K.TWO_AT_ONCE]


def test_lost_and_older_commits_are_convicted() -> None:
    one, two = holding("m1", 0, 10, 1), holding("m2", 20, None, 2)
    history = History(holdings=[one, two], commits=[commit(one, 50, 5), commit(two, 40, 25)])
    history.reads = [Read(partition=0, offset=50, begun_ms=30), Read(partition=0, offset=40, begun_ms=40)]
    assert kinds(history) == [K.OFFSET_BACK, K.OFFSET_LOST]


@pytest.mark.parametrize(
    ("before", "reader", "after", "is_wrong"),
    [
        ("b2", "b1", "b2", False),  # the reader asked a coordinator that had been replaced
        ("b2", "b1", "b1", True),  # it came back, and had lost the commit
        ("b2", "b3", "b3", True),  # it took over, and had lost the commit
        ("b2", "b2", "b2", True),
        ("b2", "b2", "b1", True),  # it was replaced later, and had lost its own commit before
        ("b2", "b1", None, True),  # nothing tells that it was replaced
    ],
)
def test_an_older_offset_needs_a_replaced_coordinator(
    before: str, reader: str, after: str | None, *, is_wrong: bool
) -> None:
    held = holding("m1", 0, None, 1)
    history = History(holdings=[held], commits=[commit(held, 40, 1), commit(held, 50, 5, coordinator=before)])
    history.reads = [Read(partition=0, offset=40, begun_ms=10, coordinator=reader)]
    if after is not None:
        history.commits.append(commit(held, 60, 20, coordinator=after))
    assert kinds(history) == ([K.OFFSET_LOST] if is_wrong else [])


@pytest.mark.parametrize("accepted", [None, False])
def test_commits_that_may_have_failed_promise_nothing(accepted: bool | None) -> None:
    one, two = holding("m1", 0, 10, 1), holding("m2", 20, None, 2)
    history = History(holdings=[one, two], commits=[commit(one, 50, 5, accepted=accepted), commit(two, 40, 25)])
    assert kinds(history) == []


@pytest.mark.parametrize(
    ("offset", "is_wrong"),
    [
        (50, False),
        (60, False),  # the commit without an answer
        (70, True),  # the refused commit
        (80, True),  # of another partition
        (99, True),
    ],
)
def test_an_offset_comes_from_a_commit(offset: int, *, is_wrong: bool) -> None:
    held = holding("m1", 0, None, 1)
    commits = [commit(held, 50, 5), commit(held, 60, 10, accepted=None), commit(held, 70, 15, accepted=False)]
    commits.append(replace(commit(held, 80, 20), partition=1))
    history = History(holdings=[held], commits=commits)
    history.reads = [Read(partition=0, offset=offset, begun_ms=30), Read(partition=2, offset=-1, begun_ms=30)]
    assert kinds(history) == ([K.OFFSET_LOST] if is_wrong else [])
    history.reads = [Read(partition=2, offset=offset, begun_ms=30)]
    assert kinds(history) == [K.OFFSET_LOST], "nothing was committed there"


def test_a_group_without_rest_is_convicted() -> None:
    assert kinds(History(unsettled="the group is Reconciling")) == [K.NOT_SETTLED]
