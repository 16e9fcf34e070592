"""Goal: the console serves what its options say, on one address, and leaves nothing behind when a signal ends it.

Method: the console in this process, in front of a cluster that is down; pages are asked over the network.
"""

from __future__ import annotations

import signal
import socket
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
import trio

from moldau_cli.console import serving
from moldau_cli.console.serving import Options, run_console

TOKEN = "a token for the tests"


class Probe:
    """Stands for the probe of replication; ``made`` has those that were made, and whether they ran."""

    made: ClassVar[list[Any]] = []

    def __init__(self, identity: Any, nodes: Any) -> None:
        self.identity, self.nodes, self.runs = identity, nodes, False
        self.made.append(self)

    async def run(self) -> None:
        self.runs = True
        try:
            await trio.sleep_forever()
        finally:
            self.runs = False


@pytest.mark.parametrize(("login", "read_only", "is_local"), list(product((False, True), repeat=3)))
def test_the_console_serves_as_its_options_say(
    login: bool, read_only: bool, is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buttons and the probe need a local cluster, the console's own identity, and the right to change something."""
    token = TOKEN if login == is_local else None
    nodes: Any = SimpleNamespace(has_links=False, kinds={}, name="nodes") if is_local else None
    monkeypatch.setattr(Probe, "made", [])
    monkeypatch.setattr(serving, "ReplicationProbe", Probe)
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} if login else {}
    options = Options(
        bootstrap="127.0.0.1:9",
        settings=settings,
        host="localhost",
        port=0,
        token=token,
        login=login,
        read_only=read_only,
        local=nodes,
        allowed_hosts=frozenset({"console.example"}),
    )
    has_buttons = is_local and not login and not read_only
    found: dict[str, Any] = {}

    async def ask(url: str) -> None:
        try:
            address = url.partition("#")[0]
            found["url"], found["port"] = url, int(address.rstrip("/").rpartition(":")[2])
            async with httpx.AsyncClient(base_url=address) as client:
                found["page"] = (await client.get("/")).status_code
                found["session"] = (await client.get("/api/session")).json()
                found["cookies"] = dict(client.cookies)
                for host in ("console.example", "localhost", "evil.example"):
                    found[host] = (await client.get("/", headers={"host": host})).status_code
                for host in ("localhost", "evil.example"):  # in absolute form, as proxies name it
                    target = f"http://{host}:{found['port']}/api/session?x=1".encode()
                    found[f"by {host}"] = (await client.get("/other", extensions={"target": target})).status_code
            found["probes"] = [probe.runs for probe in Probe.made]
        finally:
            signal.raise_signal(signal.SIGTERM)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(60):
                await run_console(options, lambda url: nursery.start_soon(ask, url))

    trio.run(main)
    assert found["url"] == f"http://localhost:{found['port']}/" + ("#token=a%20token%20for%20the%20tests" * bool(token))
    assert (found["page"], found["console.example"], found["localhost"], found["evil.example"]) == (200, 200, 200, 421)
    assert (found["by localhost"], found["by evil.example"]) == (200, 421)
    session = found["session"]
    assert session["signed_in"] is (not token and not login)
    if session["signed_in"]:
        assert (session["bootstrap"], session["read_only"], session["local"]) == ("127.0.0.1:9", read_only, has_buttons)
        assert list(found["cookies"]) == [f"moldau_console_{found['port']}"], "consoles on two ports share a host"
    else:
        assert (session["wants_token"], session["wants_login"], found["cookies"]) == (bool(token), login, {})
        assert session["mechanisms"][0] == ("PLAIN" if login else "SCRAM-SHA-256")
    assert found["probes"] == [True] * has_buttons
    assert [probe.runs for probe in Probe.made] == [False] * has_buttons, "its clients end with it"
    with socket.socket() as again:
        again.bind(("127.0.0.1", found["port"]))
