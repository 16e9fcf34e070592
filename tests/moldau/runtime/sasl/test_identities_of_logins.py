"""Goal: a handler knows all of its peer after each login, and a flood of refusals is counted once.

Method: a gate whose session says what a login has shown; the log of a listener on a clock that a test moves.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, ConfigError, SecurityProtocol
from moldau.runtime.config.sasl import client_login
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau.runtime.sasl.core.mechanism import Rejected
from moldau.runtime.sasl.gate import SaslGate
from moldau.runtime.sasl.listener import FAILURES_LOGGED_MAX, SaslListener
from moldau_jepsen.world.world import run_world
from support.sasl import NoCredentials, node_config


class Logger:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append({"event": event, **fields})

    warning = debug


def with_listener(test: Any) -> None:
    async def main(world: Any) -> None:
        logger: Any = Logger()
        clock = SimpleNamespace(now_ms=0.0, monotonic_ms=lambda: clock.now_ms, wall_ms=lambda: 0)
        environment: Any = SimpleNamespace(random=world.node("a").environment.random, clock=clock)
        config = BROKER_CONFIG.parse(node_config())
        protocol = SecurityProtocol.SASL_SSL
        test(SaslListener(environment, config, "OUTSIDE", protocol, NoCredentials(), logger), clock, logger.lines)

    run_world(main, seed=1)


def test_each_login_sets_the_whole_identity() -> None:
    """A renewal by password ends the rights that a token lacks, and one by token takes them."""

    def test(listener: SaslListener, clock: Any, lines: list[dict[str, Any]]) -> None:
        peers: list[Peer] = []
        connection: Any = SimpleNamespace(peer_address=("10.0.0.7", 5))
        gate = SaslGate(listener, connection, clock, lambda _, peer: peers.append(peer))  # type: ignore[arg-type, return-value]
        before = peers[0].identity
        assert before == Identity(host="10.0.0.7", listener_name="OUTSIDE", security_protocol="SASL_SSL")
        for number, by_token in enumerate((True, False, True)):
            gate._session = SimpleNamespace(mechanism="SCRAM-SHA-256", by_token=by_token)  # type: ignore[assignment]
            gate._note_authenticated("ann")
            assert peers[0].identity == Identity(
                principal="User:ann",
                mechanism="SCRAM-SHA-256",
                host="10.0.0.7",
                listener_name="OUTSIDE",
                security_protocol="SASL_SSL",
                by_token=by_token,
            )
            assert [line["event"] for line in lines] == ["authenticated", "re-authenticated", "re-authenticated"][
                : number + 1
            ]
        gate._note_authenticated(None)
        counts = listener.attempts.of("SCRAM-SHA-256")
        assert (counts.accepted, counts.renewals_accepted) == (1, 2)

    with_listener(test)


def test_refusals_that_are_not_logged_are_reported_once() -> None:
    def test(listener: SaslListener, clock: Any, lines: list[dict[str, Any]]) -> None:
        refused = Rejected(cause="why", claimed="x" * 100)
        for second, count in enumerate((FAILURES_LOGGED_MAX + 7, 2, FAILURES_LOGGED_MAX, 1)):
            clock.now_ms = second * 1_000.0 + 5
            for _ in range(count):
                listener.note_failure("h", "PLAIN", refused, again=False)
        assert [line["unlogged"] for line in lines if "unlogged" in line] == [7]
        assert "unlogged" in lines[FAILURES_LOGGED_MAX], "the first line of the next second"
        assert len(lines) == FAILURES_LOGGED_MAX * 2 + 3
        assert {line["principal"] for line in lines} == {"User:" + "x" * 64}
        assert listener.attempts.refused == FAILURES_LOGGED_MAX * 2 + 10

    with_listener(test)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("option", "is_token"),
    [("", False), ("tokenauth=false", False), ("tokenauth=true", True), ('tokenauth="TRUE"', True)],
)
def test_a_delegation_token_needs_scram(mechanism: str, option: str, is_token: bool) -> None:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    text = f'org.apache.kafka.common.security.{module}LoginModule required username="id" password="s3cret" {option};'
    given = {"bootstrap.servers": "b:1", "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
    given["sasl.jaas.config"] = text
    if is_token and mechanism == "PLAIN":
        with pytest.raises(ConfigError, match="tokenauth needs a SCRAM mechanism, not PLAIN") as caught:
            ADMIN_CONFIG.parse(given)
        assert "s3cret" not in str(caught.value)
    else:
        found = client_login(ADMIN_CONFIG.parse(given))
        assert (found.mechanism, found.user, found.password, found.is_token) == (mechanism, "id", "s3cret", is_token)


def test_a_secret_that_is_not_set_is_not_shown_as_one() -> None:
    """An administrator who describes a node sees whether it has one."""
    given = {"bootstrap.servers": "b:1"}
    assert ADMIN_CONFIG.parse(given).text("sasl.password", hide=True) is None
    assert ADMIN_CONFIG.parse({**given, "sasl.password": "x"}).text("sasl.password", hide=True) == "[hidden]"
    assert ADMIN_CONFIG.parse({**given, "client.id": "x"}).text("client.id", hide=True) == "x"
