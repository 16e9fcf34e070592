"""Goal: an administrator sees how many logins the nodes of a cluster refused, where nodes say so.

Method: the answers alone; then an endpoint on a real socket, as nodes serve it.
"""

import json
from types import SimpleNamespace

import pytest
import trio

from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.attempts import NO_MECHANISM, TLS, ListenerAttempts, RefusedLogins, refused_logins
from moldau.runtime.telemetry.endpoint import Page, serve_pages
from moldau_cli.operations.refused_logins import Refusals, ask_for_refusals, parse_refusals

ROWS = [
    {"listener": "SASL_SSL", "mechanism": "PLAIN", "count": 3},
    {"listener": "SASL_SSL", "mechanism": "SSL", "count": 0},
]


def test_counts_cover_logins_renewals_and_handshakes():
    attempts = ListenerAttempts()
    attempts.show(["PLAIN"])
    for again in (False, False, True):
        attempts.of("PLAIN").count(accepted=False, again=again)
    attempts.of("PLAIN").count(accepted=True, again=False)
    servers = [("SASL_SSL", SimpleNamespace(handshakes_failed=4)), ("PLAINTEXT", SimpleNamespace(handshakes_failed=9))]
    found = refused_logins({"SASL_SSL": attempts}, servers, {"SASL_SSL"})
    assert {each.mechanism: each.count for each in found} == {NO_MECHANISM: 0, "PLAIN": 3, TLS: 4}


def test_only_counts_are_taken_for_counts():
    assert parse_refusals(json.dumps(ROWS).encode())[0] == RefusedLogins(
        listener="SASL_SSL", mechanism="PLAIN", count=3
    )
    for page in (
        b"",
        b"<html>",
        b"3",
        b"[3]",
        b'[{"listener": "a"}]',
        b'[{"listener": "", "mechanism": "", "count": "x"}]',
    ):
        with pytest.raises(ValueError, match=r"."):
            parse_refusals(page)


def test_brokers_that_answer_are_counted():
    """Nothing listens at the address of 2."""

    async def main():
        async with trio.open_nursery() as nursery:
            pages = {"/logins": lambda: Page(200, json.dumps(ROWS) + "\n")}
            _, port = await nursery.start(serve_pages, real_environment(), "127.0.0.1", 0, pages)
            closed = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            other = closed.socket.getsockname()[1]
            await closed.aclose()
            found = await ask_for_refusals({1: f"127.0.0.1:{port}", 2: f"127.0.0.1:{other}"})
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(main)
    assert (found.is_known, found.total, list(found.by_node)) == (True, 3, [1])
    assert [found.of(each) for each in (1, 2)] == [3, None]
    assert found.text() == "3 at node 1 (SASL_SSL, PLAIN)"


def test_nodes_without_security_show_nothing():
    found = Refusals(by_node={1: []})
    assert (found.is_known, found.total, found.of(1), found.text()) == (False, 0, None, "")
