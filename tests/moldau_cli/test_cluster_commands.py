"""Goal: the commands do on a real cluster what their help says, as text and as JSON.

Method: one cluster that the command line itself starts and stops; commands run in this process, with their own standard
streams and directory.
"""

import json
import shlex

import pytest

from moldau.blocking import Consumer, ShareConsumer
from moldau_jepsen.launcher import open_cluster
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.launcher.probe import fetch_metadata
from moldau_jepsen.launcher.process import ProcessState
from support.commands import run_command
from support.coordinator.streams_member import heartbeat
from support.interop.clients import wait_for, wait_until
from support.started import PIPE, Command

pytestmark = pytest.mark.processes


CHANGES = [("topics", "create"), ("topics", "alter"), ("topics", "delete"), ("reassign", "start")]


def free_row(count):
    """Returns the first of ``count`` consecutive free ports, because another process may use the default 9092."""
    while True:
        ports = take_free_ports(count)
        if ports == list(range(ports[0], ports[0] + count)):
            return ports[0]


def brokers_agree(cluster):
    """Returns whether all running brokers have the same metadata of the topics."""
    pictures = []
    for node in cluster.brokers:
        if cluster.state(node.node_id) is ProcessState.RUNNING:
            answer = fetch_metadata(node.port, None, 5_000)
            if answer is None:
                return False
            pictures.append(
                {
                    (topic.name, one.partition_index): (one.leader_id, one.replica_nodes, one.isr_nodes)
                    for topic in answer.topics
                    for one in topic.partitions
                }
            )
    return all(cluster_metadata == pictures[0] for cluster_metadata in pictures)


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs ``moldau`` in a directory with a running cluster of three brokers and one controller."""
    home = tmp_path_factory.mktemp("shell")

    def run(*arguments, given="", code=0):
        done = run_command(*arguments, given=given, cwd=home)
        assert code in (None, done.returncode), (arguments, done.stdout, done.stderr)
        if code == 0 and arguments[:2] in CHANGES:
            # The broker that answered a change has applied it, but the next command may ask another broker.
            cluster = open_cluster(home / "moldau-cluster")
            wait_until(lambda: brokers_agree(cluster), "all brokers know of the change")
        return done

    def run_json(*arguments, **more):
        return json.loads(run(*arguments, "--json", **more).stdout)

    run.json = run_json
    run.home = home
    base_port = str(free_row(4))
    # One test pauses a node for as long as its commands take.
    settings = ("group.initial.rebalance.delay.ms=0", "broker.session.timeout.ms=120000", "node.watchdog.ms=0")
    words = [word for setting in settings for word in ("--set", setting)]
    run.started = run.json("cluster", "start", "--controllers", "1", "--base-port", base_port, *words)
    try:
        run("topics", "create", "lines", "--partitions", "1")
        yield run
    finally:
        open_cluster(home / "moldau-cluster").shut_down()


def test_start_tells_where_the_cluster_is(shell):
    assert len(shell.started["bootstrap"].split(",")) == 3
    assert [node["id"] for node in shell.started["nodes"]] == [1, 2, 3, 101]
    document = json.loads((shell.home / "moldau-cluster" / "cluster.json").read_text())
    assert document["bootstrap"] == shell.started["bootstrap"]
    assert {"id", "role", "host", "port", "pid", "directory", "config", "log"} <= document["nodes"][0].keys()
    again = shell("cluster", "start", code=1)
    assert "already runs" in again.stderr


def test_status_shows_every_node(shell):
    expected = [(1, "running", False), (2, "running", False), (3, "running", False), (101, "running", None)]

    def reported():
        """The status, once all nodes have found the time to answer."""
        document = shell.json("cluster", "status")
        found = [(node["node"], node["state"], node["fenced"]) for node in document["nodes"]]
        return document if found == expected and document["quorum_leader"] == 101 else None

    document = wait_for(reported, "all nodes are well")
    assert all(0 < node["rss_mb"] < 200 for node in document["nodes"])
    assert shell("cluster", "status").stdout.splitlines()[0].split()[:3] == ["NODE", "ROLE", "ADDRESS"]


def test_status_judges_a_cluster_from_afar(shell):
    """The verdict on a cluster of which only the address is known."""
    brokers = shell.started["bootstrap"]

    def healthy():
        return shell("cluster", "status", "-b", brokers, code=None).stdout.startswith("healthy: 0 problems; 3 brokers")

    wait_until(healthy, "the cluster is healthy")
    document = shell.json("cluster", "status", "-b", brokers)
    assert (document["verdict"], document["brokers"], document["problems"]) == ("healthy", 3, [])


def test_the_environment_names_the_brokers(shell, monkeypatch):
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", "127.0.0.1:1")
    assert "127.0.0.1:1" in shell("topics", "list", code=1).stderr
    shell("topics", "list", "-b", shell.started["bootstrap"])
    config = open_cluster(shell.home / "moldau-cluster").nodes[0].config
    assert shell("server", config, "--check").stdout == f"{config}: node 1 (broker)\n"


def test_a_topic_lives_and_dies(shell):
    made = shell.json("topics", "create", "life", "--partitions", "3", "--config", "retention.ms=7200000")
    assert (made["partitions"], made["replication_factor"]) == (3, 3)
    assert "life exists already; with --if-not-exists that" in shell("topics", "create", "life", code=1).stderr
    assert shell.json("topics", "create", "life", "--if-not-exists")["created"] is False
    assert ("life", 3) in [(one["topic"], one["partitions"]) for one in shell.json("topics", "list")["topics"]]
    shell("topics", "alter", "life", "--partitions", "5")
    parts = shell.json("topics", "describe", "life")["partitions"]
    assert [part["partition"] for part in parts] == [0, 1, 2, 3, 4]
    assert all(sorted(part["isr"]) == [1, 2, 3] and part["leader"] in (1, 2, 3) for part in parts)
    shell("configs", "alter", "--entity-name", "life", "--add-config", "max.message.bytes=5000")
    (shell.home / "life.properties").write_text("segment.bytes=1048576\nmax.message.bytes=1\n")
    given = ("--add-config-file", "life.properties", "--add-config", "max.message.bytes=5000")
    shell("configs", "alter", "--entity-name", "life", *given)
    assert (
        "cannot read no.toml"
        in shell("configs", "alter", "--entity-name", "life", "--add-config-file", "no.toml", code=2).stderr
    )
    shell("configs", "alter", "--entity-name", "life", "--delete-config", "segment.bytes")
    shell("configs", "alter", "--entity-name", "life", "--delete-config", "retention.ms")

    def settings():
        listed = shell.json("configs", "describe", "--entity-name", "life")["configs"]
        return {one["key"]: one["value"] for one in listed}

    wait_until(lambda: settings().get("max.message.bytes") == "5000", "the setting is shown")
    wait_until(lambda: "retention.ms" not in settings(), "the setting is gone")
    shell("topics", "delete", "life")
    assert "life" not in [one["topic"] for one in shell.json("topics", "list")["topics"]]


def test_the_default_of_all_brokers_is_changed(shell):
    """Kafka's option ``--entity-default`` changes ``min.insync.replicas`` for the whole cluster."""
    of_all = ("--entity-type", "brokers", "--entity-default")

    def minimum():
        listed = shell.json("configs", "describe", *of_all)["configs"]
        return {one["key"]: (one["value"], one["source"]) for one in listed}["min.insync.replicas"]

    assert minimum() == ("2", "dynamic_default_broker")
    shell("configs", "alter", *of_all, "--add-config", "min.insync.replicas=1")
    wait_until(lambda: minimum() == ("1", "dynamic_default_broker"), "the default is shown")
    shell("configs", "alter", *of_all, "--add-config", "min.insync.replicas=2")
    wait_until(lambda: minimum()[0] == "2", "the default is back")


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        ("groups", "configured", "consumer.session.timeout.ms", "50000"),
        ("client-metrics", "subscription", "interval.ms", "60000"),
        ("broker-loggers", "2", "moldau.broker", "DEBUG"),
        ("brokers", "2", "sasl.kerberos.min.time.before.relogin", "58000"),
    ],
)
def test_every_kind_of_entity_is_configured(shell, kind, name, key, value):
    entity = ("--entity-type", kind, "--entity-name", name)

    def shown():
        listed = shell.json("configs", "describe", *entity)["configs"]
        return {one["key"]: one["value"] for one in listed}.get(key)

    shell("configs", "alter", *entity, "--add-config", f"{key}={value}")
    wait_until(lambda: shown() == value, "the value is shown")
    shell("configs", "alter", *entity, "--delete-config", key)
    wait_until(lambda: shown() != value, "the value is gone")


def test_lines_go_in_and_come_out(shell):
    shell("topics", "create", "text", "--partitions", "1")
    sent = shell("produce", "text", "--key-separator", ":", "--json", given="a:1\nb:2\nplain\n")
    assert json.loads(sent.stdout) == {"topic": "text", "records": 3, "partitions": {"0": 3}}
    assert shell("consume", "text", "--exit").stdout == "1\n2\nplain\n"
    assert shell("consume", "text", "--exit", "--show-key").stdout == "a\t1\nb\t2\n\tplain\n"
    last = shell("consume", "text", "--partition", "0", "--offset", "2", "--count", "1", "--json").stdout
    assert {key: json.loads(last)[key] for key in ("offset", "key", "value")} == {
        "offset": 2,
        "key": None,
        "value": "plain",
    }


def test_a_group_is_listed_described_reset_and_deleted(shell):
    shell("topics", "create", "grouped", "--partitions", "1")
    shell("produce", "grouped", given="one\ntwo\nthree\n")
    taken = shell("consume", "grouped", "--group", "readers", "--from-beginning", "--count", "2")
    assert taken.stdout == "one\ntwo\n"
    assert "readers" in [group["group"] for group in shell.json("groups", "list")["groups"]]

    def left():
        """The group, once its member is known to have left."""
        described = shell.json("groups", "describe", "readers")
        return described if described["state"] == "Empty" else None

    described = wait_for(left, "the group is empty")
    reset = ("groups", "reset", "readers", "--topic", "grouped", "--to", "earliest")
    with Consumer({"bootstrap.servers": shell.started["bootstrap"], "group.id": "readers"}) as member:
        member.subscribe(["grouped"])
        wait_until(lambda: member.poll(100) or member.assignment, "the member has joined")
        for options in ((), ("--dry-run",), ("--dry-run", "--create")):
            assert "group readers has 1 member: stop them first" in shell(*reset, *options, code=2).stderr
    wait_for(left, "the member has left")
    shell("groups", "reset", "readers", "--topic", "grouped", "--to-offset", "2")
    described = shell.json("groups", "describe", "readers")
    assert [(row["offset"], row["log_end_offset"], row["lag"]) for row in described["partitions"]] == [(2, 3, 1)]
    rest = shell("consume", "grouped", "--group", "readers", "--count", "1")
    assert rest.stdout == "three\n"
    wait_for(left, "the group is empty again")
    shell(*reset)
    assert shell.json("groups", "describe", "readers")["partitions"][0]["lag"] == 3
    shell("groups", "delete", "readers")
    assert "there is no group 'readers'" in shell("groups", "describe", "readers", code=2).stderr


def test_share_groups_are_listed_reset_and_deleted(shell):
    """A share group begins with its offsets; members come with share consumers."""
    shell("features", "downgrade", "--feature", "share.version=0")
    assert "features upgrade --feature share.version=1" in shell("share-groups", "describe", "s", code=2).stderr
    shell("features", "upgrade", "--feature", "share.version=1")
    shell("topics", "create", "shared", "--partitions", "2")
    shell("produce", "shared", "--partition", "0", given="".join(f"{number}\n" for number in range(5)))
    assert (
        "no share group 's'; --create makes it"
        in shell("share-groups", "offsets", "reset", "s", "--topic", "shared", "--to", "latest", code=2).stderr
    )
    reset = ("share-groups", "offsets", "reset", "s", "--create")
    assert [row["start_offset"] for row in shell.json(*reset, "--topic", "shared", "--to", "latest")["partitions"]] == [
        5,
        0,
    ]
    assert shell.json(*reset, "--topic", "shared:0", "--to-offset", "3", "--dry-run")["partitions"] == [
        {"topic": "shared", "partition": 0, "start_offset": 3}
    ]
    shell(*reset, "--topic", "shared:0", "--to-offset", "3")
    with ShareConsumer({"bootstrap.servers": shell.started["bootstrap"], "group.id": "s"}) as member:
        member.subscribe(["shared"])
        wait_until(
            lambda: member.poll(100) or shell.json("share-groups", "describe", "s")["members"], "the member has joined"
        )
        refused = shell(*reset, "--topic", "shared", "--to", "latest", "--dry-run", code=2)
        assert "share group s has 1 member: stop them first" in refused.stderr
    shell(*reset, "--topic", "shared:0", "--to-offset", "3")
    found = shell.json("share-groups", "offsets", "describe", "s")["partitions"]
    assert [(row["partition"], row["start_offset"]) for row in found] == [(0, 3), (1, 0)]
    assert shell.json("share-groups", "list")["groups"] == [{"group": "s", "state": "Empty"}]
    assert shell.json("share-groups", "describe", "s")["members"] == []
    assert "share" in [group["type"] for group in shell.json("groups", "list")["groups"]]
    assert (
        "has no offsets of lines" in shell("share-groups", "offsets", "delete", "s", "--topic", "lines", code=2).stderr
    )
    shell("share-groups", "offsets", "delete", "s", "--topic", "shared")
    assert shell.json("share-groups", "offsets", "describe", "s")["partitions"] == []
    shell("share-groups", "delete", "s")
    assert "there is no share group 's'" in shell("share-groups", "describe", "s", code=2).stderr


def test_streams_groups_are_listed_reset_and_deleted(shell):
    """A member joins with a word count's topology, as Kafka Streams does; the group is reset when it has left."""
    bootstrap = shell.started["bootstrap"]
    assert "there is no streams group 'app'" in shell("streams-groups", "describe", "app", code=2).stderr
    shell("topics", "create", "texts", "--partitions", "2")
    shell("produce", "texts", "--partition", "0", given="a\nb\nc\n")
    epoch = heartbeat(bootstrap, 0)
    assert {"group": "app", "state": "Stable"} in shell.json("streams-groups", "list")["groups"]
    assert [(row["group"], row["type"]) for row in shell.json("groups", "list", "--type", "streams")["groups"]] == [
        ("app", "streams")
    ]
    found = shell.json("streams-groups", "describe", "app")
    assert (found["state"], found["topology_epoch"], found["internal_topics"]) == ("Stable", 0, ["counts", "words"])
    assert found["subtopologies"] == {"0": ["texts"], "1": ["words"]}
    (member,) = found["members"]
    assert (member["member"], member["process"], member["epoch"]) == ("m", "p", epoch)
    assert member["active"] == "0_0 0_1 1_0 1_1"
    text = shell("streams-groups", "describe", "app").stdout
    assert "streams group app: Stable, 1 member, coordinator" in text
    assert "topology epoch 0\nsubtopology 0 reads texts\n" in text
    reset = ("streams-groups", "reset", "app", "--topic", "texts")
    assert "has 1 member: stop the application first" in shell(*reset, code=2).stderr
    heartbeat(bootstrap, -1)
    assert [row["offset"] for row in shell.json(*reset, "--to-offset", "2", "--dry-run")["partitions"]] == [2, 0]
    shell(*reset, "--to-offset", "2")
    assert "internal topics: counts, words" in shell(*reset, "--delete-internal-topics").stderr
    names = {one["topic"] for one in shell.json("topics", "list")["topics"]}
    assert "texts" in names
    assert not names & {"counts", "words"}
    offsets = shell.json("streams-groups", "offsets", "app")["partitions"]
    assert [(row["partition"], row["offset"], row["end"], row["lag"]) for row in offsets] == [
        (0, 0, 3, 3),
        (1, 0, 0, 0),
    ]
    shell("streams-groups", "delete", "app")
    assert "there is no streams group 'app'" in shell("streams-groups", "describe", "app", code=2).stderr


def test_offsets_of_a_group_are_moved_and_deleted(shell):
    """Every way to name the new offsets; a dry run changes nothing, and an export can be imported again."""
    shell("topics", "create", "moved", "--partitions", "2")
    shell("produce", "moved", "--partition", "0", given="".join(f"{number}\n" for number in range(10)))
    reset = ("groups", "reset", "movers")

    def offsets(*options, code=0):
        done = shell(*reset, *options, "--json", code=code)
        return [row["offset"] for row in json.loads(done.stdout)["partitions"]] if code == 0 else done.stderr

    def committed():
        return [row["offset"] for row in shell.json("groups", "describe", "movers")["partitions"]]

    assert offsets("--topic", "moved", "--to-offset", "4", "--create") == [4, 0]
    assert offsets("--topic", "moved:0", "--shift-by", "-3", "--dry-run") == [1]
    assert committed() == [4, 0]
    assert offsets("--all-topics", "--shift-by", "3") == [7, 0]
    assert offsets("--topic", "moved:0", "--shift-by", "100") == [10]
    assert offsets("--topic", "moved:0", "--by-duration", "1h", "--export", "saved.csv") == [0]
    assert (shell.home / "saved.csv").read_text() == "moved,0,0\n"
    assert offsets("--topic", "moved:0", "--to-datetime", "2100-01-01T00:00:00") == [10]
    assert offsets("--from-file", "saved.csv") == [0]
    assert offsets("--all-topics", "--to", "current") == committed() == [0, 0]
    assert "give exactly one of" in offsets("--all-topics", code=2)
    assert "give --topic, or --all-topics" in offsets("--to", "latest", code=2)
    assert "has partitions 0 to 1, not 2" in offsets("--topic", "moved:2", "--to", "latest", code=2)
    shell("groups", "delete-offsets", "movers", "--topic", "moved:0")
    assert [row["partition"] for row in shell.json("groups", "describe", "movers")["partitions"]] == [1]
    assert (
        "no committed offsets of moved:0"
        in shell("groups", "delete-offsets", "movers", "--topic", "moved:0", code=2).stderr
    )
    delete = ("topics", "delete-records")
    assert shell.json(*delete, "moved", "--before", "3", "--partition", "0")["partitions"] == [
        {"topic": "moved", "partition": 0, "log_start_offset": 3}
    ]
    assert shell("consume", "moved", "--from-beginning", "--count", "1").stdout == "3\n"
    (shell.home / "old.json").write_text('{"partitions": [{"topic": "moved", "partition": 0, "offset": -1}]}')
    assert shell.json(*delete, "--file", "old.json")["partitions"][0]["log_start_offset"] == 10
    assert "give TOPIC with --before" in shell(*delete, "moved", code=2).stderr
    reported = shell(*delete, "moved", "--before", "99", "--partition", "0", code=2).stderr
    assert "moved-0: expected an offset from 10 to 10, not 99" in reported
    assert (
        "has partitions 0 to 1, not 7" in shell(*delete, "moved", "--before", "end", "--partition", "7", code=2).stderr
    )


def test_controllers_answer_for_themselves(shell):
    document = json.loads((shell.home / "moldau-cluster" / "cluster.json").read_text())
    at = ("--bootstrap-controller", document["controllers"])
    assert shell.json("quorum", "status", *at)["leader_id"] == 101
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "101", *at)

    def level():
        listed = shell.json("configs", "describe", *loggers)["configs"]
        return {one["key"]: one["value"] for one in listed}["moldau"]

    before = level()
    shell("configs", "alter", *loggers, "--add-config", "moldau=DEBUG")
    assert level() == "DEBUG"
    shell("configs", "alter", *loggers, "--delete-config", "moldau")
    assert level() == before
    assert "not both" in shell("quorum", "status", *at, "-b", document["bootstrap"], code=2).stderr
    assert "is no controller" in shell("quorum", "status", at[0], document["bootstrap"], code=2).stderr
    assert "no controller answers" in shell("acls", "list", at[0], "127.0.0.1:1", code=1).stderr


def test_the_quorum_is_shown(shell):
    document = shell.json("quorum", "status")
    assert document["leader_id"] == 101
    assert document["high_watermark"] > 0
    assert "leader 101" in shell("quorum", "status").stdout


def test_a_throttled_plan_is_verified_until_it_is_done(shell):
    """The throttle holds a move back; another one lets it end; verify then lifts it."""
    shell("topics", "create", "throttled", "--partitions", "1", "--replication-factor", "1")
    shell("produce", "throttled", given=f"{'x' * 10_000}\n" * 250)  # more than one answer of a fetch can hold
    (old,) = shell.json("topics", "describe", "throttled")["partitions"][0]["replicas"]
    newcomer = old % 3 + 1
    plan = {"version": 1, "partitions": [{"topic": "throttled", "partition": 0, "replicas": [newcomer]}]}
    (shell.home / "plan.json").write_text(json.dumps(plan))

    def configs(*entity):
        return {one["key"]: one["value"] for one in shell.json("configs", "describe", *entity)["configs"]}

    def state():
        return json.loads(shell("reassign", "verify", "plan.json", "--json", code=None).stdout)["moves"][0]["state"]

    assert state() == "different"
    shell("reassign", "execute", "plan.json", "--throttle", "1000")
    assert state() == "moving"
    lists = configs("--entity-type", "topics", "--entity-name", "throttled")
    assert lists["leader.replication.throttled.replicas"] == f"0:{old}"
    assert lists["follower.replication.throttled.replicas"] == f"0:{newcomer}"
    for broker in (old, newcomer):
        rates = configs("--entity-type", "brokers", "--entity-name", str(broker))
        assert rates["leader.replication.throttled.rate"] == rates["follower.replication.throttled.rate"] == "1000"
    assert "1 of 1 moves are not done" in shell("reassign", "verify", "plan.json", code=1).stderr
    shell("reassign", "execute", "plan.json", "--throttle", "1000000000")
    wait_until(lambda: state() == "done", "the move is done")

    def throttles():
        entities = [("topics", "throttled"), ("brokers", str(old)), ("brokers", str(newcomer))]
        found = [configs("--entity-type", kind, "--entity-name", name) for kind, name in entities]
        return [key for one in found for key in one if "throttled" in key]

    wait_until(lambda: throttles() == [], "the throttle is lifted")
    (shell.home / "wrong.json").write_text(json.dumps(plan).replace('"partition": 0', '"partition": 7'))
    refused = shell("reassign", "execute", "wrong.json", "--throttle", "1", code=2)
    assert "there is no partition throttled-7" in refused.stderr


def test_replicas_move_and_leaders_are_elected(shell):
    shell("topics", "create", "moving", "--partitions", "1", "--replication-factor", "2")
    before = shell.json("topics", "describe", "moving")["partitions"][0]["replicas"]
    newcomer = next(broker for broker in (1, 2, 3) if broker not in before)
    shell("reassign", "start", "moving", "0", f"{newcomer},{before[0]}")

    def moved():
        part = shell.json("topics", "describe", "moving")["partitions"][0]
        return sorted(part["isr"]) == sorted([newcomer, before[0]]) == sorted(part["replicas"])

    wait_until(moved, "the replica has moved")
    assert shell.json("reassign", "status") == {"reassignments": []}
    shell("elect", "--topic", "moving")
    wait_until(
        lambda: shell.json("topics", "describe", "moving")["partitions"][0]["leader"] == newcomer,
        "the preferred leader leads",
    )

    def holders():
        parts = shell.json("logdirs", "describe", "--partitions")["partitions"]
        return sorted(part["broker"] for part in parts if part["topic"] == "moving")

    wait_until(lambda: holders() == sorted([newcomer, before[0]]), "the superfluous log is gone")
    assert [one["broker"] for one in shell.json("logdirs", "describe")["log_dirs"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["topics", "describe", "missing"], 2, "topic 'missing' does not exist"),
        (["topics", "create", "bad name"], 2, "bad name"),
        (["topics", "create", "wide", "--replication-factor", "9"], 2, "number of brokers"),
        (["topics", "create", "odd", "--config", "bogus=1"], 2, "bogus"),
        (["topics", "delete", "missing"], 2, "missing"),
        (["configs", "alter", "--entity-name", "missing"], 2, "nothing to change"),
        (["configs", "describe"], 2, "--entity-name is missing"),
        (
            ["configs", "alter", "--entity-type", "groups", "--entity-name", "g", "--add-config", "x=1"],
            2,
            "unknown group",
        ),
        (["configs", "describe", "--entity-type", "broker-loggers", "--entity-name", "x"], 2, "is a number"),
        (["configs", "describe", "--entity-default"], 2, "goes with --entity-type brokers"),
        (["configs", "describe", "--entity-type", "brokers", "--entity-name", "1", "--entity-default"], 2, "not both"),
        (["produce", "missing"], 2, "topic missing does not exist"),
        (["consume", "missing", "--exit"], 2, "topic missing does not exist"),
        (["produce", "lines", "no-such-file"], 2, "no-such-file"),
        (["consume", "lines", "--offset", "stored"], 2, "--offset stored needs --group"),
        (["consume", "lines", "-p", "0", "-o", "1"], 2, "lines-0 is empty, and its next offset is 0"),
        (["groups", "reset", "typo", "--topic", "lines", "--to", "latest"], 2, "no group 'typo'; --create makes it"),
        (["topics", "list", "-b", "127.0.0.1:1"], 1, "no broker answers"),
        (["topics", "list", "-b", "nonsense"], 2, "expected HOST:PORT"),
        (["topics", "list", "-b", "h:99999"], 2, "not 'h:99999' ('h:99999': port 99999 is not from 0 to 65535)"),
        (["consume", "lines", "-X", "fetch.min.byte=1"], 2, "fetch.min.bytes"),
        (["reassign", "start", "lines", "0", "1,1"], 2, "expected different broker ids"),
        (["reassign", "start", "lines", "0", "1,9"], 2, "9"),
        (["reassign", "cancel", "lines", "0"], 1, "lines"),
        (["elect", "--unclean"], 2, "need --topic"),
        (["cluster", "kill", "9"], 2, "no node 9 in this cluster; its nodes are 1, 2, 3, 101"),
        (["cluster", "resume", "1"], 1, "not paused"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_impossible_requests_are_refused_in_one_line(shell, arguments, code, words):
    done = shell(*arguments, code=code)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
    as_json = shell(*arguments, "--json", code=code)
    assert as_json.stdout == ""
    document = json.loads(as_json.stderr)
    assert document.keys() == {"error", "exit_code"}
    assert document["exit_code"] == code
    assert words in document["error"]


def test_an_offset_out_of_range_is_refused(shell):
    """The command once waited for such an offset without a message."""
    shell("topics", "create", "ranged", "--partitions", "1")
    shell("produce", "ranged", given="one\ntwo\nthree\n")
    at = ("consume", "ranged", "--partition", "0", "--offset")
    words = "ranged-0 holds offsets 0 to 2, and its next offset is 3"
    assert words in shell(*at, "4", code=2).stderr
    assert shell(*at, "3", "--exit").stdout == ""
    assert shell(*at, "2", "--exit").stdout == "three\n"
    assert shell(*at, "4", "-X", "auto.offset.reset=earliest", "--count", "1").stdout == "one\n"


def test_an_unknown_group_is_reset_only_with_create(shell):
    """A mistyped name once created a group."""
    reset = ("groups", "reset", "fresh", "--topic", "lines", "--to", "earliest")
    shell(*reset, code=2)
    assert "fresh" not in [group["group"] for group in shell.json("groups", "list")["groups"]]
    shell(*reset, "--create")
    assert [row["offset"] for row in shell.json("groups", "describe", "fresh")["partitions"]] == [0]


@pytest.mark.parametrize("command", [("topics", "list"), ("groups", "list"), ("consume", "lines")], ids=" ".join)
def test_a_controllers_address_is_recognized(shell, command):
    """The error once named the number of an API."""
    document = json.loads((shell.home / "moldau-cluster" / "cluster.json").read_text())
    (port,) = [node["port"] for node in document["nodes"] if node["id"] == 101]
    reported = shell(*command, "-b", f"127.0.0.1:{port}", code=2).stderr
    assert f"127.0.0.1:{port} is a controller; give the address of a broker" in reported
    assert reported.count("\n") == 1


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_leaves_ends_a_command_quietly(shell, more):
    """As for cat and grep, the exit code is that of SIGPIPE."""
    if "flood" not in [topic["topic"] for topic in shell.json("topics", "list")["topics"]]:
        shell("topics", "create", "flood", "--partitions", "1")
        shell("produce", "flood", given="".join(f"{number:0100}\n" for number in range(5_000)))
    words = ("consume", "flood", "--from-beginning", *more)
    with Command(*words, cwd=shell.home, stdout=PIPE, stderr=PIPE) as consume:
        assert consume.stdout.readline().endswith(b"\n")
        consume.stdout.close()
        assert consume.stderr.read() == b""
        assert consume.wait(120) == 141


def test_nodes_are_paused_killed_and_restarted(shell):
    assert shell("cluster", "pause", "2").stdout == "node 2 is paused; moldau cluster resume 2 lets it continue\n"
    states = {node["node"]: node["state"] for node in shell.json("cluster", "status", code=1)["nodes"]}
    assert states == {1: "running", 2: "paused", 3: "running", 101: "running"}
    assert shell("cluster", "resume", "2").stdout == "node 2 continues\n"
    where = ("--dir", str(shell.home / "moldau-cluster"))
    next_command = f"moldau cluster restart 3 {shlex.join(where)}"
    assert shell("cluster", "kill", "3", *where).stdout == f"node 3 is killed; {next_command} starts it\n"

    def judged():
        """Whether the dead broker has left the ISRs; topics of other tests may be offline too."""
        document = shell.json("cluster", "status", "-b", shell.started["bootstrap"], code=None)
        assert len(document["cluster_id"]) == 22
        found = {problem["problem"] for problem in document["problems"]}
        return document["verdict"] != "healthy" and found >= {"broker-down", "under-replicated"}

    wait_until(judged, "the verdict names the dead broker")
    assert "does not run" in shell("cluster", "kill", "3", code=1).stderr
    shell("cluster", "restart", "3")
    shell("cluster", "restart", "1")
    assert {node["state"] for node in shell.json("cluster", "status")["nodes"]} == {"running"}


def test_a_restart_looks_at_the_file_first(shell):
    """It stopped the node, which could not start again: two such restarts cost two of three brokers."""
    file = shell.home / "moldau-cluster" / "broker-2" / "server.properties"
    before = {node["node"]: node["pid"] for node in shell.json("cluster", "status")["nodes"]}
    given = file.read_text()
    file.write_text(f"{given}log.retention.hour=3\n")
    try:
        refused = shell("cluster", "restart", "2", code=2).stderr
    finally:
        file.write_text(given)
    assert "log.retention.hour: unknown broker configuration key; did you mean log.retention.hours?" in refused
    assert {node["node"]: node["pid"] for node in shell.json("cluster", "status")["nodes"]} == before


def test_a_stopped_cluster_starts_again_with_its_data(shell, monkeypatch):
    shell("topics", "create", "kept", "--partitions", "1")
    shell("produce", "kept", given="precious\n")
    assert shell.json("cluster", "stop") == {"stopped": 4, "killed": []}
    assert {node["state"] for node in shell.json("cluster", "status", code=1)["nodes"]} == {"stopped"}
    where = shell.started["bootstrap"]
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", "prod.example:9092")  # another cluster, which a test must not change
    noted = shell("cluster", "start").stderr
    assert f"but that of MOLDAU_BOOTSTRAP (prod.example:9092); for this one, give -b {where}\n" in noted
    monkeypatch.setenv("MOLDAU_BOOTSTRAP", where)
    assert shell("consume", "kept", "--exit").stdout == "precious\n"
    shell("cluster", "stop")
    assert "commands do not use" not in shell("cluster", "start").stderr
    shell("cluster", "stop")
