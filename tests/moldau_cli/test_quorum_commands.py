"""Goal: the command line changes voters, leadership, feature levels and replicas of a real cluster.

Method: three controllers and three brokers as processes; the commands run in this process.
"""

import json

import pytest

from moldau.admin import NewTopic
from moldau.blocking import Admin
from moldau_jepsen.testing import cluster
from moldau_quorum.metadata.records import METADATA_LEVEL_LATEST
from support.commands import run_command
from support.interop.clients import wait_for, wait_known, wait_until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def running():
    # No broker's session may end in this test, even if the broker gets no processor time for long.
    with cluster(brokers=3, controllers=3, settings={"broker.session.timeout.ms": "120000"}, links=False) as found:
        yield found


@pytest.fixture
def moldau(running):
    def run(*arguments, code=0):
        """``code`` None: it may fail."""
        done = run_command(*arguments, "--bootstrap-server", running.bootstrap)
        assert code in (None, done.returncode), (arguments, done.stdout, done.stderr)
        return done

    return run


def quorum(moldau):
    """The quorum, once it has a leader."""

    def reported():
        found = json.loads(moldau("quorum", "status", "--json").stdout)
        return found if found["leader_id"] >= 0 else None

    return wait_for(reported, "the quorum has a leader")


def voters(moldau):
    return sorted(row["node"] for row in quorum(moldau)["replicas"] if row["role"] != "observer")


def test_leadership_goes_to_the_voter_that_is_named(moldau):
    before = quorum(moldau)["leader_id"]
    target = next(node for node in voters(moldau) if node != before)
    assert "leader" in moldau("quorum", "transfer", "--to", str(target)).stdout

    def leads():
        """A voter that gets no processor time for an election timeout lets its chance pass and is asked again."""
        if quorum(moldau)["leader_id"] == target:
            return True
        moldau("quorum", "transfer", "--to", str(target), code=None)
        return False

    wait_until(leads, f"node {target} leads")
    assert "node 9 does not vote; voters are 101, 102, 103" in moldau("quorum", "transfer", "--to", "9", code=2).stderr


def test_a_voter_goes_and_comes_back(moldau, running):
    leader = quorum(moldau)["leader_id"]
    gone = next(node for node in voters(moldau) if node != leader)
    assert f"node {gone} is no longer a voter" in moldau("quorum", "remove-voter", str(gone)).stdout
    assert voters(moldau) == [node for node in (101, 102, 103) if node != gone]
    address = running.node(gone).address
    assert f"node {gone} is a voter" in moldau("quorum", "add-voter", str(gone), address).stdout
    wait_until(lambda: voters(moldau) == [101, 102, 103], "all vote again")
    assert moldau("quorum", "add-voter", str(gone), address, code=1).stderr
    assert "expected HOST:PORT" in moldau("quorum", "add-voter", "104", "nowhere", code=2).stderr


def test_feature_levels_are_listed_and_impossible_ones_refused(moldau):
    features = json.loads(moldau("features", "describe", "--json").stdout)["features"]
    assert [each["feature"] for each in features] == sorted(each["feature"] for each in features)
    found = {each["feature"]: each for each in features}["metadata.version"]
    assert found["level_min"] <= found["level"] <= found["level_max"]
    beyond = f"metadata.version={found['level_max'] + 1}"
    assert moldau("features", "upgrade", "--feature", beyond, code=1).stderr
    assert "expected NAME=LEVEL" in moldau("features", "upgrade", "--feature", "metadata.version", code=2).stderr


def test_the_level_of_the_metadata_goes_down_and_up_again(moldau):
    def level():
        features = json.loads(moldau("features", "describe", "--json").stdout)["features"]
        return {each["feature"]: each["level"] for each in features}["metadata.version"]

    assert level() == METADATA_LEVEL_LATEST
    assert moldau("features", "upgrade", "--feature", "metadata.version=1", code=1).stderr
    moldau("features", "downgrade", "--unsafe", "--feature", "metadata.version=1")
    wait_until(lambda: level() == 1, "the level is 1")
    moldau("features", "upgrade", "--feature", f"metadata.version={METADATA_LEVEL_LATEST}")
    wait_until(lambda: level() == METADATA_LEVEL_LATEST, "the level is the latest")
    lower = ("features", "downgrade", "--feature", "metadata.version=1")  # one log directory each: nothing is forgotten
    assert moldau(*lower, "--dry-run").stdout == "metadata.version would be at level 1\n"
    assert level() == METADATA_LEVEL_LATEST
    moldau(*lower)
    wait_until(lambda: level() == 1, "the level is 1")
    raised = {"features": {"metadata.version": METADATA_LEVEL_LATEST}}
    assert json.loads(moldau("features", "upgrade", "--all", "--dry-run", "--json").stdout) == raised | {
        "dry_run": True
    }
    assert level() == 1
    assert json.loads(moldau("features", "upgrade", "--all", "--json").stdout) == raised
    wait_until(lambda: level() == METADATA_LEVEL_LATEST, "the level is the latest")
    assert moldau("features", "upgrade", "--all").stdout == "no feature has a higher level\n"
    assert "or raise all with --all" in moldau("features", "upgrade", code=2).stderr


def test_a_plan_is_computed_executed_and_ends(moldau, running, tmp_path):
    with Admin({"bootstrap.servers": running.bootstrap}) as admin:
        admin.create_topics([NewTopic(name="moved", partitions=4, replication_factor=2)])
    wait_known(running.bootstrap, "moved", 4)
    plan = tmp_path / "plan.json"
    moldau("reassign", "plan", "--topic", "moved", "--brokers", "1,2", "--out", str(plan))
    assert " moves; moldau reassign status" in moldau("reassign", "execute", str(plan)).stdout

    def placed():
        with Admin({"bootstrap.servers": running.bootstrap}) as admin:
            parts = admin.describe_topics(["moved"])["moved"].partitions
        return all(set(part.replicas) == {1, 2} for part in parts)

    wait_until(placed, "all replicas are on brokers 1 and 2")
    assert json.loads(moldau("reassign", "status", "--json").stdout)["reassignments"] == []
    assert "no live broker 7" in moldau("reassign", "plan", "--brokers", "1,7", code=2).stderr
    assert "cannot read" in moldau("reassign", "execute", str(tmp_path / "none"), code=2).stderr
