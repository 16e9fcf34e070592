"""Goal: a listener that reloads its configuration is like one that starts with it, and a wrong one changes nothing.

Method: each key of a listener with SASL, changed in a running listener, against a new one.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.runtime.config import BROKER_CONFIG, ConfigError, ConfigSchema, SecurityProtocol
from moldau.runtime.sasl.core.mechanism import Accepted
from moldau.runtime.sasl.listener import SaslListener
from moldau.runtime.telemetry.log import EventLogger
from moldau_jepsen.world.world import run_world
from support.sasl import PLAIN, NoCredentials, node_config

OWN = "listener.name.outside."
CHANGES: list[dict[str, str]] = [
    {"connection.failed.authentication.delay.ms": "7"},
    {"sasl.server.max.receive.size": "12345"},
    {f"{OWN}sasl.server.max.receive.size": "12346"},
    {"connections.max.reauth.ms": "5000"},
    {f"{OWN}scram-sha-256.connections.max.reauth.ms": "6000"},
    {"sasl.enabled.mechanisms": "PLAIN"},
    {f"{OWN}sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN"},
    {"sasl.jaas.config": f'{PLAIN} user_zoe="secret";'},
    {f"{OWN}plain.sasl.jaas.config": f'{PLAIN} user_tom="secret";'},
]
BEFORE = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}


def shown(listener: SaslListener) -> dict[str, object]:
    """Everything of a listener that its connections see, with the users that it lets in."""
    rules = listener.rules
    users = [
        user
        for user in ("alice", "bob", "zoe", "tom")
        if isinstance(rules.exchanges["PLAIN"]().step(f"\0{user}\0secret".encode()), Accepted)
    ]
    return {
        "delay": listener.failure_delay_ms,
        "size": listener.receive_bytes_max,
        "mechanisms": list(rules.exchanges),
        "reauthentication": dict(rules.reauthentication_ms),
        "users": users,
        "counted": sorted(listener.attempts.by_mechanism),
    }


def with_listeners(test: Any) -> None:
    async def main(world: Any) -> None:
        environment = world.node("broker").environment

        def made(config: Any) -> SaslListener:
            logger = EventLogger("test")
            return SaslListener(
                environment, config, "OUTSIDE", SecurityProtocol.SASL_PLAINTEXT, NoCredentials(), logger
            )

        test(made)

    run_world(main, seed=1)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_reloaded_listener_is_like_a_new_one(change: dict[str, str]) -> None:
    def test(made: Any) -> None:
        before, after = (BROKER_CONFIG.parse(node_config(**{**BEFORE, **more})) for more in ({}, change))
        listener, new = made(before), shown(made(after))
        old = shown(listener)
        assert new != old, "the key has an effect"
        for config, expected in ((after, new), (before, old), (after, new)):
            listener.reload(config)
            found = shown(listener)
            assert set(found.pop("counted")) >= set(expected["counted"]), "counts of former mechanisms stay"
            assert found == {name: value for name, value in expected.items() if name != "counted"}

    with_listeners(test)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_wrong_configuration_changes_nothing(change: dict[str, str]) -> None:
    """The key that is wrong may stand behind others that are right."""
    unchecked = ConfigSchema.of("broker", list(BROKER_CONFIG.keys.values()), listener_prefix="listener.name.")

    def test(made: Any) -> None:
        listener = made(BROKER_CONFIG.parse(node_config(**BEFORE)))
        old = shown(listener)
        wrong = {f"{OWN}plain.sasl.jaas.config": "no JAAS"}
        if f"{OWN}plain.sasl.jaas.config" in change:
            wrong = {"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}
        with pytest.raises(ConfigError):
            listener.reload(unchecked.parse(node_config(**{**BEFORE, **change, **wrong})))
        assert shown(listener) == old

    with_listeners(test)
