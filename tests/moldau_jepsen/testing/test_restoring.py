"""A shared cluster is whole when the next test begins, whatever ended its nodes.

Goal: no test meets a node that an earlier one has lost. Method: a cluster without processes, whose nodes have the
states that the test gives them.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.launcher import LauncherError, Node
from moldau_jepsen.launcher.control import CONTROL, ControlReader, ControlWriter
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.testing.local import TestCluster


class Scripted(TestCluster):
    """Two nodes; ``did`` has what was done to them."""

    def __init__(self, hostile=""):
        places = {"host": "h", "directory": "d", "config": "c", "log": "l", "hostile": str(hostile)}
        nodes = [Node(node_id=number, role="broker", port=number, **places) for number in (1, 2)]
        super().__init__(Path("d"), nodes)
        self.states = {1: ProcessState.RUNNING, 2: ProcessState.RUNNING}
        self.did = []
        self.starts = True

    def state(self, node_id):
        return self.states[node_id]

    def resume(self, node_id):
        self.did.append(f"resume {node_id}")

    def start_all(self, *, ready_timeout_ms=0):
        self.did.append("start")
        if not self.starts:
            raise LauncherError("broker 2 did not start")
        self.states = dict.fromkeys(self.states, ProcessState.RUNNING)

    def shut_down(self):
        self.did.append("shut down")

    def wipe(self, node_id):
        self.did.append(f"wipe {node_id}")


@pytest.fixture
def cluster():
    return Scripted()


def test_a_cluster_that_was_left_alone_is_left_alone(cluster):
    cluster.restore()
    assert cluster.did == []


@pytest.mark.parametrize("touched", [False, True])
def test_the_next_test_begins_with_an_empty_history(cluster, touched):
    cluster.touched = touched
    cluster.history.sent("t", 0, 0, "lost")
    cluster.restore()
    cluster.check()


def test_a_node_that_ended_without_a_fault_is_started(cluster):
    """The broker crashed, or the test ended it by its process id or by the command line."""
    cluster.states[2] = ProcessState.STOPPED
    cluster.restore()
    assert cluster.did == ["start"]
    cluster.restore()
    assert cluster.did == ["start"]


def test_a_node_that_was_paused_from_elsewhere_goes_on(cluster):
    cluster.states[1] = ProcessState.PAUSED
    cluster.restore()
    assert cluster.did == ["resume 1", "start"]


def test_cuts_by_the_links_themselves_are_healed(cluster):
    """A test may call ``cluster.links``, which knows what the cluster's own calls do not: ``isolate``."""
    links = cluster._fabric = LinkFabric({1: 1, 2: 2}, {1: 3, 2: 4})
    links._call = lambda function, *arguments: function(*arguments)  # without a thread
    for cut in (lambda: links.cut(1), lambda: links.slow(1, 5), lambda: links.isolate(2)):
        cut()
        cluster.restore()
        assert links.in_force == []
    assert cluster.did == ["start"] * 3
    cluster.restore()
    assert cluster.did == ["start"] * 3


@pytest.mark.parametrize("starts", [True, False])
def test_no_disk_stays_full(tmp_path, starts):
    """The broker ended again as soon as it was started, also with an empty disk."""
    ControlWriter(tmp_path / CONTROL).close()
    cluster = Scripted(tmp_path)
    cluster.fill_disk(1)
    cluster.states[1] = ProcessState.STOPPED
    cluster.starts = starts
    with nullcontext() if starts else pytest.raises(LauncherError):
        cluster.restore()
    assert ControlReader(tmp_path / CONTROL).read().disk_full == 0.0
    cluster.fill_disk(1)
    cluster.starts = True
    cluster.make_whole()
    assert ControlReader(tmp_path / CONTROL).read().disk_full == (1.0 if starts else 0.0)


def test_each_loss_of_power_has_a_seed_of_its_own(tmp_path):
    """Nodes would else lose the same share of their writes, each time."""
    cluster, seeds = Scripted(tmp_path), []
    cluster.states = dict.fromkeys(cluster.states, ProcessState.STOPPED)
    cluster.lose_power = lambda node_id, seed: seeds.append((node_id, seed))
    cluster.power_loss()
    cluster.power_loss(2)
    assert [node_id for node_id, _ in seeds] == [1, 2, 2]
    assert len({seed for _, seed in seeds}) == 3


def test_a_node_that_does_not_start_again_begins_empty(cluster):
    cluster.states[2] = ProcessState.STOPPED
    cluster.starts = False
    with pytest.raises(LauncherError):
        cluster.restore()
    cluster.starts = True
    whole = ["start", "shut down", "wipe 1", "wipe 2", "start"]
    for _ in range(2):  # the second time there is nothing left to do: the disks keep what tests write since
        cluster.make_whole()
        cluster.restore()
        assert cluster.did == whole


def test_a_cluster_that_cannot_be_made_whole_is_tried_again(cluster):
    cluster.touched = True
    cluster.starts = False
    for call in (cluster.restore, cluster.make_whole, cluster.make_whole):
        with pytest.raises(LauncherError):
            call()
    cluster.starts = True
    cluster.did.clear()
    cluster.make_whole()
    assert cluster.did == ["shut down", "wipe 1", "wipe 2", "start"]
