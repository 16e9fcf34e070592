"""Goal: a console that could not serve is refused in one line, before its node starts. Method: configuration files."""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import trio

from moldau.runtime.config import SecurityProtocol, parse_server_config, process_configs
from moldau.runtime.telemetry.log import EventLogger
from moldau_cli.console.attached import options_of
from moldau_cli.console.core.logins import offered_mechanisms
from moldau_cli.nodes.console import NodeConsole
from moldau_cli.nodes.server import serve_command
from moldau_jepsen.launcher import Node
from moldau_jepsen.launcher.secured import make_certificates

BASE = """process.roles={roles}
node.id=1
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners={listeners}
log.dirs=/nowhere
"""
PLAIN = "PLAINTEXT://127.0.0.1:9092"
SCRAM = "\nsasl.enabled.mechanisms=SCRAM-SHA-256\nsecurity.inter.broker.protocol=SASL_PLAINTEXT\n" + (
    "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-256\nlistener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config="
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="p";\n'
)


def written(more, listeners=PLAIN, roles="broker", voters="9@127.0.0.1:9093"):
    return BASE.format(roles=roles, voters=voters, listeners=listeners) + more


def console_of(text):
    return NodeConsole(parse_server_config(text, "node.properties", {}), {})


def settings_of(console):
    """Returns what the process gets."""
    return json.loads(json.dumps(console.settings("b1", 9092, ["B1", "b1.example"])))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("console.listener=9080\n", "console.listener: '9080' is not host:port"),
        ("console.listener=127.0.0.1:0\n", "port 0 would be another one at each start"),
        ("console.listener=0.0.0.0:9080\n", "can be reached from other machines, so console.token is needed"),
        ("console.listener=127.0.0.1:9080\nconsole.token=short\n", "console.token: 5 characters, at least 16"),
        ("console.listener=127.0.0.1:9080\nconsole.client.config={tmp}/absent\n", "cannot read"),
        (
            "console.listener=127.0.0.1:9080\nconsole.ssl.keystore.location={tmp}/odd\n",
            "console.ssl.keystore.location: no private key with its certificate chain in PEM form",
        ),
        (
            "console.listener=127.0.0.1:9080\nconsole.ssl.keystore.password=p\n",
            "console.ssl.keystore.password: needs console.ssl.keystore.location",
        ),
        ("console.listener=127.0.0.1:9080\nconsole.client.config={tmp}/odd\n", "did you mean bootstrap.servers?"),
        ("console.listener=127.0.0.1:9080\nconsole.client.config={tmp}/tls\n", "no listener of this broker speaks SSL"),
    ],
)
def test_a_wrong_configuration_is_one_line(more, words, tmp_path, capsys):
    (tmp_path / "odd").write_text("bootstrap.server=x\n")
    (tmp_path / "tls").write_text("security.protocol=ssl\n")
    file = tmp_path / "node.properties"
    file.write_text(written(more.format(tmp=tmp_path)))
    for option in ([], ["--check"]):
        assert serve_command([str(file), *option]) == 2
        reported = capsys.readouterr().err
        assert reported.count("\n") == 1
        assert words in reported


def test_a_controller_alone_has_no_console(tmp_path, capsys):
    file = tmp_path / "node.properties"
    more = "console.listener=127.0.0.1:9080\n"
    file.write_text(written(more, "CONTROLLER://127.0.0.1:9093", "controller", "1@127.0.0.1:9093"))
    assert serve_command([str(file)]) == 2
    assert "process.roles lacks broker" in capsys.readouterr().err


def test_a_missing_extra_is_named(monkeypatch, tmp_path, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "hypercorn" else find(name, *more)
    )
    file = tmp_path / "node.properties"
    file.write_text(written("console.listener=127.0.0.1:9080\n"))
    assert serve_command([str(file)]) == 2
    assert "hypercorn not installed; run: pip install 'moldau[console]'" in capsys.readouterr().err


def test_the_console_uses_a_listener_that_needs_no_file():
    plain = console_of(written("console.listener=127.0.0.1:9080\n"))
    found = settings_of(plain)
    assert (found["bootstrap"], found["settings"]) == ("b1:9092", {"security.protocol": "PLAINTEXT"})
    assert (found["login"], found["read_only"], found["token"]) == (False, True, None)
    both = SCRAM + "console.listener=[::1]:9080\nconsole.read.only=false\nconsole.token=0123456789abcdef\n"
    options = options_of(settings_of(console_of(written(both, "SASL_PLAINTEXT://127.0.0.1:9092"))))
    assert (options.login, options.read_only, options.token) == (True, False, "0123456789abcdef")
    assert (options.host, options.port, options.settings["security.protocol"]) == ("::1", 9080, "SASL_PLAINTEXT")


def test_browsers_may_use_the_names_that_clients_use():
    """Only localhost and addresses were accepted, which no certificate names; the advice was an option of a command."""
    options = options_of(settings_of(console_of(written("console.listener=127.0.0.1:9080\n"))))
    assert options.allowed_hosts == {"b1", "b1.example"}


def test_a_login_of_the_file_needs_no_person(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=w\nsasl.password=${env:W}\n"
    )
    text = written(
        SCRAM + f"console.listener=127.0.0.1:9080\nconsole.client.config={file}\n", "SASL_PLAINTEXT://127.0.0.1:9092"
    )
    found = settings_of(NodeConsole(parse_server_config(text, "n", {}), {"W": "secret"}))
    assert (found["login"], found["settings"]["sasl.password"]) == (False, "secret")


def test_a_file_without_a_user_leaves_the_login_to_persons(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n")
    text = written(
        SCRAM + f"console.listener=127.0.0.1:9080\nconsole.client.config={file}\n", "SASL_PLAINTEXT://127.0.0.1:9092"
    )
    found = settings_of(console_of(text))
    assert (found["login"], found["settings"]["security.protocol"]) == (True, "SASL_PLAINTEXT")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_the_form_begins_with_what_the_listener_offers(mechanism, tmp_path):
    """It began with SCRAM-SHA-256, so each first login was refused, and counted as one."""
    login = SCRAM.replace("scram-sha-256.", "").replace("SCRAM-SHA-256", mechanism)
    if mechanism == "PLAIN":
        login = login.replace("scram.ScramLoginModule", "plain.PlainLoginModule")
    text = written(login + "console.listener=127.0.0.1:9080\n", "SASL_PLAINTEXT://127.0.0.1:9092")
    found = settings_of(console_of(text))
    assert found["login"]
    assert offered_mechanisms(found["settings"])[0] == mechanism
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n")
    found = settings_of(console_of(f"{text}console.client.config={file}\n"))
    assert offered_mechanisms(found["settings"])[0] == "SCRAM-SHA-256", "its own configuration counts first"


def test_only_the_first_of_several_processes_serves_it():
    text = written("console.listener=127.0.0.1:9080\nbroker.processes=2\n", voters="9@127.0.0.1:8000")
    first, second = process_configs(parse_server_config(text, "n", {}))
    assert (first.get("console.listener"), second.get("console.listener")) == ("127.0.0.1:9080", "")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost", "0.0.0.0", "[::]", "192.0.2.7"])
def test_only_plain_text_for_other_machines_is_warned_of(host, tls, monkeypatch, tmp_path, caplog):
    """The token and all records would pass the network in clear; on this machine, or over TLS, they do not."""
    node = Node(node_id=1, role="broker", port=1, directory="", config=str(tmp_path / "node.properties"), log="")
    (tmp_path / "tls.pem").write_bytes(make_certificates([node])[1][1])
    more = f"console.listener={host}:9080\nconsole.token=0123456789abcdef\n"
    more += f"console.ssl.keystore.location={tmp_path / 'tls.pem'}\n" * tls
    console, started = console_of(written(more)), []

    async def restarts(environment, name, once, **_):
        await once()

    async def process(settings, address, log):
        started.append((json.loads(settings), address))

    monkeypatch.setattr("moldau_cli.nodes.console.run_with_restarts", restarts)
    monkeypatch.setattr("moldau_cli.nodes.console._run_process", process)
    endpoints = [
        SimpleNamespace(host="b1", port=9094, security_protocol=SecurityProtocol.SASL_SSL),
        SimpleNamespace(host="b2", port=9092, security_protocol=SecurityProtocol.PLAINTEXT),
    ]
    trio.run(console.run, None, endpoints, EventLogger("moldau.server"))
    is_local = host in ("127.0.0.1", "[::1]", "localhost")
    warned = [record.getMessage().split()[0] for record in caplog.records]
    assert warned == ([] if tls or is_local else ["console-without-tls"])
    ((given, address),) = started
    assert address == f"{'https' if tls else 'http'}://{host}:9080"
    assert (given["bootstrap"], given["names"]) == ("b2:9092", ["b1", "b2"])
