"""Goal: the work between a produce with acks=all and its acknowledgement does not grow unnoticed.

Method: three brokers on virtual time, and a client with one request in flight. The test counts the calls of Moldau's
functions and the steps of tasks, on all nodes and the client together; it measures no time. Both are exact.
"""

from __future__ import annotations

import sys
from typing import Any

import trio

from support.cluster.broker_cluster import batch, run_cluster

ROUNDS = 20
CALLS = 662
"""Of Moldau's functions, for one produce: two followers fetch it, and their next fetches acknowledge it."""
STEPS = 6.3
"""Of tasks: turns of three listeners, the two fetchers, and the client."""


class Work(trio.abc.Instrument):
    """Counts calls of Moldau's functions outside the simulated world, and steps of tasks."""

    def __init__(self) -> None:
        self.calls = self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.steps += 1

    def note(self, called: Any, event: str, _: object) -> None:
        if event == "call":
            name = called.f_code.co_filename
            if "/moldau" in name and "/moldau_jepsen/" not in name and "/tests/" not in name:
                self.calls += 1


def test_work_of_a_replicated_produce() -> None:
    async def scenario(cluster: Any) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        client = cluster.client(await cluster.leader("t"))
        records = batch(b"x" * 100)
        for _ in range(ROUNDS):
            await client.produce("t", records)
        work = Work()
        trio.lowlevel.add_instrument(work)
        sys.setprofile(work.note)
        try:
            for _ in range(ROUNDS):
                await client.produce("t", records)
        finally:
            sys.setprofile(None)
            trio.lowlevel.remove_instrument(work)
        assert work.calls <= CALLS * ROUNDS, work.calls / ROUNDS
        assert work.steps <= STEPS * ROUNDS, work.steps / ROUNDS

    run_cluster(scenario, brokers=3)
