"""Goal: load moves to a broker that joins, and away from one that leaves, also after an interruption.

Method: one real cluster; a further broker joins it as on a machine of its own. Commands run in this process, except the
one that is interrupted.
"""

import json
import signal

import pytest

from moldau.blocking import Producer
from moldau_jepsen.testing import cluster
from support.cluster.added_broker import added_broker
from support.commands import run_command
from support.interop.clients import wait_until
from support.started import PIPE, Command

pytestmark = pytest.mark.processes

TOPICS = {"orders": 6, "payments": 3}


@pytest.fixture(scope="module")
def local():
    """A cluster of two brokers, each a rack, with two topics that have records."""
    with cluster(brokers=2, controllers=1, links=False) as running:
        for topic, partitions in TOPICS.items():
            create = ("topics", "create", topic, "--partitions", str(partitions), "--replication-factor", "2")
            assert run_command(*create, "-b", running.bootstrap).returncode == 0
        with Producer({"bootstrap.servers": running.bootstrap, "acks": "all"}) as producer:
            for number in range(600):
                producer.send("orders", bytes(2_000), key=str(number).encode())
                producer.send("payments", b"x", key=str(number).encode())
        yield running


@pytest.fixture
def moldau(local, tmp_path):
    """Runs a command against the cluster; the answer is JSON."""

    def run(*arguments, code=0):
        done = run_command(*arguments, "-b", local.bootstrap, "--json", cwd=tmp_path)
        assert done.returncode == code, done
        return json.loads(done.stdout if code == 0 else done.stderr)

    run.directory = tmp_path
    return run


def brokers(moldau):
    return {row["broker"]: row for row in moldau("brokers", "list")["brokers"]}


def throttles(moldau, *nodes):
    """The keys of a throttle that are still set."""
    entities = [("topics", topic) for topic in TOPICS] + [("brokers", str(node)) for node in nodes]
    found = [moldau("configs", "describe", "--entity-type", kind, "--entity-name", name) for kind, name in entities]
    return [one["key"] for document in found for one in document["configs"] if "throttled" in one["key"]]


def interrupted(local, moldau, *arguments):
    """Runs a command in a process of its own, and interrupts it once a move is in progress."""
    # A shell without job control starts tests in the background with SIGINT ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with Command(*arguments, "-b", local.bootstrap, cwd=moldau.directory, stderr=PIPE) as process:
        signal.signal(signal.SIGINT, before)
        try:
            wait_until(lambda: moldau("reassign", "status")["reassignments"], "a move is in progress")
            process.send_signal(signal.SIGINT)
            stderr = process.stderr.read().decode()
            code = process.wait(60)
        finally:
            process.kill()
    return code, stderr


def test_a_broker_joins_and_leaves(local, moldau, tmp_path):
    """It gets its share, throttled and in batches, over an interruption; then it is drained and unregistered."""
    with added_broker(tmp_path, local, 3) as node:
        wait_until(lambda: 3 in brokers(moldau), "the broker is registered")
        plan = moldau("balance", "plan", "--slack-bytes", "1000", "--out", "plan.json")
        after = {row["broker"]: row["replicas_after"] for row in plan["brokers"]}
        assert after == {1: 6, 2: 6, 3: 6}
        assert plan["copies"] == 6
        assert json.loads((tmp_path / "plan.json").read_text()) == plan["plan"]

        code, stderr = interrupted(local, moldau, "balance", "execute", "plan.json", "--throttle", "1", "--batch", "1")
        assert code == 130
        assert "the same command continues with the others" in stderr
        (move,) = moldau("reassign", "status")["reassignments"]
        assert 0 <= move["copied_bytes"] <= move["of_bytes"]
        assert throttles(moldau, 1, 2, 3)

        done = moldau("balance", "execute", "plan.json", "--throttle", "100000000", "--batch", "2")
        assert done["moved"] + done["already"] == plan["partitions"]
        assert moldau("balance", "execute", "plan.json") == {"moved": 0, "already": plan["partitions"], "gone": 0}
        assert throttles(moldau, 1, 2, 3) == []
        rows = brokers(moldau)
        assert [rows[each]["replicas"] for each in (1, 2, 3)] == [6, 6, 6]
        assert [rows[each]["leaders"] for each in (1, 2, 3)] == [3, 3, 3]
        assert rows[3]["bytes"] > 100_000
        assert moldau("balance", "plan", "--slack-bytes", "1000")["partitions"] == 0

        assert "holds 6 replicas" in moldau("brokers", "unregister", "3", code=1)["error"]
        assert moldau("brokers", "drain", "3", "--dry-run")["moved"] == 6
        assert moldau("brokers", "drain", "3") == {"broker": 3, "moved": 6, "dry_run": False}
        assert moldau("brokers", "drain", "3")["moved"] == 0
        assert brokers(moldau)[3]["replicas"] == brokers(moldau)[3]["leaders"] == 0
        assert "broker 3 runs, and would register again" in moldau("brokers", "unregister", "3", code=1)["error"]
        node.terminate()
        assert node.wait(60) == 0
    wait_until(lambda: brokers(moldau)[3]["state"] == "fenced", "the broker is fenced")
    moldau("brokers", "unregister", "3")
    assert sorted(brokers(moldau)) == [1, 2]
    assert "no broker 3; registered brokers are 1,2" in moldau("brokers", "unregister", "3", code=2)["error"]


def test_leaders_return_to_the_preferred_replicas(local, moldau):
    local.restart(1)
    wait_until(lambda: brokers(moldau)[1]["out_of_sync"] == 0, "the replicas are in sync")
    moldau("balance", "leaders")
    rows = brokers(moldau)
    assert all(row["leaders"] == row["preferred"] for row in rows.values())
    assert moldau("balance", "leaders")["elected"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["balance", "plan", "--drain", "1"], 2, "only 1 live brokers may hold them"),
        (["balance", "plan", "--exclude", "9"], 2, "no broker 9; registered brokers are 1,2"),
        (["balance", "plan", "--exclude", "1,1"], 2, "--exclude: expected different broker ids"),
        (["balance", "plan", "--topic", "missing"], 2, "topic missing does not exist"),
        (["balance", "execute", "missing.json"], 2, "cannot read missing.json"),
        (["brokers", "drain", "1"], 2, "only 1 live brokers may hold them"),
        (["brokers", "drain", "9"], 2, "no broker 9"),
        (["brokers", "unregister", "1"], 1, "moldau brokers drain 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_commands_are_refused_in_one_line(moldau, arguments, code, words):
    assert words in moldau(*arguments, code=code)["error"]


def test_a_plan_with_an_unknown_broker_is_refused(moldau):
    plan = {"version": 1, "partitions": [{"topic": "payments", "partition": 0, "replicas": [1, 9]}]}
    (moldau.directory / "plan.json").write_text(json.dumps(plan))
    assert "no broker 9; registered brokers are 1,2" in moldau("balance", "execute", "plan.json", code=2)["error"]


def test_a_plan_goes_on_without_deleted_topics(moldau):
    moldau("topics", "create", "short-lived", "--partitions", "1", "--replication-factor", "1")
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "short-lived", "partition": 0, "replicas": [1]},
            {"topic": "never-there", "partition": 0, "replicas": [2]},
        ],
    }
    (moldau.directory / "plan.json").write_text(json.dumps(plan))
    assert moldau("balance", "execute", "plan.json")["gone"] == 1
    moldau("topics", "delete", "short-lived")
