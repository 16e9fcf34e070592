"""Goal: a loaded cluster goes from an older release to this one, back, and on to new feature levels; nothing is lost.

Method: the older release's wheel is built from its commit and installed beside the working copy. Nodes are processes;
``moldau cluster roll`` restarts them with a command, as on machines of their own. Producers, a transactional producer
and a group work all the time and may not see an error; afterwards the topics are compared with what was acknowledged.
"""

import json
import re
import subprocess
from contextlib import contextmanager

import pytest

from support.commands import run_command
from support.interop.clients import wait_until
from support.upgrade import nodes as node_processes
from support.upgrade.load import TOPICS, Load
from support.upgrade.nodes import BROKERS, CONTROLLERS, lay_out
from support.upgrade.releases import (
    FIRST,
    PREVIOUS,
    ROOT,
    ReleaseAbsentError,
    clean_environment,
    current_release,
    install,
)

pytestmark = [pytest.mark.processes, pytest.mark.proof]
SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
}
RAISED = {"metadata.version": 3, "transaction.version": 2, "share.version": 2, "streams.version": 1}
BROKER_IDS, CONTROLLER_IDS = (",".join(map(str, ids)) for ids in (BROKERS, CONTROLLERS))


@pytest.fixture(scope="module")
def kept(request):
    """Releases stay installed between runs."""
    return request.config.cache.mkdir("older-releases")


def release_of(revision, kept):
    try:
        return install(revision, kept)
    except ReleaseAbsentError as reason:
        pytest.skip(str(reason))


@pytest.fixture(autouse=True)
def commands_find_the_support(monkeypatch):
    """The command that restarts a node is a module of the tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))


@contextmanager
def cluster_of(release, directory, **more):
    """Three controllers and three brokers of a release, with the topics of the load."""
    nodes = lay_out(directory, {**SETTINGS, **more})
    try:
        for node in (*CONTROLLERS, *BROKERS):
            nodes.start(node, release)
        wait_until(lambda: healthy(nodes) and is_complete(nodes), "the cluster is healthy")
        for topic in TOPICS:
            moldau(nodes, "topics", "create", topic, "--partitions", "6", "--replication-factor", "3")
        yield nodes
    finally:
        nodes.kill()


def moldau(nodes, *words, code=0):
    """Runs a command of this release against the cluster; the answer is JSON, or the error."""
    done = run_command(*words, "-b", nodes.bootstrap, "--json")
    assert done.returncode == code, done
    return json.loads(done.stdout) if code == 0 else json.loads(done.stderr.splitlines()[-1])["error"]


def healthy(nodes):
    return run_command("cluster", "status", "-b", nodes.bootstrap).returncode == 0


def is_complete(nodes):
    """A cluster that has not seen its last broker yet is healthy, but has no place for three replicas."""
    return len(moldau(nodes, "brokers", "list")["brokers"]) == len(BROKERS)


def levels(nodes):
    return {row["feature"]: row["level"] for row in moldau(nodes, "features", "describe")["features"]}


def roll(nodes, release, *more, code=0):
    return moldau(nodes, "cluster", "roll", "--restart-command", nodes.restart_command(release), *more, code=code)


def refuses_to_join(nodes, release, node):
    """Starts a broker of a release that does not know the levels of the cluster, and waits for its reason."""
    node_processes.stop(nodes.directory, node)
    known = len(nodes.log(node))
    nodes.start(node, release)
    wait_until(lambda: "UNSUPPORTED_VERSION" in nodes.log(node)[known:], "the broker is refused")


def test_a_loaded_cluster_goes_up_back_and_up_again(kept, tmp_path):
    """Up with controllers first, back with brokers first, up again; then the levels are raised, and lowered again."""
    old, new = release_of(PREVIOUS, kept), current_release()
    # The older release takes a node without a processor for one that hangs.
    with cluster_of(old, tmp_path, **{"node.watchdog.ms": "0"}) as nodes:
        load = Load(nodes.bootstrap)
        with load.running():
            before = levels(nodes)
            assert before["metadata.version"] == 2
            assert roll(nodes, new)["restarted"][3:] == [*BROKERS]
            assert set(nodes.versions().values()) == {new.python}
            assert levels(nodes) == {**before, "share.version": 0, "streams.version": 0}
            load.wait_progress("clients work with new nodes")

            assert roll(nodes, old, "--nodes", BROKER_IDS)["restarted"] == [*BROKERS]
            load.wait_progress("clients work with old brokers and new controllers")
            assert sorted(roll(nodes, old, "--nodes", CONTROLLER_IDS)["restarted"]) == [*CONTROLLERS]
            assert set(nodes.versions().values()) == {old.python}
            load.wait_progress("clients work with old nodes")

            roll(nodes, new, "--nodes", f"{CONTROLLER_IDS},1")
            refused = moldau(nodes, "features", "upgrade", "--feature", "metadata.version=3", code=1)
            assert re.search("broker [23]", refused), refused
            roll(nodes, new, "--nodes", "2,3")
            for feature, level in RAISED.items():
                moldau(nodes, "features", "upgrade", "--feature", f"{feature}={level}")
            assert levels(nodes) == {**before, **RAISED}
            load.wait_progress("clients work at the new levels")

            refuses_to_join(nodes, old, 3)
            node_processes.stop(nodes.directory, 3)
            nodes.start(3, new)
            wait_until(lambda: healthy(nodes), "the cluster is healthy")
            for feature in RAISED:
                moldau(nodes, "features", "downgrade", "--feature", f"{feature}={before.get(feature, 0)}")
            roll(nodes, old, "--nodes", BROKER_IDS)
            roll(nodes, old, "--nodes", CONTROLLER_IDS)
            load.wait_progress("clients work with old nodes after the levels were lowered")
        load.judge(nodes.bootstrap)
        counted = [*old.command, "consume", "orders", "--from-beginning", "-b", nodes.bootstrap]
        counted += ["--count", str(load.own.steps)]
        read = subprocess.run(counted, env=clean_environment(), capture_output=True, timeout=120, check=True).stdout
        assert sorted(map(int, read.split())) == list(range(load.own.steps))


def test_controllers_of_the_first_release_change_together(kept, tmp_path):
    """A rolling restart stops at the first controller; with all controllers changed at once, brokers roll as always."""
    old, new = release_of(FIRST, kept), current_release()
    with cluster_of(old, tmp_path) as nodes:
        load = Load(nodes.bootstrap)
        with load.running():
            reason = roll(nodes, new, "--timeout", "8", code=1)
            assert "does not answer the active one" in reason
            assert "no other node was touched" in reason
            assert sum(python == new.python for python in nodes.versions().values()) == 1
            load.wait_progress("clients work while two of three controllers serve")
            for node in CONTROLLERS:
                node_processes.stop(nodes.directory, node)
            for node in CONTROLLERS:
                nodes.start(node, new)
            wait_until(lambda: healthy(nodes), "the cluster is healthy")
            load.wait_progress("clients work with old brokers and new controllers")
            roll(nodes, new, "--nodes", BROKER_IDS)
            for feature, level in RAISED.items():
                moldau(nodes, "features", "upgrade", "--feature", f"{feature}={level}")
            load.wait_progress("clients work at the new levels")
        load.judge(nodes.bootstrap)
