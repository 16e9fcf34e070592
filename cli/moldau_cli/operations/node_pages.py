"""Reads the pages that nodes serve at their ``metrics.listener`` for what no API of Kafka tells."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

import trio

from moldau.protocol.errors import KafkaError
from moldau.runtime.config.listeners import parse_address
from moldau.runtime.sasl.http import HttpError, fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau import Admin
    from moldau.admin import ConfigEntry, ConfigResource
    from moldau.cluster.metadata import BrokerNode

V = TypeVar("V")

ANSWER_S: Final = 2.0
"""How long a node may take to answer; one that takes longer is left out."""
NODES_AT_ONCE: Final = 8
ADDRESSES_S: Final = 60.0
"""How long addresses are taken for known: a broker changes its own only with a restart.

The web console asks with every overview, and a whole configuration costs a broker 4 ms in which it serves no other
client.
"""


@dataclass(frozen=True, slots=True)
class _Addresses:
    """The addresses that a client has learned, of these brokers and until then (trio's clock)."""

    brokers: tuple[BrokerNode, ...]
    until_s: float
    by_node: Mapping[int, str]


_known: WeakKeyDictionary[Admin, _Addresses] = WeakKeyDictionary()


def reachable_address(listener: str | None, host: str) -> str | None:
    """Returns the address of a ``metrics.listener`` as others reach it; None if they do not.

    ``host`` is what the broker advertises. A listener of the loopback interface serves only clients of its machine.
    """
    if not listener:
        return None
    try:
        bound, port = parse_address(listener)
    except ValueError:
        return None  # a broker of Kafka may use the name for something else
    if _is(bound, "is_unspecified"):
        bound = host
    elif _is_loopback(bound) and not _is_loopback(host):
        return None
    return f"[{bound}]:{port}" if ":" in bound else f"{bound}:{port}"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or _is(host, "is_loopback")


def _is(host: str, kind: str) -> bool:
    try:
        return bool(getattr(ip_address(host), kind))
    except ValueError:
        return False


async def known_addresses(admin: Admin, brokers: Sequence[BrokerNode]) -> Mapping[int, str]:
    """Returns where brokers serve their pages, by id: their configuration says so, if the caller may describe it.

    The same client asks for configurations again only after a minute, or for other brokers.
    """
    known = _known.get(admin)
    if known is None or known.brokers != tuple(brokers) or trio.current_time() >= known.until_s:
        addresses = await _addresses(admin, brokers)
        known = _known[admin] = _Addresses(tuple(brokers), trio.current_time() + ADDRESSES_S, addresses)
    return known.by_node


async def _addresses(admin: Admin, brokers: Sequence[BrokerNode]) -> dict[int, str]:
    from moldau.admin import AdminError, ConfigResource, ResourceType
    from moldau_cli.operations.partial import results_of

    resources = {ConfigResource(type=ResourceType.BROKER, name=str(one.node_id)): one for one in brokers}
    found: Mapping[ConfigResource, Mapping[str, ConfigEntry]] = {}
    with trio.move_on_after(ANSWER_S):  # a broker that answers nothing would hold up the counts of the others
        try:
            found = await admin.describe_configs(resources) if resources else {}
        except AdminError as error:
            found = results_of(error, dict)
        except KafkaError:
            pass
    addresses: dict[int, str] = {}
    for resource, entries in found.items():
        broker, entry = resources[resource], entries.get("metrics.listener")
        address = reachable_address(None if entry is None else entry.value, broker.host)
        if address is not None:
            addresses[broker.node_id] = address
    return addresses


async def read_pages(addresses: Mapping[int, str], path: str, parse: Callable[[bytes], V]) -> dict[int, V]:
    """Returns what ``parse`` makes of a page of each node, by id.

    Nodes that do not answer in time, or whose page ``parse`` refuses with a ValueError, are left out.
    """
    found: dict[int, V] = {}
    limit = trio.CapacityLimiter(NODES_AT_ONCE)

    async def ask_one(node_id: int, address: str) -> None:
        async with limit:
            with trio.move_on_after(ANSWER_S):
                try:
                    found[node_id] = parse(await fetch(f"http://{address}{path}"))
                except (HttpError, ValueError):
                    return  # an older node, or a server of another kind

    async with trio.open_nursery() as nursery:
        for node_id, address in addresses.items():
            nursery.start_soon(ask_one, node_id, address)
    return {node_id: found[node_id] for node_id in addresses if node_id in found}
