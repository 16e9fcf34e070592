"""A node whose links all use SASL, with a listener for each kind of login, for tests with real clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.launcher.ports import take_free_ports
from support import tokens
from support.certificates import authority
from support.started import Command

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "org.apache.kafka.common.security"
USERS = {
    "PLAIN": ("bob", "bob-s3cret"),
    "SCRAM-SHA-256": ("alice", "alice-s3cret"),
    "SCRAM-SHA-512": ("alice", "alice-s3cret"),
    "OAUTHBEARER": ("carol", ""),
}
MECHANISMS = tuple(USERS)
SESSION_S = 4
"""How long a session of the listener with TLS lives."""


class SecuredNode:
    """A running broker and controller; ``more`` are further keys of its configuration."""

    def __init__(self, directory: Path, **more: object) -> None:
        self.directory = directory
        self.log_file = directory / "node.log"
        plain, secured, certified, inside, controller = take_free_ports(5)
        self.plain, self.secured = f"127.0.0.1:{plain}", f"127.0.0.1:{secured}"
        self.certified = f"127.0.0.1:{certified}"
        (directory / "trust.pem").write_text(authority().trust)
        self.trust = directory / "trust.pem"
        chain, key = authority().issue("127.0.0.1")
        (directory / "node.pem").write_text(key + chain)
        (directory / "jwks.json").write_text(tokens.key_set())
        scram = f'{MODULE}.scram.ScramLoginModule required username="node" password="node-s3cret";'
        settings = {
            "node.id": 1,
            "process.roles": "broker,controller",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"OPEN://127.0.0.1:{plain},SECURED://127.0.0.1:{secured},INSIDE://127.0.0.1:{inside},"
            f"CERTIFIED://127.0.0.1:{certified},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "OPEN:SASL_PLAINTEXT,SECURED:SASL_SSL,INSIDE:SASL_PLAINTEXT,"
            "CERTIFIED:SSL,CONTROLLER:SASL_PLAINTEXT",
            "listener.name.certified.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
            "inter.broker.listener.name": "INSIDE",
            "log.dirs": directory / "data",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.scram.bootstrap.credentials": "SCRAM-SHA-256=[name=node,password=node-s3cret]",
            "listener.name.inside.sasl.jaas.config": scram,
            "listener.name.controller.sasl.jaas.config": scram,
            "sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required user_bob="bob-s3cret";',
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{directory / 'jwks.json'}",
            "sasl.oauthbearer.expected.issuer": tokens.ISSUER,
            "sasl.oauthbearer.expected.audience": tokens.AUDIENCE,
            "ssl.keystore.location": directory / "node.pem",
            "ssl.truststore.location": self.trust,
            "listener.name.secured.connections.max.reauth.ms": 1000 * SESSION_S,
            "num.partitions": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            **more,
        }
        path = directory / "node.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with self.log_file.open("w") as log:
            self.process = Command("server", str(path), "--with-parent", "--log-level", "debug", stderr=log)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log_file.read_text()
        return " ready " in self.log_file.read_text()

    def log(self) -> str:
        return self.log_file.read_text()

    def stop(self) -> None:
        """Kills the node."""
        self.process.kill()
        self.process.wait()
