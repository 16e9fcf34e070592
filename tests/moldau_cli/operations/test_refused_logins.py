"""Goal: an administrator sees how many logins the nodes of a cluster refused, where nodes say so.

Method: the addresses and answers alone; then an endpoint on a real socket, as nodes serve it.
"""

import json
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.admin import AdminError, ConfigResource, ResourceType
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.attempts import NO_MECHANISM, TLS, ListenerAttempts, RefusedLogins, refused_logins
from moldau.runtime.telemetry.endpoint import Page, serve_pages
from moldau_cli.operations import refused_logins as asking
from moldau_cli.operations.refused_logins import Refusals, ask_brokers, parsed, reachable_address

ROWS = [
    {"listener": "SASL_SSL", "mechanism": "PLAIN", "count": 3},
    {"listener": "SASL_SSL", "mechanism": "SSL", "count": 0},
]


@pytest.mark.parametrize(
    ("listener", "host", "address"),
    [
        ("10.0.0.1:9644", "broker-1", "10.0.0.1:9644"),
        ("0.0.0.0:9644", "broker-1", "broker-1:9644"),
        ("[::]:9644", "10.0.0.1", "10.0.0.1:9644"),
        ("[fd00::1]:9644", "broker-1", "[fd00::1]:9644"),
        ("127.0.0.1:9644", "127.0.0.1", "127.0.0.1:9644"),
        ("localhost:9644", "localhost", "localhost:9644"),
        ("127.0.0.1:9644", "10.0.0.1", None),
        ("localhost:9644", "broker-1", None),
        ("", "broker-1", None),
        (None, "broker-1", None),
        ("no address", "broker-1", None),
    ],
)
def test_nodes_are_asked_where_this_machine_reaches_them(listener, host, address):
    """The loopback address of another machine is a server of this one."""
    assert reachable_address(listener, host) == address


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
    assert parsed(json.dumps(ROWS).encode())[0] == RefusedLogins(listener="SASL_SSL", mechanism="PLAIN", count=3)
    for page in (
        b"",
        b"<html>",
        b"3",
        b"[3]",
        b'[{"listener": "a"}]',
        b'[{"listener": "", "mechanism": "", "count": "x"}]',
    ):
        with pytest.raises(ValueError, match=r"."):
            parsed(page)


def test_brokers_that_answer_are_counted(monkeypatch):
    """Broker 2 has no endpoint, nothing answers at that of 3 in time, 4 may not be described."""
    monkeypatch.setattr(asking, "ANSWER_S", 0.3)

    async def main():
        async with trio.open_nursery() as nursery:
            silent = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            pages = {"/logins": lambda: Page(200, json.dumps(ROWS) + "\n")}
            _, port = await nursery.start(serve_pages, real_environment(), "127.0.0.1", 0, pages)
            where = {1: f"127.0.0.1:{port}", 2: None, 3: f"127.0.0.1:{silent.socket.getsockname()[1]}"}
            names = {each: ConfigResource(type=ResourceType.BROKER, name=str(each)) for each in (1, 2, 3, 4)}

            async def describe_configs(resources):
                await trio.lowlevel.checkpoint()
                assert list(resources) == list(names.values())
                found = {names[each]: {"metrics.listener": SimpleNamespace(value=where[each])} for each in where}
                raise AdminError({"4": KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}, found)

            brokers = [SimpleNamespace(node_id=each, host="127.0.0.1") for each in names]
            client = type("Client", (), {"describe_configs": staticmethod(describe_configs)})()
            found = await ask_brokers(client, brokers)
            await silent.aclose()
            nursery.cancel_scope.cancel()
        return found

    found = trio.run(main)
    assert (found.is_known, found.total, list(found.by_node)) == (True, 3, [1])
    assert [found.of(each) for each in (1, 2)] == [3, None]
    assert found.text() == "3 at node 1 (SASL_SSL, PLAIN)"


def test_configurations_are_asked_for_once_a_minute():
    """The console asks with every overview; other brokers, and another client, are new."""
    asked = []

    class Client:
        async def describe_configs(self, resources):
            await trio.lowlevel.checkpoint()
            asked.append(sorted(each.name for each in resources))
            return {each: {} for each in resources}

    async def main():
        client, brokers = Client(), [SimpleNamespace(node_id=each, host="b") for each in (1, 2)]
        for _ in range(5):
            await ask_brokers(client, brokers)
            await trio.sleep(asking.ADDRESSES_S / 4)
        await ask_brokers(client, brokers[:1])
        await ask_brokers(Client(), brokers)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert asked == [["1", "2"], ["1", "2"], ["1"], ["1", "2"]]


def test_brokers_that_give_no_answer_hold_up_no_verdict():
    """It waited a minute for the configuration of a broker that hung."""

    class Client:
        async def describe_configs(self, resources):
            await trio.sleep_forever()

    async def main():
        began_s = trio.current_time()
        found = await ask_brokers(Client(), [SimpleNamespace(node_id=1, host="b")])
        return found, trio.current_time() - began_s

    found, took_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (found.is_known, round(took_s)) == (False, round(asking.ANSWER_S))


def test_nodes_without_security_show_nothing():
    found = Refusals(by_node={1: []})
    assert (found.is_known, found.total, found.of(1), found.text()) == (False, 0, None, "")
