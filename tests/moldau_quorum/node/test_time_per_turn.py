"""Requests whose decisions take long are decided in several turns, however few they are.

While the controller decides, its node neither sends nor receives messages of the metadata log, and the voters elect
another leader. The test's clock goes on by 15 ms with each decision.
"""

from __future__ import annotations

from dataclasses import replace

import trio

from moldau.protocol.messages.create_topics import CreateTopicsResponse
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.context import Result
from support.quorum.cluster import TestCluster, topic
from support.quorum.memory_log import MemoryLog

DECISION_MS = 15.0


class LateClock:
    """The clock of the world, and what decisions have taken."""

    def __init__(self, clock) -> None:
        self._clock = clock
        self.spent_ms = 0.0

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms() + self.spent_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms()


class Turns(trio.abc.Instrument):
    """Keeps the most decisions of a turn."""

    def __init__(self) -> None:
        self.decisions = self.largest = 0

    def before_task_step(self, task) -> None:
        self.decisions = 0

    def after_task_step(self, task) -> None:
        self.largest = max(self.largest, self.decisions)


def test_long_decisions_are_made_in_several_turns(monkeypatch) -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        active = (await cluster.wait_active()).running.active
        clock, turns = LateClock(active._environment.clock), Turns()
        monkeypatch.setattr(active, "_environment", replace(active._environment, clock=clock))

        def decide(request, knowledge):
            clock.spent_ms += DECISION_MS
            turns.decisions += 1
            return Result(response=CreateTopicsResponse(topics=[]))

        monkeypatch.setattr("moldau_quorum.node.active_controller.CHANGES", {19: decide})
        trio.lowlevel.add_instrument(turns)
        waiting = [active.submit(topic(f"t{number}"), None) for number in range(40)]
        responses = [await active.answer(pending) for pending in waiting]
        trio.lowlevel.remove_instrument(turns)
        assert len(responses) == 40
        assert turns.largest == 2
        assert not world.failures

    run_world(main, 89)
