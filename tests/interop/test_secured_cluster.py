"""Goal: ``moldau cluster start --secure`` gives a cluster that admits only the principals that it was configured with.

Method: one cluster of real processes; Moldau's own clients and an unmodified confluent-kafka
read the file that the launcher wrote.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import trio

import moldau
from moldau.admin import Acl, NewTopic
from moldau.blocking import Admin, Consumer, Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import parse_config_text
from moldau_cli.console.core.rates import RateHistory
from moldau_cli.console.data import cluster as console
from moldau_cli.main import main
from moldau_jepsen.launcher import ClusterSpec, LauncherError, open_cluster, start_cluster
from moldau_jepsen.launcher.process import ProcessState
from support.commands import run_command

pytestmark = [pytest.mark.interop, pytest.mark.processes]
PASSWORD = "alice-s3cret"
GUIDE = Path(__file__).parents[2] / "docs/guides/secure.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("secured") / "cluster"
    cluster = start_cluster(place, ClusterSpec(brokers=1, controllers=1, secure=True))
    yield place
    cluster.shut_down()


@pytest.fixture(scope="module")
def administrator(directory):
    path = Path(json.loads((directory / "cluster.json").read_text())["client_config"])
    return {key: str(value) for key, value in parse_config_text(path.read_text(), str(path)).items()}


@pytest.fixture(scope="module")
def alice(administrator):
    """A user without any right but to write and read the topic ``allowed``."""
    with Admin(administrator) as admin:
        admin.create_topics([NewTopic("allowed"), NewTopic("refused")])
        admin.set_user_password("alice", PASSWORD, mechanism="SCRAM-SHA-512")
        admin.create_acls(
            [
                Acl(principal="User:alice", operation=operation, resource="topic", name="allowed")
                for operation in ("write", "read")
            ]
        )
    return {**administrator, "sasl.username": "alice", "sasl.password": PASSWORD}


def test_own_clients_do_what_the_acls_permit(alice):
    with Producer(alice) as producer:
        producer.send("allowed", b"own").result()
        with pytest.raises(KafkaError) as raised:
            producer.send("refused", b"own").result()
    assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with Consumer({**alice, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("allowed", 0)])
        assert next(iter(consumer)).value == b"own"
    with Admin(alice) as admin, pytest.raises(KafkaError) as raised:
        admin.create_topics([NewTopic("third")])
    assert "AUTHORIZATION_FAILED" in str(raised.value)


def test_the_python_code_of_the_guide(directory, administrator, tmp_path, monkeypatch):
    """The user of the guide copies the launcher's file, changes two lines, and runs the code of the page."""
    with Admin(administrator) as admin:
        admin.create_topics([NewTopic("orders")])
        rights = [Acl(principal="User:shop", operation=right, resource="topic", name="orders") for right in ("write",)]
        admin.create_acls(rights)
    login = directory / "client.properties"
    added = run_command("--command-config", str(login), "users", "add", "shop", given=f"{PASSWORD}\n")
    assert added.stdout == "added SCRAM-SHA-512 of shop\n", added.stderr
    text = login.read_text()
    for key, value in (("username", "shop"), ("password", PASSWORD)):
        text, count = re.subn(rf"(?m)^sasl\.{key}=.*$", f"sasl.{key}={value}", text)
        assert count == 1
    (tmp_path / "shop.properties").write_text(text)
    monkeypatch.chdir(tmp_path)
    section = GUIDE.read_text().partition("## A secured cluster in ten minutes")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(code, str(GUIDE), "exec"), {})
    with Consumer({**administrator, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("orders", 0)])
        assert next(iter(consumer)).value == b"two"


def test_confluent_kafka_reads_the_same_file(alice, administrator):
    from confluent_kafka import Producer as ConfluentProducer

    outcomes: dict[str, object] = {}
    for name, settings in (("alice", alice), ("admin", administrator)):
        producer = ConfluentProducer(settings)
        for topic in ("allowed", "refused"):
            producer.produce(
                topic,
                b"confluent",
                on_delivery=lambda error, message, key=f"{name} {topic}": outcomes.update(
                    {key: error.name() if error else None}
                ),
            )
        assert producer.flush(60) == 0
    assert outcomes == {
        "alice allowed": None,
        "alice refused": "TOPIC_AUTHORIZATION_FAILED",
        "admin allowed": None,
        "admin refused": None,
    }


@pytest.mark.parametrize("change", ["no login", "wrong password", "no TLS"])
def test_others_do_not_get_in(administrator, change):
    changed = {
        "no login": {"security.protocol": "SSL", "sasl.username": None, "sasl.password": None, "sasl.mechanism": None},
        "wrong password": {"sasl.password": "guessed"},
        "no TLS": {"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": None},
    }[change]
    settings = {key: value for key, value in {**administrator, **changed}.items() if value is not None}
    with (
        Admin({**settings, "default.api.timeout.ms": "3000"}) as admin,
        pytest.raises((KafkaError, OSError, TimeoutError)),
    ):
        admin.describe_cluster()


def test_refused_logins_are_shown(directory, administrator, capsys):
    """The status of the local cluster, the verdict on any cluster, and the console count them."""

    def shown(*arguments):
        assert main(["cluster", "status", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    def counts():
        nodes = {row["node"]: row["refused_logins"] for row in shown("--dir", str(directory))["nodes"]}
        login = ["-b", administrator["bootstrap.servers"], "--command-config", str(directory / "client.properties")]
        return nodes, shown(*login)["refused_logins"]

    async def overview():
        async with moldau.Admin(administrator) as admin:
            page, rows = await console.overview(admin, admin, RateHistory()), await console.brokers(admin, admin)
        return page["refused_logins"], [row["refused_logins"] for row in rows["rows"]]

    nodes, total = counts()
    wrong = {**administrator, "sasl.password": "guessed", "default.api.timeout.ms": "3000"}
    with Admin(wrong) as admin, pytest.raises(KafkaError):
        admin.describe_cluster()
    assert counts() == (nodes | {1: nodes[1] + 1}, total + 1)
    assert trio.run(overview) == (total + 1, [nodes[1] + 1])


def test_the_launcher_can_still_ask_its_nodes(directory):
    """Status and readiness authenticate too."""
    cluster = open_cluster(directory)
    assert [(node.state, node.fenced) for node in cluster.status()] == [
        (ProcessState.RUNNING, False),
        (ProcessState.RUNNING, None),
    ]
    quorum = cluster.quorum()
    assert quorum is not None
    assert quorum.leader_id == 101


def test_commands_find_the_login_in_the_cluster_file(directory, alice, administrator, monkeypatch, capsys):
    """In the directory above ``moldau-cluster`` a command needs no option; a user sees what ACLs permit."""
    (directory.parent / "moldau-cluster").symlink_to(directory)
    monkeypatch.chdir(directory.parent)
    assert main(["topics", "list"]) == 0
    assert "refused" in capsys.readouterr().out
    own = directory.parent / "alice.properties"
    own.write_text("".join(f"{key}={value}\n" for key, value in alice.items()))
    assert main(["topics", "list", "--command-config", str(own)]) == 0
    listed = capsys.readouterr().out
    assert "allowed" in listed
    assert "refused" not in listed
    seen = []

    async def serve(options, announce):
        seen.append(options.settings["sasl.username"])

    monkeypatch.setattr("moldau_cli.console.serving.run_console", serve)
    for arguments in ([], ["--dir", str(directory)], ["--command-config", str(own)]):
        assert main(["console", "--no-browser", *arguments]) == 0
    assert seen == ["admin", "admin", "alice"]
    assert main(["cluster", "start", "--secure"]) == 1
    assert "already runs" in capsys.readouterr().err


def test_a_node_gives_the_administrator_a_new_password(directory, administrator, tmp_path, monkeypatch):
    """The section of the guide to recovery: the administrator's password is forgotten."""
    bootstrap = administrator["bootstrap.servers"]
    own, node = directory / "client.properties", tmp_path / "node.properties"
    node_login = {"sasl.username": "broker", "sasl.password": f"${{file:{directory / 'secrets.properties'}:broker}}"}
    node.write_text("".join(f"{key}={value}\n" for key, value in {**administrator, **node_login}.items()))
    alter = ("users", "alter", "admin", "-b", bootstrap, "--command-config")
    assert run_command(*alter, str(own), given="forgotten-password\n").returncode == 0
    refused = run_command("topics", "list", "-b", bootstrap, "--command-config", str(own))
    assert refused.returncode == 1
    assert "the login was that of user 'admin'" in refused.stderr
    cluster = open_cluster(directory)
    monkeypatch.setattr("moldau_jepsen.launcher.cluster.LOGIN_LOOK_S", 0.0)
    with pytest.raises(LauncherError, match=r"broker 1 runs, and refuses the login of .*client\.properties"):
        cluster.wait_ready(cluster.brokers)
    assert run_command(*alter, str(node), given=administrator["sasl.password"] + "\n").returncode == 0
    assert run_command("topics", "list", "-b", bootstrap, "--command-config", str(own)).returncode == 0
