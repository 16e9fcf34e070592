"""Goal: each step of a change of voters waits for what makes it safe.

Method: ``VoterChanges`` over an engine whose members, progress and commits the test sets; time is virtual.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.log.port import ElectionTiming, Leadership, LogPosition, VoterEndpoint
from moldau_quorum.log.raft.core.types import configuration_of
from moldau_quorum.log.raft.voter_changes import VoterChanges
from moldau_quorum.log.raft.waiting import Pending

NEW = VoterEndpoint(voter_id=4, host="c4", port=9093)


class Engine:
    """Leads three voters with 100 committed entries; memberships are committed at once."""

    def __init__(self) -> None:
        self.leadership = Leadership(leader_id=1, epoch=5, active=True)
        self.configuration = configuration_of({number: (f"c{number}", 9093) for number in (1, 2, 3)})
        self.applied_index = 100
        self.match: int | None = None
        self.history: list[str] = []

    def member_match(self, member: int) -> int | None:
        return self.match

    def change_configuration(self, configuration, *, notify) -> Pending:
        self.configuration = configuration
        self.history.append(f"voters {sorted(configuration.voters)}, learners {sorted(configuration.learners)}")
        pending = Pending(LogPosition(index=101, epoch=5), 0, notify)
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
            for match in (None, 0, 99):
                engine.match = match
                progressed.notify()
                await trio.testing.wait_all_tasks_blocked()
                assert engine.history == ["voters [1, 2, 3], learners [4]"]
            engine.match = 100
            progressed.notify()
        assert engine.history[1:] == ["voters [1, 2, 3, 4], learners []"]

    trio.run(main)


def test_a_learner_that_has_moved_is_reached_at_its_new_address() -> None:
    """An earlier request left it in the membership, with the address of that time."""
    engine, progressed = Engine(), Signal()
    engine.configuration = engine.configuration.with_learner(replace(NEW, host="elsewhere"))
    engine.match = 100
    trio.run(changes_of(engine, progressed).add_voter, NEW)
    assert engine.history == ["voters [1, 2, 3], learners [4]", "voters [1, 2, 3, 4], learners []"]
    assert engine.configuration.voters[4] == NEW
