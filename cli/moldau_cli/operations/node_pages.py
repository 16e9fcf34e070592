"""Reads the pages that nodes serve at their ``metrics.listener`` for what no API of Kafka tells."""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.runtime.config.listeners import parse_address
from moldau.runtime.sasl.http import HttpError, fetch
from moldau_cli.operations.broker_settings import known_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau import Admin
    from moldau.cluster.metadata import BrokerNode

V = TypeVar("V")

ANSWER_S: Final = 2.0
"""How long a node may take to answer; one that takes longer is left out."""
NODES_AT_ONCE: Final = 8


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
    if bound == "*" or _is(bound, "is_unspecified"):
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
    """Returns where brokers serve their pages, by id: their configuration says so, if the caller may describe it."""
    settings = await known_settings(admin, brokers)
    found = {
        broker.node_id: reachable_address(settings[broker.node_id].metrics_listener, broker.host)
        for broker in brokers
        if broker.node_id in settings
    }
    return {node_id: address for node_id, address in found.items() if address is not None}


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
