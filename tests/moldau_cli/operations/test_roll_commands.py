"""Goal: a rolling restart loses nothing and no client sees an error, and it stops at a node that does not come back.

Method: one real cluster of three controllers and three brokers, restarted by its launcher and by a command, under
produce load with acks=all. Commands run in this process.
"""

import itertools
import json
import shutil
import threading

import pytest

from moldau.blocking import Consumer, Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher import ClusterSpec, open_cluster, start_cluster
from support.commands import run_command
from support.interop.clients import wait_until
from support.started import shell_command

pytestmark = pytest.mark.processes

SETTINGS = {"min.insync.replicas": "2", "default.replication.factor": "3", "group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A cluster with a topic of three replicas."""
    directory = tmp_path_factory.mktemp("roll") / "c"
    cluster = start_cluster(directory, ClusterSpec(brokers=3, controllers=3, settings=SETTINGS))
    try:
        create = ("topics", "create", "orders", "--partitions", "6", "--replication-factor", "3")
        assert run_command(*create, "-b", cluster.bootstrap).returncode == 0
        yield cluster
    finally:
        open_cluster(directory).shut_down()  # the commands have started other processes


def roll(local, *arguments, code=0):
    done = run_command("cluster", "roll", "--dir", str(local.directory), *arguments, "--json")
    assert code in (None, done.returncode), done
    return json.loads(done.stdout) if done.stdout else {}, done.stderr


def pids(local):
    """The processes as ``cluster.json`` has them."""
    nodes = json.loads((local.directory / "cluster.json").read_text())["nodes"]
    return {node["id"]: node["pid"] for node in nodes}


def lagging(local):
    """How many replicas of each broker are out of sync."""
    rows = json.loads(run_command("brokers", "list", "-b", local.bootstrap, "--json").stdout)["brokers"]
    return {row["broker"]: row["out_of_sync"] for row in rows}


class Load(threading.Thread):
    """Sends numbers, one after the other is acknowledged, and keeps every acknowledged one and every error."""

    def __init__(self, bootstrap):
        super().__init__(daemon=True)
        self._brokers, self._ends = bootstrap, threading.Event()
        self.acknowledged, self.errors = [], []

    def run(self):
        number = 0
        with Producer({"bootstrap.servers": self._brokers, "acks": "all", "linger.ms": "0"}) as producer:
            while not self._ends.is_set():
                try:
                    producer.send("orders", str(number).encode(), key=str(number).encode()).result()
                except KafkaError as error:
                    self.errors.append(error)
                    break
                else:
                    self.acknowledged.append(number)
                number += 1

    def __enter__(self):
        self.start()
        wait_until(lambda: self.acknowledged or self.errors, "the first record is written")
        return self

    def __exit__(self, *_):
        self._ends.set()
        self.join(120)


@pytest.mark.proof
def test_a_roll_under_load_is_not_noticed(local):
    """Each node is a new process, in order; each record is there once, and no send has failed."""
    before, leader = pids(local), local.quorum().leader_id
    with Load(local.bootstrap) as load:
        done, stderr = roll(local)
        sent_meanwhile = len(load.acknowledged)
    order = done["restarted"]
    assert sorted(order[:3]) == [101, 102, 103]
    assert order[2] == leader
    assert order[3:] == [1, 2, 3]
    assert "6 of 6: broker 3" in stderr
    after = pids(local)
    assert all(before[node] != after[node] for node in before)
    assert load.errors == []
    assert sent_meanwhile > 50
    with Consumer({"bootstrap.servers": local.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}) as got:
        got.subscribe(["orders"])
        values = [record.value for record in itertools.islice(got, len(load.acknowledged))]
        assert got.poll(500) == [], "no record is there twice"
    assert sorted(int(value) for value in values) == load.acknowledged


@pytest.fixture
def moldau(tmp_path):
    """A file that runs the command, as the shell of a restart command starts it."""
    shell_command(tmp_path)
    return tmp_path / "moldau"


def test_a_command_restarts_nodes_of_any_cluster(local, moldau):
    """The command stands for ssh and systemctl; the order, and the command of each node, are shown before."""
    command = f"{moldau} cluster restart {{id}} --dir {local.directory}"
    where = ("-b", local.bootstrap, "--restart-command", command, "--nodes", "2,102")
    shown, _ = roll(local, *where, "--dry-run")
    assert [row["node"] for row in shown["order"]] == [102, 2]
    assert shown["order"][1]["command"].endswith(f"cluster restart 2 --dir {local.directory}")
    assert shown["in_the_way"] == []
    before = pids(local)
    done, _ = roll(local, *where)
    assert done["restarted"] == [102, 2]
    after = pids(local)
    assert {node for node in before if before[node] != after[node]} == {2, 102}


def test_a_node_that_does_not_come_back_stops_the_roll(local, moldau):
    """The command kills the broker: the others are not touched, and the error says how to go on."""
    command = f"{moldau} cluster kill {{id}} --dir {local.directory}"
    where = ("-b", local.bootstrap, "--restart-command", command, "--timeout", "6")
    _, stderr = roll(local, *where, "--nodes", "1,3", code=1)
    error = json.loads(stderr.splitlines()[-1])["error"]
    assert error.startswith("broker 1 (127.0.0.1:")
    assert "did not come back within 6 s" in error
    assert "no other node was touched" in error
    assert "--nodes 3 continues" in error
    _, stderr = roll(local, "--nodes", "3", code=1)
    assert "not begun: broker 1 is not in service" in stderr


def test_force_waits_for_what_it_restarts(local):
    """With broker 1 down, the replicas of broker 2 are waited for, those of broker 1 are not, until it is restarted."""
    if run_command("cluster", "kill", "1", "--dir", str(local.directory)).returncode == 0:
        wait_until(lambda: lagging(local)[1] > 0, "the other brokers know that it is down")
    assert roll(local, "--nodes", "2", "--force", "--no-elect")[0]["restarted"] == [2]
    behind = lagging(local)
    assert behind.pop(1) > 0
    assert behind == {2: 0, 3: 0}
    assert roll(local, "--nodes", "1", "--force")[0]["restarted"] == [1]
    assert lagging(local) == {1: 0, 2: 0, 3: 0}


def test_a_command_that_restarts_nothing_is_noticed(local):
    """It returns at once and the cluster stays whole; the connection to the old process is still there."""
    wait_until(lambda: roll(local, "--dry-run", code=None)[0]["in_the_way"] == [], "the cluster is whole")
    true = ("-b", local.bootstrap, "--restart-command", f"{shutil.which('true')} {{host}}", "--timeout", "3")
    _, stderr = roll(local, *true, "--nodes", "2", code=1)
    assert "broker 2 (127.0.0.1" in stderr
    assert "was not restarted within 3 s by:" in stderr
    false = ("-b", local.bootstrap, "--restart-command", shutil.which("false"), "--nodes", "2,3")
    _, stderr = roll(local, *false, code=1)
    assert "exited with 1: it wrote nothing; no other node was touched" in stderr
    assert "--nodes 2,3 continues" in stderr


def test_partitions_without_a_second_replica_are_named(local):
    create = ("topics", "create", "single", "--partitions", "1", "--replication-factor", "1")
    assert run_command(*create, "-b", local.bootstrap).returncode == 0
    try:
        _, stderr = roll(local, code=1)
        assert "not begun: single-0 (1 replica) would not be fully served" in stderr
        assert "--force" in stderr
        shown, _ = roll(local, "--dry-run", code=1)
        assert len(shown["in_the_way"]) == 1
        assert roll(local, "--nodes", "101")[0]["restarted"] == [101]
    finally:
        assert run_command("topics", "delete", "single", "-b", local.bootstrap).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-b", "127.0.0.1:1"], "give --restart-command"),
        (["--restart-command", "ssh {machine}"], "expected a command with {id}, {host}, {port}, {roles}"),
        (["--restart-command", "ssh 'x"], "No closing quotation"),
        (["--restart-command", "ssh {host}"], "--dir goes without --restart-command"),
        (["--nodes", "1,x"], "expected different node ids"),
        (["--nodes", "9"], "no node 9; the nodes are 1,2,3,101,102,103"),
        (["--dir", "/nowhere"], "no cluster in /nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_rolls_are_refused_in_one_line(local, arguments, words):
    _, stderr = roll(local, *arguments, code=2)
    assert words in json.loads(stderr)["error"]
