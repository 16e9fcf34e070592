"""Goal: a run starts the nodes of another system by commands, strikes their processes, and ends them.

Method: shell commands that sleep; the metadata that they would answer is made up.
"""

from __future__ import annotations

import os
import random
import signal
import sys

import pytest
import trio

from moldau.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from moldau_jepsen.chaos.nemesis.nemesis import Nemesis
from moldau_jepsen.chaos.options import ChaosOptions, once_more, refuse_impossible
from moldau_jepsen.chaos.outside import OutsideNode, OutsideProcesses, parse_node
from moldau_jepsen.chaos.run import run_chaos
from moldau_jepsen.chaos.spark.processes import kill_all, process_rows
from moldau_jepsen.faults.kinds import FaultKind, Target, TargetedFault
from moldau_jepsen.launcher import LauncherError, LauncherUsageError
from moldau_jepsen.launcher.process import ProcessState

SLEEPER = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")


def answer(brokers: int, isr: tuple[int, ...]) -> MetadataResponse:
    partition = MetadataResponsePartition(replica_nodes=[1, 2], isr_nodes=list(isr))
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=number) for number in range(brokers)],
        topics=[MetadataResponseTopic(name="t", partitions=[partition])],
    )


@pytest.fixture
def cluster(tmp_path):
    made = OutsideProcesses(
        [OutsideNode(node_id=number, command=SLEEPER) for number in (1, 2)], ("127.0.0.1", 1), tmp_path / "nodes"
    )
    made._ask = lambda _: answer(2, (1, 2))
    yield made
    made.shut_down()


def test_nodes_are_killed_paused_and_started_again(cluster, tmp_path):
    assert cluster.state(1) is ProcessState.STOPPED
    trio.run(cluster.start)
    assert [cluster.state(number) for number in (1, 2)] == [ProcessState.RUNNING] * 2
    cluster.pause(1)
    cluster.kill(2)
    assert cluster.state(2) is ProcessState.STOPPED
    assert cluster._children[1].poll() is None
    cluster.resume(1)
    assert cluster.stop_node(1)
    cluster.launch(1)
    assert cluster.state(1) is ProcessState.RUNNING
    cluster.shut_down()
    assert [cluster.state(number) for number in (1, 2)] == [ProcessState.STOPPED] * 2
    assert (tmp_path / "nodes/node-2.log").exists()


def test_a_node_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("moldau_jepsen.chaos.outside.STOP_S", 0.0)
    cluster = OutsideProcesses([OutsideNode(node_id=5, command=SLEEPER)], ("127.0.0.1", 1), tmp_path)
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the node inherits it: it is deaf from its first moment
    try:
        cluster.launch(5)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not cluster.stop_node(5)
    assert cluster.state(5) is ProcessState.STOPPED
    with pytest.raises(LauncherError, match="node 5 does not run"):
        cluster.pause(5)
    with pytest.raises(LauncherUsageError, match="no node 6 in this cluster; its nodes are 5"):
        cluster.launch(6)


def test_a_node_that_ends_at_once_is_stopped(tmp_path, monkeypatch):
    """It has ended by SIGTERM before SIGCONT, which a paused node needs, is sent."""
    cluster = OutsideProcesses([OutsideNode(node_id=5, command=SLEEPER)], ("127.0.0.1", 1), tmp_path)
    cluster.launch(5)
    send = os.killpg

    def wait_for_end(group, number):
        send(group, number)
        if number == signal.SIGTERM:
            cluster._children[5].wait(60)

    monkeypatch.setattr(os, "killpg", wait_for_end)
    assert cluster.stop_node(5)
    assert cluster.state(5) is ProcessState.STOPPED


def test_a_node_that_ends_just_after_its_time_is_stopped(tmp_path, monkeypatch):
    """It has ended by SIGTERM, between the last look and SIGKILL."""
    cluster = OutsideProcesses([OutsideNode(node_id=5, command=SLEEPER)], ("127.0.0.1", 1), tmp_path)
    cluster.launch(5)
    wait = cluster._wait_ended

    def too_early(node_id, seconds):
        wait(node_id, seconds)
        monkeypatch.setattr(cluster, "_wait_ended", wait)
        raise LauncherError("node 5 did not end within 60 s")

    monkeypatch.setattr(cluster, "_wait_ended", too_early)
    assert cluster.stop_node(5)
    assert cluster.state(5) is ProcessState.STOPPED


SLOW_TO_END = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[1]).write_text("in order")
    raise SystemExit
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""


def test_a_node_below_a_script_has_ended_after_its_stop(tmp_path):
    """SIGTERM ends the script at once. The next process of the node would find the port and the log still in use."""
    ended, program = tmp_path / "ended", tmp_path / "program.py"
    program.write_text(SLOW_TO_END)
    command = ("sh", "-c", f"{sys.executable} {program} {ended}; true")
    cluster = OutsideProcesses([OutsideNode(node_id=5, command=command)], ("127.0.0.1", 1), tmp_path)
    cluster.launch(5)
    log = tmp_path / "node-5.log"
    while "up" not in log.read_text():
        assert cluster.state(5) is ProcessState.RUNNING
    assert cluster.stop_node(5)
    assert ended.read_text() == "in order"


def test_a_command_that_cannot_run_is_named(tmp_path):
    cluster = OutsideProcesses([OutsideNode(node_id=1, command=("/no/such/program",))], ("127.0.0.1", 1), tmp_path)
    with pytest.raises(LauncherError, match=r"node 1: .*'/no/such/program'"):
        trio.run(cluster.start)


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_ends_is_named(tmp_path, code):
    """It has failed, or it starts its node in the background, where no signal would reach it."""
    command = (sys.executable, "-c", f"print('no such file'); raise SystemExit({code})")
    nodes = [OutsideNode(node_id=1, command=SLEEPER), OutsideNode(node_id=2, command=command)]
    cluster = OutsideProcesses(nodes, ("127.0.0.1", 1), tmp_path)

    def ask(_: object) -> None:
        cluster._children[2].wait(60)

    cluster._ask = ask
    try:
        with pytest.raises(LauncherError, match=f"node 2: the command ended with exit code {code}, .*: no such file"):
            trio.run(cluster.start)
    finally:
        cluster.shut_down()


def test_a_node_left_in_the_background_is_ended(tmp_path):
    """It would hold its port, so that the next run, with a command that stays, could not begin."""
    number = tmp_path / "number"
    command = ("sh", "-c", f"sleep 600 & echo $! > {number}")
    cluster = OutsideProcesses([OutsideNode(node_id=1, command=command)], ("127.0.0.1", 1), tmp_path)
    cluster._ask = lambda _: cluster._children[1].wait(60) or None
    with pytest.raises(LauncherError, match="must run as long as the node"):
        trio.run(cluster.start)
    left = int(number.read_text())
    try:
        assert left in process_rows()
        cluster.shut_down()
        assert left not in process_rows()
    finally:
        kill_all([left])


def test_nodes_of_a_start_that_failed_are_ended(tmp_path, monkeypatch):
    """A later command cannot be run: the nodes of those before it ran on."""
    ended = []
    original = OutsideProcesses.shut_down

    def shut_down(cluster):
        ended.append(cluster.state(1))
        original(cluster)
        ended.append(cluster.state(1))

    monkeypatch.setattr(OutsideProcesses, "shut_down", shut_down)
    nodes = (OutsideNode(node_id=1, command=SLEEPER), OutsideNode(node_id=2, command=("/no/such/program",)))
    options = ChaosOptions(directory=tmp_path / "run", bootstrap="127.0.0.1:1", brokers=2, kinds=(), nodes=nodes)
    with pytest.raises(LauncherError, match="node 2"):
        run_chaos(options)
    assert ended == [ProcessState.RUNNING, ProcessState.STOPPED]


@pytest.mark.parametrize(
    ("brokers", "isr", "whole"), [(2, (1, 2), True), (1, (1, 2), False), (2, (1,), False)], ids=["all", "one", "isr"]
)
def test_a_cluster_is_whole_with_all_nodes_and_replicas(cluster, brokers, isr, whole):
    cluster._ask = lambda _: answer(brokers, isr)
    assert cluster.is_whole() is whole


def test_the_nemesis_strikes_them(cluster):
    trio.run(cluster.start)
    first = dict(cluster._children)
    reported = []

    class Operations:
        async def broker_leaders(self):
            return [2]

    async def main():
        nemesis = Nemesis(cluster, None, Operations(), reported.append)
        fault = TargetedFault(kind=FaultKind.KILL, target=Target.LEADERS, begin=0.0, end=0.1, number=1)
        await nemesis.run([fault])
        await nemesis.recover()
        return nemesis.deaths

    assert trio.run(main) == []
    assert [(event.kind, event.nodes) for event in reported] == [("kill", (2,))]
    assert cluster._children[1] is first[1]
    assert cluster._children[2] is not first[2]
    assert random.Random(1).random() < 0.35, "a draw that names controllers, which this cluster does not have"


def test_nodes_are_given_as_ids_with_commands(tmp_path):
    node = parse_node("3=bin/kafka-server-start.sh 'my file'")
    assert node == OutsideNode(node_id=3, command=("bin/kafka-server-start.sh", "my file"))
    for text in ("3", "=x", "a=x", "3=", "3='x"):
        with pytest.raises(LauncherUsageError, match="node"):
            parse_node(text)
    options = ChaosOptions(
        directory=tmp_path / "run", bootstrap="h:1", nodes=[node], kinds=(FaultKind.KILL, FaultKind.ELECT)
    )
    refuse_impossible(options)
    assert """ --node '3=bin/kafka-server-start.sh '"'"'my file'"'"''""" in once_more(options)
    for wrong, said in (
        ({"bootstrap": None}, "need their address"),
        ({"nodes": ()}, "faults kill need the cluster's own processes"),
        ({"nodes": [node, node]}, "two nodes have the same id"),
        ({"kinds": (FaultKind.POWER,)}, "only kill, pause, restart, reassign, elect work"),
    ):
        given = {"bootstrap": "h:1", "nodes": [node], "kinds": (FaultKind.KILL,), **wrong}
        with pytest.raises(LauncherUsageError, match=said):
            refuse_impossible(ChaosOptions(directory=tmp_path / "run", **given))
