"""Goal: each step of a change of voters waits for what makes it safe.

Method: ``VoterChanges`` over an engine whose members, progress and commits the test sets; time is virtual.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import ZERO_UUID
from moldau_quorum.log.port import (
    ElectionTiming,
    Leadership,
    LogBusyError,
    LogPosition,
    MembershipBusyError,
    MembershipChangeError,
    MembershipTimeoutError,
    VoterEndpoint,
)
from moldau_quorum.log.raft.core.types import configuration_of
from moldau_quorum.log.raft.voter_changes import ABANDONED_MS, FIRST_ANSWER_MS, VoterChanges
from moldau_quorum.log.raft.waiting import Pending

NEW = VoterEndpoint(voter_id=4, host="c4", port=9093)
DISK = UUID(int=7)


class Engine:
    """Leads three voters with 100 committed entries; memberships are committed at once, or never."""

    def __init__(self) -> None:
        self.leadership = Leadership(leader_id=1, epoch=5, active=True)
        self.configuration = configuration_of({number: (f"c{number}", 9093) for number in (1, 2, 3)})
        self.applied_index = 100
        self.match: int | None = None
        self.commits = True
        self.history: list[str] = []

    def member_match(self, member: int) -> int | None:
        return self.match

    def change_configuration(self, configuration, *, notify) -> Pending:
        self.configuration = configuration
        self.history.append(f"voters {sorted(configuration.voters)}, learners {sorted(configuration.learners)}")
        pending = Pending(LogPosition(index=101, epoch=5), 0, notify)
        if self.commits:
            pending.finish()
        return pending


def changes_of(engine: Engine, progressed: Signal) -> VoterChanges:
    config: Any = SimpleNamespace(node_id=1, timing=ElectionTiming())
    node: Any = engine
    return VoterChanges(
        SimpleNamespace(),  # type: ignore[arg-type]
        config,
        node=lambda: node,
        progressed=progressed,
        kick=lambda: None,
        logger=EventLogger("test", node=1),
    )


def test_a_new_voter_votes_when_it_holds_all_that_is_committed() -> None:
    """An answer alone is not enough: the quorum would need the vote of a node that still has to catch up."""
    engine, progressed = Engine(), Signal()
    changes = changes_of(engine, progressed)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.add_voter, NEW)
            for match, engine.applied_index in ((None, 90), (0, 90), (89, 90), (99, 100)):  # the others go on meanwhile
                engine.match = match
                progressed.notify()
                await trio.testing.wait_all_tasks_blocked()
                assert engine.history == ["voters [1, 2, 3], learners [4]"]
            engine.match = 100
            progressed.notify()
        assert engine.history[1:] == ["voters [1, 2, 3, 4], learners []"]

    trio.run(main)


def test_a_new_voter_that_gives_no_answer_is_not_waited_for() -> None:
    """At a wrong port nothing answers, or something else does: that does not change while the leader waits."""
    engine = Engine()

    async def main() -> float:
        with pytest.raises(MembershipTimeoutError) as caught:
            await changes_of(engine, Signal()).add_voter(NEW)
        assert str(caught.value) == (
            "no controller with the id 4 has answered at c4:9093 within 15 s, so it was not added: start it first, and "
            "give the address of its controller listener"
        )
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == FIRST_ANSWER_MS / 1000
    assert engine.history == ["voters [1, 2, 3], learners [4]", "voters [1, 2, 3], learners []"]


def test_a_new_voter_that_has_answered_is_waited_for() -> None:
    """It takes a snapshot meanwhile, or its disk is slow."""
    engine, progressed = Engine(), Signal()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes_of(engine, progressed).add_voter, NEW)
            await trio.sleep(0.9 * FIRST_ANSWER_MS / 1000)
            engine.match = 0
            progressed.notify()
            await trio.sleep(FIRST_ANSWER_MS / 1000)
            engine.match = 100
            progressed.notify()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert engine.history[1:] == ["voters [1, 2, 3, 4], learners []"]


def test_a_learner_that_has_moved_is_reached_at_its_new_address() -> None:
    """An earlier request left it in the membership, with the address of that time."""
    engine, progressed = Engine(), Signal()
    engine.configuration = engine.configuration.with_learner(replace(NEW, host="elsewhere"))
    engine.match = 100
    trio.run(changes_of(engine, progressed).add_voter, NEW)
    assert engine.history == ["voters [1, 2, 3], learners [4]", "voters [1, 2, 3, 4], learners []"]
    assert engine.configuration.voters[4] == NEW


def test_a_learner_that_comes_again_waits_from_then_on() -> None:
    """A node of that id with another disk is another learner: the request that adds it may still be repeated."""
    engine, progressed = Engine(), Signal()
    changes = changes_of(engine, progressed)
    wait_s = ABANDONED_MS / 1000

    async def main() -> None:
        first = engine.configuration
        engine.configuration = first.with_learner(NEW)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.drop_abandoned)
            await trio.sleep(0.5 * wait_s)
            engine.configuration = first.with_learner(replace(NEW, directory_id=DISK))
            await trio.sleep(wait_s)
            assert engine.history == [], "the second one waits for half of the time"
            await trio.sleep(wait_s)
            assert engine.history == ["voters [1, 2, 3], learners []"]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_learner_that_a_request_adds_is_not_abandoned() -> None:
    """However long it takes to catch up."""
    engine, progressed = Engine(), Signal()
    changes = changes_of(engine, progressed)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.drop_abandoned)
            nursery.start_soon(changes.add_voter, NEW)
            engine.match = 0
            progressed.notify()
            await trio.sleep(5 * ABANDONED_MS / 1000)
            assert engine.history == ["voters [1, 2, 3], learners [4]"]
            engine.match = 100
            progressed.notify()
            await trio.sleep(5 * ABANDONED_MS / 1000)
            assert engine.history[1:] == ["voters [1, 2, 3, 4], learners []"]
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("asked", ["add", "remove", "update"])
@pytest.mark.parametrize("running", ["add", "remove", "update"])
def test_a_refused_change_does_not_end_the_one_under_way(running: str, asked: str) -> None:
    """The next request is refused, too, and the learner of the running one is not taken for abandoned."""
    engine: Any = Engine()
    engine.status = lambda now_ms, wall_ms: SimpleNamespace(replicas=[])
    progressed = Signal()
    engine.match, engine.commits = 0, running == "add"  # which waits for its learner
    changes = changes_of(engine, progressed)
    changes._environment = SimpleNamespace(  # type: ignore[assignment]
        clock=SimpleNamespace(wall_ms=lambda: 60_000, monotonic_ms=lambda: 50_000)
    )
    calls = {
        "add": partial(changes.add_voter, NEW),
        "remove": partial(changes.remove_voter, 3),
        "update": partial(changes.update_voter, VoterEndpoint(voter_id=2, host="moved", port=9093)),
    }

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(changes.drop_abandoned)
            nursery.start_soon(calls[running])
            await trio.testing.wait_all_tasks_blocked()
            before = list(engine.history)
            for _ in range(2):
                with pytest.raises(MembershipBusyError), trio.fail_after(1):
                    await calls[asked]()
                progressed.notify()
                await trio.sleep(3 * ABANDONED_MS / 1000)
            assert engine.history == before
            nursery.cancel_scope.cancel()
        engine.commits = True
        await changes.remove_voter(2)  # no other change is under way any more
        assert 2 not in engine.configuration.voters

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("known", "named", "is_removed"),
    [
        (DISK, DISK, True),
        (DISK, ZERO_UUID, True),
        (ZERO_UUID, DISK, True),
        (DISK, UUID(int=8), False),
    ],
)
@pytest.mark.parametrize("voter_id", [3, 4])
def test_only_the_named_disk_is_removed(known: UUID, named: UUID, is_removed: bool, voter_id: int) -> None:
    """A voter or a learner has come back with a new disk: the removal of its former one is not about it."""
    engine, progressed = Engine(), Signal()
    member = replace(NEW, voter_id=voter_id, directory_id=known)
    configuration = engine.configuration.without(voter_id).with_learner(member)
    engine.configuration = configuration.with_voter(voter_id) if voter_id == 3 else configuration
    before = engine.configuration
    with nullcontext() if is_removed else pytest.raises(MembershipChangeError):
        trio.run(changes_of(engine, progressed).remove_voter, voter_id, named)
    assert engine.configuration == (before.without(voter_id) if is_removed else before)


@pytest.mark.parametrize("asked", ["add", "remove", "update"])
def test_a_change_keeps_the_one_that_it_waited_for(asked: str) -> None:
    """The leader writes a voter's directory into the membership meanwhile, which must stay there."""
    engine: Any = Engine()
    engine.status = lambda now_ms, wall_ms: SimpleNamespace(replicas=[])
    progressed = Signal()
    engine.match = 100
    changes = changes_of(engine, progressed)
    changes._environment = SimpleNamespace(  # type: ignore[assignment]
        clock=SimpleNamespace(wall_ms=lambda: 60_000, monotonic_ms=lambda: 50_000)
    )
    usual = engine.change_configuration

    def busy(configuration: Any, *, notify: Any) -> Pending:
        raise LogBusyError("another change is under way")

    async def main() -> None:
        engine.change_configuration = busy
        call = {
            "add": partial(changes.add_voter, NEW),
            "remove": partial(changes.remove_voter, 3),
            "update": partial(changes.update_voter, VoterEndpoint(voter_id=3, host="moved", port=9093)),
        }[asked]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            before = engine.configuration
            known = replace(before.voters[2], directory_id=DISK)
            engine.configuration = replace(before, voters={**before.voters, 2: known})
            engine.change_configuration = usual
            progressed.notify()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    voters = engine.configuration.voters
    assert voters[2].directory_id == DISK
    hosts = {1: "c1", 2: "c2", 3: "c3"}
    wanted = {"add": {**hosts, 4: "c4"}, "remove": {1: "c1", 2: "c2"}, "update": {**hosts, 3: "moved"}}
    assert {number: voter.host for number, voter in voters.items()} == wanted[asked]


@pytest.mark.parametrize("silent", [2, 3])
def test_a_silent_voter_does_not_take_over(silent: int) -> None:
    """In an idle log a dead voter holds as much as the others, or more: its answers came first."""
    engine: Any = Engine()
    targets: list[int] = []
    engine.epoch, engine.transfer = 5, targets.append
    engine.member_match = lambda member: 101 if member == silent else 100
    rows = [
        SimpleNamespace(
            voter=SimpleNamespace(voter_id=voter), last_fetch_timestamp_ms=9_000 if voter == silent else 60_000
        )
        for voter in (1, 2, 3)
    ]
    engine.status = lambda now_ms, wall_ms: SimpleNamespace(replicas=rows)
    changes = changes_of(engine, Signal())
    changes._environment = SimpleNamespace(  # type: ignore[assignment]
        clock=SimpleNamespace(wall_ms=lambda: 60_000, monotonic_ms=lambda: 50_000)
    )
    with pytest.raises(MembershipChangeError, match="did not take the leadership over in time"):
        trio.run(changes.transfer_leadership, clock=trio.testing.MockClock(autojump_threshold=0))
    assert targets == [5 - silent]
