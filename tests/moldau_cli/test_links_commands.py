"""Goal: nodes of a local cluster are cut off and come back, from the command line and by the console's buttons.

Method: a cluster with one controller behind proxies; a cut broker loses its leadership and gets it back.
"""

import json

import pytest
import trio

from moldau_cli.console.faults import LocalNodes
from moldau_jepsen.chaos.network import panel
from moldau_jepsen.launcher import open_cluster
from support.commands import run_command
from support.interop.clients import create_topic, wait_for, wait_until

pytestmark = pytest.mark.processes
QUICK = ("--set", "broker.session.timeout.ms=3000", "--set", "broker.heartbeat.interval.ms=500")


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    directory = tmp_path_factory.mktemp("links") / "c"
    command(directory, "start", "--links", "--brokers", "3", "--controllers", "1", *QUICK, code=0)
    cluster = open_cluster(directory)
    try:
        create_topic(cluster.bootstrap, "t", 1, 3)
        yield cluster
    finally:
        command(directory, "stop", code=0)
        assert panel.cut_nodes(directory) is None, "the proxies have ended"


def command(directory, *words, code):
    done = run_command("cluster", *words, "--dir", str(directory), "--json")
    assert code in (None, done.returncode), done
    return done


def states(cluster):
    rows = json.loads(command(cluster.directory, "status", code=None).stdout)["nodes"]
    return {row["node"]: row["state"] for row in rows}


@pytest.mark.proof
def test_a_cut_leader_is_succeeded_and_comes_back(linked):
    """The cut holds its heartbeats back, so another replica leads; after the healing it is in sync again."""
    leader = wait_for(lambda: linked.partition_leader("t", 0), "the partition has a leader")
    command(linked.directory, "cut", str(leader), code=0)
    assert states(linked)[leader] == "cut"
    assert run_command("cluster", "status", "--dir", str(linked.directory)).returncode == 1
    others = [node.node_id for node in linked.brokers if node.node_id != leader]
    wait_until(lambda: linked.partition_leader("t", 0, ask=others[0]) in others, "another broker leads")
    command(linked.directory, "heal", str(leader), code=0)
    assert states(linked)[leader] == "running"
    wait_until(linked.is_whole, "all replicas are in sync")


def test_buttons_cut_and_heal(linked):
    nodes = LocalNodes(linked.directory)
    assert nodes.has_links
    assert trio.run(nodes.act, 2, "cut") == "You cut off broker 2."
    assert trio.run(nodes.states)[2] == "cut"
    assert trio.run(nodes.act, 2, "heal") == "You healed the links of broker 2."
    assert trio.run(nodes.states)[2] == "running"
    wait_until(linked.is_whole, "all replicas are in sync")


def test_unknown_nodes_and_unlinked_clusters_are_refused(linked, tmp_path):
    done = command(linked.directory, "cut", "9", code=2)
    assert "9" in json.loads(done.stderr)["error"]
    assert panel.cut_nodes(tmp_path) is None
    with pytest.raises(panel.LauncherUsageError, match="begun with `moldau cluster start --links`"):
        panel.change_cuts(tmp_path, 1, cut=True)
