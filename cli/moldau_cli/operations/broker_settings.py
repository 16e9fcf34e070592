"""Asks brokers for the settings that a verdict on the cluster needs, all in one request to each broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

import trio

from moldau.protocol.errors import KafkaError
from moldau_cli.operations.partial import describe_present_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau import Admin
    from moldau.admin import ConfigEntry
    from moldau.cluster.metadata import BrokerNode

ANSWER_S: Final = 2.0
"""How long brokers may take to describe their configuration; those that take longer are left out."""
KNOWN_S: Final = 60.0
"""How long settings are taken for known: a broker changes these only with a restart.

The web console asks with every overview, and a whole configuration costs a broker 4 ms in which it serves no other
client.
"""


class BrokerSettings(NamedTuple):
    """Settings of one broker."""

    metrics_listener: str | None
    has_store: bool
    """Whether the broker has tiered storage (``remote.log.storage.system.enable``)."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The settings that a client has learned, of these brokers and until then (trio's clock)."""

    brokers: tuple[BrokerNode, ...]
    until_s: float
    by_node: Mapping[int, BrokerSettings]


_known: WeakKeyDictionary[Admin, _Known] = WeakKeyDictionary()


async def known_settings(admin: Admin, brokers: Sequence[BrokerNode]) -> Mapping[int, BrokerSettings]:
    """Returns the settings of the brokers that answer in time and that the caller may describe, by id.

    The same client asks again only after a minute, or for other brokers.
    """
    known = _known.get(admin)
    if known is None or known.brokers != tuple(brokers) or trio.current_time() >= known.until_s:
        by_node = await _settings(admin, brokers)
        known = _known[admin] = _Known(tuple(brokers), trio.current_time() + KNOWN_S, by_node)
    return known.by_node


async def _settings(admin: Admin, brokers: Sequence[BrokerNode]) -> dict[int, BrokerSettings]:
    from moldau.admin import ConfigResource, ResourceType

    resources = {ConfigResource(type=ResourceType.BROKER, name=str(one.node_id)): one.node_id for one in brokers}
    try:
        found = await describe_present_configs(admin.within(round(ANSWER_S * 1000)), resources)
    except KafkaError:
        return {}  # the verdict names brokers that do not answer
    return {resources[resource]: _of(entries) for resource, entries in found.items()}


def _of(entries: Mapping[str, ConfigEntry]) -> BrokerSettings:
    def value(key: str) -> str | None:
        return entries[key].value if key in entries else None

    return BrokerSettings(value("metrics.listener"), value("remote.log.storage.system.enable") == "true")
