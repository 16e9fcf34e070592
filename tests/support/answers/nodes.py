"""Starts the two brokers from one file of settings, which both understand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from moldau.blocking import Admin
from moldau.protocol.errors import KafkaError
from moldau_jepsen.launcher.ports import take_free_ports
from support.answers.denied import PASSWORD, RIGHTS
from support.answers.session import Broker
from support.interop.clients import wait_until
from support.interop.kafka_node import ALONE, NEWEST, kafka
from support.started import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEMBERS = ("root", "alice", "bob", "carol")
"""The users of the listener on which sessions end; all have rights to nothing but what is theirs, except for root."""
SESSION_MS = 4_000
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},LOGIN://127.0.0.1:{users},RENEWED://127.0.0.1:{renewed},\
CONTROLLER://127.0.0.1:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,RENEWED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {logins};
listener.name.renewed.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.renewed.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required {members};
listener.name.renewed.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.renewed.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.renewed.connections.max.reauth.ms={session_ms}
connection.failed.authentication.delay.ms=0
log.dirs={home}/data
min.insync.replicas=1
auto.create.topics.enable=false
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:root
delegation.token.secret.key=secret
"""
AT_ONCE = (
    "".join(
        f"group.{kind}.assignment.interval.ms=0\ngroup.{kind}.assignor.offload.enable=false\n"
        for kind in ("consumer", "share", "streams")
    )
    + "group.streams.initial.rebalance.delay.ms=0\ngroup.share.min.record.lock.duration.ms=1000\n"
)
"""Settings with which a group computes its assignment with the heartbeat that asks for it, and locks may be short."""


def _settings(home: Path, more: str) -> tuple[str, Broker, tuple[int, int]]:
    broker, users, renewed, controller = take_free_ports(4)
    ports = {"broker": broker, "users": users, "renewed": renewed, "controller": controller}
    logins, members = (
        " ".join(f'user_{user}="{PASSWORD}"' for user in users) for users in ((*RIGHTS, *MEMBERS), MEMBERS)
    )
    text = ALONE + SETTINGS.format(logins=logins, members=members, session_ms=SESSION_MS, home=home, **ports) + more
    return text, Broker(f"127.0.0.1:{broker}", f"127.0.0.1:{users}", f"127.0.0.1:{renewed}"), (broker, controller)


@contextlib.contextmanager
def kafka_broker(home: Path, more: str = "") -> Iterator[Broker]:
    """Runs a broker of Apache Kafka; skips the test where it cannot be had. ``more`` are further settings."""
    text, broker, ports = _settings(home, more)
    with kafka(home, NEWEST, text, ports=ports):
        yield broker


@contextlib.contextmanager
def moldau_broker(home: Path, more: str = "") -> Iterator[Broker]:
    """Runs a broker of Moldau. ``more`` are further settings."""
    text, broker, _ = _settings(home, more)
    config, log_file = home / "node.properties", home / "node.log"
    config.write_text(text)
    with log_file.open("wb") as log:
        process = Command("server", str(config), "--with-parent", stderr=log)

    def is_up() -> bool:
        assert process.poll() is None, log_file.read_text()
        try:
            with Admin({"bootstrap.servers": broker.address, "default.api.timeout.ms": 2000}) as admin:
                return bool(admin.describe_cluster().brokers)
        except (KafkaError, OSError, TimeoutError):
            return False

    try:
        wait_until(is_up, "the broker serves")
        yield broker
    finally:
        process.terminate()
        process.wait(60)
