"""Goal: files written for Kafka 4 work with any of its keys, and misspelt keys and variables are refused.

Method: the keys of the three files that Kafka 4 is delivered with, with values of our own, and single keys on top of
a node's file.
"""

from __future__ import annotations

import re

import pytest

from moldau.runtime.config import (
    BROKER_CONFIG,
    ConfigError,
    environment_name,
    parse_server_config,
    unserved_keys,
    unserved_texts,
)
from moldau.runtime.config.keys.kafka_names import UNSERVED_REASONS
from moldau.runtime.config.nearest import NAME_LENGTH_MAX

COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=localhost:9093
"""
MAP = "listener.security.protocol.map=" + ",".join(
    f"{name}:{protocol}"
    for name, protocol in (
        ("CONTROLLER", "PLAINTEXT"),
        ("PLAINTEXT", "PLAINTEXT"),
        ("SSL", "SSL"),
        ("SASL_PLAINTEXT", "SASL_PLAINTEXT"),
        ("SASL_SSL", "SASL_SSL"),
    )
)
SERVER = f"""{COMMON}{MAP}
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
"""
CONTROLLER = f"""{COMMON}
process.roles=controller
node.id=1
listeners=CONTROLLER://:9093
advertised.listeners=CONTROLLER://localhost:9093
"""
BROKER = f"""{COMMON}{MAP}
process.roles=broker
node.id=2
listeners=PLAINTEXT://localhost:9092
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092
"""


@pytest.mark.parametrize("text", [SERVER, CONTROLLER, BROKER], ids=["server", "controller", "broker"])
def test_the_files_that_kafka_comes_with_are_taken(text: str) -> None:
    config = parse_server_config(text, "kafka.properties", {})
    assert config.get_list("log.dirs") == ("/tmp/logs",)
    assert unserved_keys(config) == ()
    assert config.get_int("share.coordinator.state.topic.min.isr") == 1


def test_every_key_of_kafka_is_kept_as_text() -> None:
    names = [*BROKER_CONFIG.unserved, "rsm.config.bucket", "listener.name.plaintext.principal.builder.class"]
    assert len(names) > 100
    text = BROKER + "".join(f"{name}=some value\n" for name in names if f"\n{name}=" not in BROKER)
    config = parse_server_config(text, "kafka.properties", {})
    assert set(unserved_keys(config)) == set(names)
    assert config.text("remote.log.storage.manager.class.name") == "some value"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group.streams.assignors", "sticky"),
        ("group.streams.rack.aware.assignment.tags", "zone"),
        ("group.streams.topology.description.plugin.class", "org.example.Plugin"),
        ("log.remote.copy.lag.bytes", "-1"),
        ("log.remote.copy.lag.ms", "0"),
        ("max.decompressed.message.bytes", "2147483639"),
        ("socket.connection.setup.timeout.max.ms", "30000"),
    ],
)
def test_keys_of_kafka_4_4_are_taken(name: str, value: str) -> None:
    assert unserved_keys(parse_server_config(f"{BROKER}{name}={value}\n", "kafka.properties", {})) == (name,)


def test_each_key_of_tiered_storage_without_effect_has_a_reason() -> None:
    """The reason names only keys that have an effect."""
    tiered = [name for name in BROKER_CONFIG.unserved if name.startswith("remote.") or "tiered" in name]
    assert len(tiered) > 10
    assert sorted(UNSERVED_REASONS) == sorted([*tiered, *BROKER_CONFIG.unserved_prefixes])
    for reason in UNSERVED_REASONS.values():
        for name in re.findall(r"remote\.log[\w.*]*[\w*]", reason):
            assert any(key == name or (name.endswith("*") and key.startswith(name[:-1])) for key in BROKER_CONFIG.keys)
    assert "no topic holds that" in BROKER_CONFIG.key("remote.log.metadata.manager.class.name").doc


def test_warnings_give_the_reason_once() -> None:
    names = ["metric.reporters", "rsm.config.bucket", "remote.log.storage.manager.class.name", "security.providers"]
    plain, plugins = unserved_texts(names)
    assert plain == ("metric.reporters,security.providers", "these keys of Kafka have no effect in Moldau")
    assert plugins[0] == "rsm.config.bucket,remote.log.storage.manager.class.name"
    assert "remote.log.storage.url" in plugins[1]


@pytest.mark.parametrize(
    "hidden",
    [
        "listener.name.plaintext.ssl.truststore.password",
        "rlmm.config.remote.log.metadata.common.client.sasl.jaas.config",
        "rsm.config.s3.secret.access.key.id",
    ],
)
def test_secrets_of_keys_without_effect_are_not_shown(hidden: str) -> None:
    """Of a key of a plugin nothing says whether its value is a secret."""
    config = parse_server_config(f"{BROKER}{hidden}=some value\n", "kafka.properties", {})
    assert config.text(hidden) == "some value"
    assert config.text(hidden, hide=True) == "[hidden]"
    assert f"{hidden}='[hidden]'" in repr(config)
    assert BROKER_CONFIG.key(hidden).is_sensitive


def test_misspelt_keys_name_the_nearest_of_kafka_too() -> None:
    for wrong, right in (
        ("share.coordinator.state.topic.min.isrs", "share.coordinator.state.topic.min.isr"),
        ("log.retention.hour", "log.retention.hours"),
        ("sasl.kerberos.service.names", "sasl.kerberos.service.name"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_server_config(f"{BROKER}{wrong}=1\n", "kafka.properties", {})
        assert caught.value.problems == (f"{wrong}: unknown broker configuration key; did you mean {right}?",)
    for wrong in ("rsm.config.", "x" * 50, "l" * (NAME_LENGTH_MAX + 1)):
        assert BROKER_CONFIG.unknown(wrong) == f"{wrong}: unknown broker configuration key"


def test_variables_that_stand_for_no_key_are_errors() -> None:
    """A misspelt variable used to be ignored, and the node ran with another configuration than its operator meant."""
    with pytest.raises(ConfigError) as caught:
        parse_server_config(BROKER, "kafka.properties", {"MOLDAU_MIN_INSYNC_REPLICA": "2", "HOME": "/", "MOLDAU": "1"})
    assert caught.value.problems == (
        "MOLDAU_MIN_INSYNC_REPLICA: this environment variable stands for no broker configuration key; "
        "did you mean MOLDAU_MIN_INSYNC_REPLICAS, which is min.insync.replicas?",
    )
    with pytest.raises(ConfigError) as caught:
        parse_server_config(BROKER + "nodeid=1\n", "kafka.properties", {"MOLDAU_QQQQ": "2"})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["MOLDAU_QQQQ", "nodeid"]


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("PLAINTEXT.ssl.client.auth", "unknown broker configuration key; did you mean listener.name.plaintext.ssl"),
        ("plaintest.ssl.client.auth", "there is no listener plaintest; did you mean plaintext?"),
        ("plaintext.scram-sha512.sasl.jaas.config", "there is no SASL mechanism scram-sha512; did you mean"),
        ("plaintext.PLAIN.connections.max.reauth.ms", "unknown broker configuration key; did you mean listener.name"),
    ],
)
def test_keys_of_no_listener_are_errors(key: str, problem: str) -> None:
    """Nothing looks such a key up, so the listener would be open to clients that its operator meant to refuse."""
    value = "required" if key.endswith("auth") else "1"
    with pytest.raises(ConfigError) as caught:
        parse_server_config(f"{BROKER}listener.name.{key}={value}\n", "kafka.properties", {})
    (found,) = caught.value.problems
    assert found.startswith(f"listener.name.{key}: {problem}")


def test_keys_of_listeners_of_other_nodes_are_taken() -> None:
    """Nodes may share a file, which names the listeners of all of them in the map of protocols."""
    own = "listener.name.controller.ssl.client.auth=none\nlistener.name.sasl_ssl.gssapi.sasl.jaas.config=x\n"
    assert parse_server_config(BROKER + own, "kafka.properties", {}).is_set("listener.name.controller.ssl.client.auth")


def test_variables_of_the_tests_and_of_kafkas_keys_are_taken() -> None:
    variable = environment_name("telemetry.max.bytes")
    config = parse_server_config(BROKER, "kafka.properties", {"MOLDAU_FAULT_SEEDS": "2", variable: "7"})
    assert config.text("telemetry.max.bytes") == "7"
