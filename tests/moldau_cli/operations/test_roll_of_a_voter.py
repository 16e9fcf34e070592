"""Goal: a restarted voter must have what the metadata log had when it was back, and not what the log got since.

Method: the roll alone, on virtual time; pictures of a quorum whose log grows, and a restarter of the test.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from moldau.admin import QuorumDescription, QuorumReplica
from moldau_cli.errors import CommandError
from moldau_cli.operations import rolling
from moldau_cli.operations.rolling import POLL_S, RollOptions, roll
from moldau_cli.plans.roll import Picture, RollNode

NODES = [RollNode(node_id=node, roles=("controller",), host="h", port=1) for node in (101, 102)]


@pytest.mark.parametrize("growth", range(4))
@pytest.mark.parametrize("lag", range(4))
def test_a_voter_that_stays_behind_a_busy_log_is_back(monkeypatch: Any, growth: int, lag: int) -> None:
    """The log gets ``growth`` records between two looks, and the voter never has the last ``lag`` ones."""
    restarts: list[float] = []
    looks = 0

    async def look_at_cluster(admin: object, ask: int | None = None) -> Picture:
        nonlocal looks
        await trio.lowlevel.checkpoint()
        looks += 1
        end, now_ms = 100 + looks * growth, round(1000 * trio.current_time())
        ends = {101: end, 102: end - lag * len(restarts)}
        voters = tuple(
            QuorumReplica(replica_id=node, log_end_offset=at, last_fetch_ms=now_ms, last_caught_up_ms=-1)
            for node, at in ends.items()
        )
        quorum = QuorumDescription(leader_id=101, leader_epoch=3, high_watermark=end, voters=voters, observers=())
        return Picture(quorum=quorum, live=frozenset(), topics={})

    class Restarter:
        async def restart(self, node: RollNode) -> None:
            await trio.lowlevel.checkpoint()
            restarts.append(trio.current_time())

    async def main() -> float:
        admin: Any = None
        await roll(admin, NODES, NODES[1:], Restarter(), RollOptions(timeout_s=60, force=False, elects=False))
        return trio.current_time() - restarts[0]

    monkeypatch.setattr(rolling, "look_at_cluster", look_at_cluster)
    clock = trio.testing.MockClock(autojump_threshold=0)
    if lag and not growth:
        with pytest.raises(CommandError, match=rf"controller 102 lacks {lag} records of the metadata log"):
            trio.run(main, clock=clock)
    else:  # the second look at the earliest shows that the voter answers again
        waits = max(1, math.ceil(lag / growth) if lag else 0)
        assert trio.run(main, clock=clock) == pytest.approx(waits * POLL_S)
