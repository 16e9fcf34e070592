"""Configuration of nodes with SASL, for tests of single parts."""

from __future__ import annotations

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class NoCredentials:
    """A cluster without SCRAM users."""

    def keys(self, user: str, mechanism: str) -> None:
        return None

    def usual_iterations(self, mechanism: str) -> int:
        return 4096


def node_config(delay_ms: str = "100", **more: str) -> dict[str, str]:
    """Returns keys of a broker with a listener OUTSIDE that offers all mechanisms; alice has the password secret."""
    return {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "101@c:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": "INSIDE://:9094,OUTSIDE://:9092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "log.dirs": "/data",
        "connection.failed.authentication.delay.ms": delay_ms,
        "sasl.jaas.config": f'{PLAIN} user_alice="secret" user_bob="secret";',
        **more,
    }
