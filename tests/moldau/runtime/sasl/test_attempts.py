"""Goal: each attempt to log in counts once, under its mechanism and kind, on every page that shows refusals.

Method: every number of attempts differs, so that no count can be taken for another.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from moldau.runtime.sasl.attempts import ListenerAttempts, RefusedLogins, refused_logins, register_attempts
from moldau.runtime.sasl.core.oauth import OauthClient
from moldau.runtime.telemetry.metrics import Registry
from support import tokens

from .test_tokens import SCOPE, with_checker

KINDS = {"accepted": (True, False), "refused": (False, False), "renewals_accepted": (True, True)} | {
    "renewals_refused": (False, True)
}
NAMES = {
    "accepted": "successful_authentication_total",
    "refused": "failed_authentication_total",
    "renewals_accepted": "successful_reauthentication_total",
    "renewals_refused": "failed_reauthentication_total",
}


def listeners() -> dict[str, ListenerAttempts]:
    """Two listeners; the counts of each mechanism and kind are powers of two."""
    found, count = {}, 1
    for name, mechanisms in (("INSIDE", ("PLAIN",)), ("OUTSIDE", ("PLAIN", ""))):
        found[name] = attempts = ListenerAttempts()
        attempts.show([each for each in ("PLAIN", "OAUTHBEARER") if each in mechanisms])
        for mechanism in mechanisms:
            for accepted, again in KINDS.values():
                for _ in range(count):
                    attempts.of(mechanism).count(accepted=accepted, again=again)
                count *= 2
    found["OUTSIDE"].expired = 7
    return found


def servers() -> list[tuple[str, Any]]:
    return [("INSIDE", SimpleNamespace(handshakes_failed=3)), ("OUTSIDE", SimpleNamespace(handshakes_failed=5))]


def test_refusals_are_those_of_first_logins_and_of_renewals() -> None:
    given = listeners()
    assert refused_logins(given, servers(), {"OUTSIDE"}) == [
        RefusedLogins(listener="INSIDE", mechanism="none", count=0),
        RefusedLogins(listener="INSIDE", mechanism="PLAIN", count=2 + 8),
        RefusedLogins(listener="OUTSIDE", mechanism="none", count=512 + 2_048),
        RefusedLogins(listener="OUTSIDE", mechanism="PLAIN", count=32 + 128),
        RefusedLogins(listener="OUTSIDE", mechanism="SSL", count=5),
    ]
    assert [each.refused for each in given.values()] == [10, 512 + 2_048 + 32 + 128]


def test_each_kind_has_a_metric_of_its_own() -> None:
    given, registry = listeners(), Registry()
    register_attempts(registry, given, servers, {"INSIDE"})
    shown = dict(line.rsplit(" ", 1) for line in registry.expose().splitlines() if not line.startswith("#"))
    expected = {'kafka_server_socketservermetrics_failed_authentication_total{listener="INSIDE",mechanism="SSL"}': "3"}
    for name, attempts in given.items():
        expired = f'kafka_network_socketserver_expiredconnectionskilledcount{{listener="{name}"}}'
        expected[expired] = str(attempts.expired)
        for mechanism, counts in attempts.by_mechanism.items():
            for kind, metric in NAMES.items():
                labels = f'{{listener="{name}",mechanism="{mechanism}"}}'
                expected[f"kafka_server_socketservermetrics_{metric}{labels}"] = str(getattr(counts, kind))
    assert shown == expected
    given["INSIDE"].of("PLAIN").count(accepted=True, again=False)
    assert '"INSIDE",mechanism="PLAIN"} 2\n' in registry.expose(), "counts are read at each request"


def test_messages_that_name_no_key_cause_no_reading() -> None:
    """Anyone may send them, without end."""

    async def test(checker: Any, environment: Any) -> int:
        reads = []
        read = checker._read

        async def counted(url: str) -> bytes:
            reads.append(url)
            return await read(url)

        checker._read = counted
        right = OauthClient(tokens.token(environment.clock.wall_ms() / 1000, **SCOPE)).first()
        await checker.prepare(right)
        for message in (b"", b"x", b"n,,\x01auth=Bearer x\x01\x01", b"n,,\x01auth=Bearer e30.e30.e30\x01\x01", right):
            await trio.sleep(120)
            await checker.prepare(message)
        return len(reads)

    assert with_checker(test) == 1
