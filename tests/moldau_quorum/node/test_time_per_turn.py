"""Requests whose decisions take long are decided in several turns, however few they are.

While the controller decides, its node neither sends nor receives messages of the metadata log, and the voters elect
another leader. The test's clock goes on by 15 ms with each decision.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.messages.create_topics import CreateTopicsResponse
from moldau.runtime.tasks.sync import Signal
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.context import Result
from moldau_quorum.node.active_controller import DECISIONS_PER_TURN, STALL_MS, ActiveController
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


class Queue:
    """Requests that wait for their decision."""

    def __init__(self, waiting: list[int]) -> None:
        self.waiting = waiting

    def __len__(self) -> int:
        return len(self.waiting)

    def pop(self) -> int:
        return self.waiting.pop()


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


def test_requests_that_go_on_and_on_delay_no_timer() -> None:
    """A broker dies while the queue does not become empty; its partitions must not wait for the last request."""
    due: list[int] = []
    queue = list(range(4 * DECISIONS_PER_TURN))

    async def decide(pending: int) -> None:
        await trio.lowlevel.checkpoint()

    async def decide_timed() -> None:
        await trio.lowlevel.checkpoint()
        due.append(len(queue))

    controller: Any = SimpleNamespace(
        _environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0)),
        _queue=Queue(queue),
        _projection=SimpleNamespace(epoch=1, records_in_turn=0),
        _decide=decide,
        _decide_timed=decide_timed,
    )
    trio.run(ActiveController._decide_queued, controller)
    assert due == [3 * DECISIONS_PER_TURN, 2 * DECISIONS_PER_TURN, DECISIONS_PER_TURN, 0]


@pytest.mark.parametrize("due", ["_next_rebalance_ms", "_next_token_check_ms", "session"])
def test_the_controller_wakes_when_something_is_due(due: str) -> None:
    """No request comes meanwhile."""
    times = {"_next_rebalance_ms": math.inf, "_next_token_check_ms": math.inf, "session": math.inf} | {due: 5_000.0}
    deadline_ms = times.pop("session")
    controller: Any = SimpleNamespace(
        _environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1_000)),
        _projection=SimpleNamespace(epoch=1),
        _sessions=SimpleNamespace(next_deadline_ms=lambda: deadline_ms),
        _work=Signal(),
        _woken=False,
        **times,
    )

    async def main() -> float:
        with trio.move_on_after(60):
            await ActiveController._wait_for_work(controller)
        return trio.current_time()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(5)


@pytest.mark.parametrize(("late_ms", "extended"), [(50.0, []), (4_000.0, [4_000.0])])
def test_a_stall_of_the_process_is_no_silence_of_brokers(late_ms: float, extended: list[float]) -> None:
    """Stopped or starved, the controller could not hear the heartbeats that came meanwhile."""
    found: list[float] = []

    def monotonic_ms() -> float:
        now_ms = trio.current_time() * 1_000
        return now_ms + late_ms if now_ms >= 5_000 else now_ms

    controller: Any = SimpleNamespace(
        _environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=monotonic_ms)),
        _log=SimpleNamespace(warning=lambda *_, **__: None),
        _projection=SimpleNamespace(epoch=1),
        _sessions=SimpleNamespace(next_deadline_ms=lambda: 5_000.0, extend=found.append),
        _next_rebalance_ms=math.inf,
        _next_token_check_ms=math.inf,
        _work=Signal(),
        _woken=False,
    )
    trio.run(ActiveController._wait_for_work, controller, clock=trio.testing.MockClock(autojump_threshold=0))
    assert found == pytest.approx(extended)


@pytest.mark.parametrize("spent_ms", list(itertools.product([30.0, 400.0], repeat=3)))
def test_a_long_slice_counts_once_as_a_stall(spent_ms: tuple[float, ...]) -> None:
    """Between two slices the node hears its brokers, and each slice follows others whose time has counted already."""
    clock = SimpleNamespace(now_ms=0.0, monotonic_ms=lambda: clock.now_ms)
    extended: list[float] = []

    def slices():
        for took_ms in spent_ms:
            clock.now_ms += took_ms
            yield [object()]

    async def propose(_) -> None:
        clock.now_ms += 1_000.0  # it waits for the log
        await trio.lowlevel.checkpoint()

    controller: Any = SimpleNamespace(
        _environment=SimpleNamespace(clock=clock),
        _projection=SimpleNamespace(epoch=1, image=None, records_in_turn=0),
        _propose=propose,
        _sessions=SimpleNamespace(extend=extended.append),
    )
    trio.run(ActiveController._propose_slices, controller, slices(), SimpleNamespace(image=None))
    assert extended == [took_ms for took_ms in spent_ms if took_ms > STALL_MS]
