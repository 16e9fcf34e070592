"""Goal: unmodified Kafka clients and the command line manage ACLs, and refusals name the missing right.

Method: one real node with PLAIN logins and the authorizer on. The admin clients of confluent-kafka and kafka-python
create, list and delete ACLs as the super user; producers and consumers of both work with them, and fail without.
"""

from __future__ import annotations

import json

import pytest

from moldau_jepsen.launcher.ports import take_free_ports
from support.commands import run_command
from support.interop.clients import WAIT_S, wait_until
from support.started import Command

pytestmark = [
    pytest.mark.interop,
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves the socket pairs of its wake-ups to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
USERS = " ".join(f'user_{user}="p-{user}"' for user in ("node", "root", "alice", "bob", "carol"))
JAAS = f'{PLAIN} username="node" password="p-node" {USERS};'


class Node:
    def __init__(self, directory):
        self.log_file = directory / "node.log"
        outside, inside, controller = take_free_ports(3)
        self.address = f"127.0.0.1:{outside}"
        settings = {
            "node.id": 1,
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"OUTSIDE://127.0.0.1:{outside},INSIDE://127.0.0.1:{inside},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT,INSIDE:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.jaas.config": JAAS,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node;User:root",
            "log.dirs": directory / "data",
            "num.partitions": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        path = directory / "node.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with self.log_file.open("w") as log:
            self.process = Command("server", str(path), "--with-parent", stderr=log)

    def is_ready(self):
        assert self.process.poll() is None, self.log_file.read_text()
        return " ready " in self.log_file.read_text()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    running = Node(tmp_path_factory.mktemp("node"))
    try:
        wait_until(running.is_ready, "the node starts")
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def confluent(node, user, **more):
    return {
        "bootstrap.servers": node.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"p-{user}",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def python(node, user):
    return {
        "bootstrap_servers": node.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": f"p-{user}",
    }


def confluent_produce(node, user, topic):
    from confluent_kafka import Producer

    errors = []
    producer = Producer(confluent(node, user, message_timeout_ms=10_000))
    producer.produce(topic, b"v", on_delivery=lambda error, _: errors.append(error and error.name()))
    producer.flush(WAIT_S)
    return errors[0]


def confluent_read(node, user, topic, group="g"):
    """Returns the first value, or the name of the error."""
    from confluent_kafka import Consumer

    consumer = Consumer(confluent(node, user, group_id=group, auto_offset_reset="earliest"))
    try:
        consumer.subscribe([topic])
        message = consumer.poll(WAIT_S)
        return message.error().name() if message.error() else message.value()
    finally:
        consumer.close()


def test_confluent_kafka(node):
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        NewTopic,
        ResourcePatternType,
        ResourceType,
    )

    root = AdminClient(confluent(node, "root"))
    root.create_topics([NewTopic("c-1", 1, 1)])["c-1"].result(WAIT_S)

    def binding(kind, name, pattern, operation):
        return AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)

    assert confluent_produce(node, "alice", "c-1") == "TOPIC_AUTHORIZATION_FAILED"
    assert confluent_read(node, "alice", "c-1") in ("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED")
    wanted = [
        binding(ResourceType.TOPIC, "c-", ResourcePatternType.PREFIXED, AclOperation.WRITE),
        binding(ResourceType.TOPIC, "c-1", ResourcePatternType.LITERAL, AclOperation.READ),
        binding(ResourceType.GROUP, "*", ResourcePatternType.LITERAL, AclOperation.READ),
    ]
    for created in root.create_acls(wanted).values():
        created.result(WAIT_S)
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:alice", None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(root.describe_acls(every).result(WAIT_S)) == set(wanted)
    wait_until(lambda: confluent_produce(node, "alice", "c-1") is None, "the ACLs hold")
    assert confluent_read(node, "alice", "c-1") == b"v"
    alice = AdminClient(confluent(node, "alice"))
    assert list(alice.list_topics(timeout=WAIT_S).topics) == ["c-1"]
    with pytest.raises(KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
        alice.create_acls(wanted)[wanted[0]].result(WAIT_S)
    assert alice.describe_acls(every).result(WAIT_S) == []  # this client does not pass the error on
    assert set(root.delete_acls([every])[every].result(WAIT_S)) == set(wanted)
    wait_until(lambda: confluent_produce(node, "alice", "c-1") == "TOPIC_AUTHORIZATION_FAILED", "the ACLs are gone")


def test_kafka_python(node):
    from kafka import KafkaProducer
    from kafka.admin import (
        ACL,
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        NewTopic,
        ResourcePattern,
        ResourceType,
    )
    from kafka.errors import TopicAuthorizationFailedError

    root = KafkaAdminClient(**python(node, "root"))
    root.create_topics([NewTopic("p-1", 1, 1)])

    def produces():
        producer = KafkaProducer(**python(node, "bob"), enable_idempotence=False, max_block_ms=10_000)
        try:
            producer.send("p-1", b"v").get(WAIT_S)
        except TopicAuthorizationFailedError:
            return False
        finally:
            producer.close()
        return True

    assert not produces()
    acl = ACL("User:bob", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "p-1"))
    assert root.create_acls([acl])["failed"] == []
    wait_until(produces, "the ACL holds")
    wanted = ACLFilter(
        principal="User:bob",
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePattern(ResourceType.TOPIC, "p-1"),
    )
    found, _ = root.describe_acls(wanted)
    assert found == [acl]
    root.delete_acls([wanted])
    wait_until(lambda: not produces(), "the ACL is gone")
    root.close()


def test_the_command_line(node, tmp_path):
    """``moldau acls`` adds what a producer and a consumer need, lists it, and removes it."""
    config = tmp_path / "root.properties"
    config.write_text(
        f"bootstrap.servers={node.address}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.username=root\nsasl.password=p-root\n"
    )

    def run(*arguments):
        return run_command(*arguments, "--command-config", str(config))

    assert run("topics", "create", "m-1").returncode == 0
    who = ("--allow-principal", "User:carol")
    added = run("acls", "add", *who, "--producer", "--consumer", "--topic", "m-1", "--group", "m-group")
    assert added.returncode == 0, added.stderr
    denied = run("acls", "add", "--deny-principal", "User:eve", "--topic", "m-", "--resource-pattern-type", "prefixed")
    assert denied.returncode == 0, denied.stderr
    listed = json.loads(run("acls", "list", "--topic", "m-1", "--resource-pattern-type", "match", "--json").stdout)
    assert sorted((each["principal"], each["operation"], each["permission"]) for each in listed["acls"]) == [
        ("User:carol", "create", "allow"),
        ("User:carol", "describe", "allow"),
        ("User:carol", "read", "allow"),
        ("User:carol", "write", "allow"),
        ("User:eve", "all", "deny"),
    ]
    wait_until(lambda: confluent_produce(node, "carol", "m-1") is None, "the ACLs hold")
    assert confluent_read(node, "carol", "m-1", "m-group") == b"v"
    written = ("acls", "remove", *who, "--operation", "Write", "--topic", "m-1", "--json")
    shown = json.loads(run(*written, "--dry-run").stdout)
    assert ([each["operation"] for each in shown["removed"]], shown["dry_run"]) == (["write"], True)
    removed = json.loads(run(*written).stdout)
    assert [each["operation"] for each in removed["removed"]] == ["write"]
    owners = ("--user-principal", "User:carol", "--delegation-token", "*")
    tokens = run("acls", "add", *who, *owners, "--json")
    assert [(each["resource"], each["name"]) for each in json.loads(tokens.stdout)["added"]] == [
        ("delegation-token", "*"),
        ("user", "User:carol"),
    ]
    kept = json.loads(run("acls", "list", "--user-principal", "User:carol", "--json").stdout)["acls"]
    assert [(each["principal"], each["operation"]) for each in kept] == [("User:carol", "all")]
    assert len(json.loads(run("acls", "remove", *owners, "--json").stdout)["removed"]) == 2
    without_principal = run("acls", "add", "--topic", "m-1")
    assert (without_principal.returncode, without_principal.stderr.count("\n")) == (2, 1)
    wrong = run("acls", "add", *who, "--topic", "m-1", "--operation", "fly")
    assert wrong.returncode == 2
    assert "fly" in wrong.stderr


@pytest.fixture
def commands(node, tmp_path):
    """Returns a function that runs a command as a user; it checks the exit code, and returns answer and error."""

    def run(user, *arguments, code=0):
        config = tmp_path / f"{user}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in confluent(node, user).items()))
        done = run_command(*arguments, "--command-config", str(config), "--json")
        assert done.returncode == code, done
        failure = json.loads(done.stderr)["error"] if code else ""
        return json.loads(done.stdout) if done.stdout else None, failure

    return run


def test_acls_that_the_cluster_refuses_do_not_hide_the_others(commands):
    """One of the hosts is no network: the answer has the ACLs that were added."""
    who = ("--allow-principal", "User:bob", "--allow-host", "*", "--allow-host", "10.0.0.0/40")
    answer, error = commands("root", "acls", "add", *who, "--operation", "Read", "--topic", "part", code=2)
    assert [each["principal"] for each in answer["added"]] == ["User:bob"]
    assert error.startswith("not added: allow User:bob from 10.0.0.0/40 read topic part: ")
    assert "host '10.0.0.0/40' is not a network" in error
    answer, _ = commands("root", "acls", "list", "--topic", "part")
    assert [each["principal"] for each in answer["acls"]] == ["User:bob"]


def test_filters_of_a_removal_go_in_one_request(commands):
    """An administrator gives its rights up: the removal of the first one does not refuse that of the second."""
    own = ("--operation", "Alter", "--operation", "Describe", "--cluster")
    commands("root", "acls", "add", "--allow-principal", "User:carol", *own)
    answer, _ = commands("carol", "acls", "remove", "--allow-principal", "User:carol", *own)
    assert sorted(each["operation"] for each in answer["removed"]) == ["alter", "describe"]
    _, error = commands("carol", "acls", "remove", "--allow-principal", "User:carol", *own, code=1)
    assert error.count("CLUSTER_AUTHORIZATION_FAILED") == 1, "one reason for both filters"


def test_a_reset_names_what_it_could_not_set(commands):
    """The user may read one of the topics, and only see the other one."""
    for topic in ("mine", "seen"):
        commands("root", "topics", "create", topic, "--partitions", "1")
    bob = ("--allow-principal", "User:bob")
    commands("root", "acls", "add", *bob, "--operation", "Read", "--topic", "mine", "--group", "resets")
    commands("root", "acls", "add", *bob, "--operation", "Describe", "--topic", "seen")
    reset = ("groups", "reset", "resets", "--topic", "mine", "--topic", "seen", "--to", "latest", "--create")
    answer, error = commands("bob", *reset, code=1)
    assert [each["topic"] for each in answer["partitions"]] == ["mine"]
    assert error.startswith("not reset: seen-0: ")
    answer, _ = commands("root", "groups", "describe", "resets")
    assert [each["topic"] for each in answer["partitions"]] == ["mine"]
