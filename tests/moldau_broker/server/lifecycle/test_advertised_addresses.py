"""Goal: a broker says that it advertises an address which other machines cannot use.

Method: the listeners of a broker on a network that binds what it is asked for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.runtime.config import BROKER_CONFIG
from moldau.values import BrokerId
from moldau_broker.server.lifecycle.listening import BrokerListeners
from moldau_cli.nodes.checks import check_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.voters": "101@c:9093",
    "controller.listener.names": "CONTROLLER",
}


class Network:
    async def listen(self, host: str, port: int, **_: object) -> Any:
        return SimpleNamespace(address=(host or "0.0.0.0", port), close=lambda: None)


@pytest.mark.parametrize(
    ("values", "unusable"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, "0.0.0.0:9092"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "0.0.0.0:9092"),
        ({"listeners": "PLAINTEXT://[::]:9092"}, "[::]:9092"),
        ({"listeners": "PLAINTEXT://*:9092"}, "*:9092"),
        ({"listeners": "PLAINTEXT://b1:9092"}, None),
        ({"listeners": "PLAINTEXT://:9092", "advertised.listeners": "PLAINTEXT://b1:9092"}, None),
    ],
)
def test_an_address_of_no_machine_is_warned_of(
    values: Mapping[str, str], unusable: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = BROKER_CONFIG.parse({**FILE, **values})
    environment: Any = SimpleNamespace(network=Network())
    listeners = BrokerListeners(environment, config, BrokerId(1), "PLAINTEXT", None)
    trio.run(listeners.bind)
    found = [text for record in caplog.records if "advertised-address-unusable" in (text := record.getMessage())]
    assert len(found) == len(check_addresses(config)) == (unusable is not None)
    assert all(f"listener=PLAINTEXT address={unusable} " in text for text in found), found
