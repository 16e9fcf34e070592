"""Goal: a command sees what the one before it has done.

Method: the file of a cluster that another command changes just before it gives its lock away, or whose nodes never ran.
"""

import json
import signal
from contextlib import contextmanager

import pytest

from moldau_cli.commands import cluster as commands
from moldau_cli.main import main
from moldau_cli.operations.local import locked_cluster
from moldau_jepsen import launcher
from moldau_jepsen.launcher import cluster, directories
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.launcher.spec import FILE_NAME, ClusterSpec, LauncherUsageError, plan_nodes, to_json


def test_a_command_sees_what_the_one_before_it_did(tmp_path, monkeypatch):
    """It opened the cluster before it had the lock, and wrote the processes that it had seen back."""
    nodes = plan_nodes(ClusterSpec(brokers=1, controllers=1), tmp_path, (1, 2))
    (tmp_path / FILE_NAME).write_text(to_json(nodes))
    lock = directories.exclusive

    @contextmanager
    def late(directory):
        nodes[0].pid, nodes[0].started = 4321, "later"
        (tmp_path / FILE_NAME).write_text(to_json(nodes))
        with lock(directory):
            yield

    monkeypatch.setattr(directories, "exclusive", late)
    with locked_cluster(tmp_path) as opened:
        assert (opened.node(1).pid, opened.node(1).started) == (4321, "later")


def test_nodes_that_do_not_run_are_not_stopped(tmp_path, capsys):
    """A second `cluster stop` reported all nodes as stopped once more."""
    (tmp_path / FILE_NAME).write_text(to_json(plan_nodes(ClusterSpec(brokers=1, controllers=1), tmp_path, (1, 2))))
    assert main(["cluster", "stop", "--dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "stopped 0 nodes; 2 nodes did not run\n"
    assert main(["cluster", "stop", "--dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": 0, "killed": []}


@pytest.mark.parametrize("state", ["starting", "serving", "paused"])
def test_a_start_waits_for_nodes_that_are_starting(tmp_path, monkeypatch, capsys, state):
    """After a killed restart it said that the cluster runs already, although a broker did not serve yet."""
    nodes = plan_nodes(ClusterSpec(brokers=1, controllers=1), tmp_path, (1, 2))
    (tmp_path / FILE_NAME).write_text(to_json(nodes))
    running = ProcessState.PAUSED if state == "paused" else ProcessState.RUNNING

    def status(opened):
        return [
            cluster.NodeStatus(
                node_id=node.node_id,
                role=node.role,
                address=node.address,
                pid=1,
                state=running,
                fenced=(None if state != "serving" else False) if node.role == "broker" else None,
                rss_bytes=0,
            )
            for node in opened.nodes
        ]

    waited = []
    monkeypatch.setattr(cluster.LocalCluster, "status", status)
    monkeypatch.setattr(commands, "_start_again", lambda opened, timeout_s: waited.append(timeout_s) or [])
    code = main(["cluster", "start", "--dir", str(tmp_path)])
    assert (code, len(waited)) == ((0, 1) if state == "starting" else (1, 0))
    assert ("already runs at" in capsys.readouterr().err) is (state != "starting")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_start_that_is_ended_by_a_signal_cleans_up(tmp_path, monkeypatch, capsys, number):
    """It ended at once, also when its terminal was closed: nodes ran on, and no file named them."""
    ended = []

    def start_cluster(*_, **__):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            ended.append("cleaned up")
            raise

    monkeypatch.setattr(launcher, "start_cluster", start_cluster)
    before = signal.signal(number, lambda *_: ended.append("killed"))
    try:
        assert main(["cluster", "start", "--dir", str(tmp_path)]) == 130
    finally:
        signal.signal(number, before)
    assert (ended, capsys.readouterr().err) == (["cleaned up"], "moldau: interrupted\n")


def test_a_directory_without_a_cluster_gets_no_lock(tmp_path):
    with pytest.raises(LauncherUsageError, match="no cluster in"), locked_cluster(tmp_path / "typo"):
        pass
    assert list(tmp_path.iterdir()) == []
