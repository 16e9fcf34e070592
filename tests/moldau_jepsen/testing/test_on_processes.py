"""Goal: a coroutine test behaves on processes as in the simulation.

Its waits can be cancelled, its tasks may act at once, and its history includes that of its fixtures.

Method: a cluster without processes of its own. This process stands for its node, and what becomes of it is scripted.
"""

import os
import signal
import threading
from pathlib import Path

import pytest
import trio

from moldau_jepsen.launcher import LauncherError, Node
from moldau_jepsen.launcher.cluster import POLL_S
from moldau_jepsen.launcher.process import ProcessState, start_mark
from moldau_jepsen.testing.local import TestCluster
from moldau_jepsen.testing.pipeline import PipelineError
from moldau_jepsen.testing.scenario import run_on_processes

WAIT_S = 5


class Scripted(TestCluster):
    """One broker, which never serves; ``starts`` counts how often it was started."""

    def __init__(self):
        place = {"host": "h", "directory": "d", "config": "c", "log": "no-such-log"}
        node = Node(node_id=1, role="broker", port=1, **place)
        node.pid, node.started = os.getpid(), start_mark(os.getpid())
        super().__init__(Path("d"), [node])
        self.runs = True
        self.starts = 0
        self.second_start = threading.Event()
        self.on_look = lambda: None

    def state(self, node_id):
        return ProcessState.RUNNING if self.runs else ProcessState.STOPPED

    def _spawn(self, nodes):
        self.starts += len(nodes)
        if self.starts > 1:
            self.second_start.set()
        elif nodes:
            self.second_start.wait(0.2)  # a start that does not wait for this one comes meanwhile
        self.runs = True

    def _sees_all(self, node):
        self.on_look()
        return False


async def wait_healthy(cluster):
    await cluster.wait_healthy(WAIT_S)


def test_a_wait_ends_with_its_time_limit():
    async def scenario(cluster):
        with trio.move_on_after(0.05) as scope:
            await wait_healthy(cluster)
        assert scope.cancelled_caught

    run_on_processes(scenario, Scripted())


def test_a_wait_ends_at_an_interrupt(interruptible):
    local, looks = Scripted(), []

    def interrupt():
        looks.append(True)
        os.kill(os.getpid(), signal.SIGINT)

    local.on_look = interrupt
    with pytest.raises(KeyboardInterrupt):
        run_on_processes(wait_healthy, local)
    assert len(looks) < WAIT_S / POLL_S / 2


@pytest.mark.parametrize("call", ["start", "wait_healthy"])
def test_two_tasks_start_a_node_once(call):
    async def start(cluster):
        with trio.move_on_after(1):
            await (cluster.start(1) if call == "start" else cluster.wait_healthy(WAIT_S))

    async def scenario(cluster):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(start, cluster)
            nursery.start_soon(start, cluster)

    local = Scripted()
    local.runs = False
    if call == "start":
        with pytest.raises(ExceptionGroup) as caught:
            run_on_processes(scenario, local)
        assert caught.group_contains(LauncherError, match="node 1 runs already")
    else:
        run_on_processes(scenario, local)
    assert local.starts == 1


def test_the_history_of_a_fixture_is_judged():
    async def scenario(cluster):
        cluster.check()

    local = Scripted()
    local.history.sent("orders", 0, 0, "by a fixture")
    with pytest.raises(PipelineError, match="1 acknowledged without effect: 'by a fixture'"):
        run_on_processes(scenario, local)
