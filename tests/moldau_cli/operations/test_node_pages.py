"""Goal: pages of brokers are read where this machine reaches them, all at once, and no silent one holds the others up.

Method: the addresses alone; clients with canned configurations; pages on real sockets.
"""

import json
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.admin import AdminError, ConfigResource, ResourceType
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.real import real_environment
from moldau.runtime.telemetry.endpoint import Page, serve_pages
from moldau_cli.inspection import ask_pages
from moldau_cli.operations import broker_settings, node_pages
from moldau_cli.operations.node_pages import known_addresses, reachable_address, read_pages


class Client:
    """An admin client whose time limits the test does not reach."""

    def within(self, timeout_ms):
        return self


@pytest.mark.parametrize(
    ("listener", "host", "address"),
    [
        ("10.0.0.1:9644", "broker-1", "10.0.0.1:9644"),
        ("0.0.0.0:9644", "broker-1", "broker-1:9644"),
        ("*:9644", "broker-1", "broker-1:9644"),
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


def test_only_brokers_that_answer_have_a_page(monkeypatch):
    """Broker 2 has no endpoint, nothing answers at that of 3 in time, 4 may not be described."""
    monkeypatch.setattr(node_pages, "ANSWER_S", 0.3)

    async def main():
        async with trio.open_nursery() as nursery:
            silent = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            pages = {"/page": lambda: Page(200, "[5]\n")}
            _, port = await nursery.start(serve_pages, real_environment(), "127.0.0.1", 0, pages)
            where = {1: f"127.0.0.1:{port}", 2: None, 3: f"127.0.0.1:{silent.socket.getsockname()[1]}"}
            names = {each: ConfigResource(type=ResourceType.BROKER, name=str(each)) for each in (1, 2, 3, 4)}

            async def describe_configs(resources):
                await trio.lowlevel.checkpoint()
                assert list(resources) == list(names.values())
                found = {names[each]: {"metrics.listener": SimpleNamespace(value=where[each])} for each in where}
                raise AdminError({"4": KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)}, found)

            brokers = [SimpleNamespace(node_id=each, host="127.0.0.1") for each in names]
            client = Client()
            client.describe_configs = describe_configs
            found = await read_pages(await known_addresses(client, brokers), "/page", json.loads)
            await silent.aclose()
            nursery.cancel_scope.cancel()
        return found

    assert trio.run(main) == {1: [5]}


def test_both_pages_of_a_broker_are_read_at_once(monkeypatch):
    """A broker that does not answer cost the verdict its time for each page."""

    async def fetch(url):
        await trio.sleep_forever()

    class Configured(Client):
        async def describe_configs(self, resources):
            await trio.lowlevel.checkpoint()
            return {each: {"metrics.listener": SimpleNamespace(value="10.0.0.1:9644")} for each in resources}

    async def main():
        began_s = trio.current_time()
        refusals, problems = await ask_pages(Configured(), [SimpleNamespace(node_id=1, host="b")])
        return refusals.is_known, problems, trio.current_time() - began_s

    monkeypatch.setattr(node_pages, "fetch", fetch)
    found = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert found == (False, [], pytest.approx(node_pages.ANSWER_S, abs=0.1))


def test_configurations_are_asked_for_once_a_minute():
    """The console asks with every overview; other brokers, and another client, are new."""
    asked = []

    class Counted(Client):
        async def describe_configs(self, resources):
            await trio.lowlevel.checkpoint()
            asked.append(sorted(each.name for each in resources))
            return {each: {} for each in resources}

    async def main():
        client, brokers = Counted(), [SimpleNamespace(node_id=each, host="b") for each in (1, 2)]
        for _ in range(5):
            await known_addresses(client, brokers)
            await trio.sleep(broker_settings.KNOWN_S / 4)
        await known_addresses(client, brokers[:1])
        await known_addresses(Counted(), brokers)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert asked == [["1", "2"], ["1", "2"], ["1"], ["1", "2"]]
