"""The questions that pages ask, by name: each is a function from session and parameters to a JSON document."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau_cli.console.data import cluster, groups, rights, topics
from moldau_cli.console.data.asking import ask_controller
from moldau_cli.console.records import Search, browse, whole_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau_cli.console.avro import AvroViews
    from moldau_cli.console.faults import LocalNodes
    from moldau_cli.console.identities import Identity
    from moldau_cli.console.probe import ReplicationProbe
    from moldau_cli.output import Json

Answer = dict[str, "Json"]

TEXT_MAX: Final = 4096
"""Characters of a parameter; names on a cluster have a few hundred at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A cluster of this machine, whose nodes have buttons."""

    nodes: LocalNodes
    probe: ReplicationProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The request of a page, with its identity."""

    identity: Identity
    parameters: Mapping[str, str]
    local: Local | None
    avro: AvroViews | None

    def text(self, name: str, default: str | None = None) -> str:
        """Returns a parameter.

        Raises:
            ValueError: it is missing and has no default, or is too long.
        """
        found = self.parameters.get(name, default)
        if found is None:
            raise ValueError(f"the parameter {name} is missing")
        if len(found) > TEXT_MAX:
            raise ValueError(f"the parameter {name} has {len(found)} characters; at most {TEXT_MAX} are taken")
        return found

    def number(self, name: str, default: int | None = None) -> int:
        """Returns a parameter as an integer.

        Raises:
            ValueError: it is missing, or no integer.
        """
        text = self.text(name, None if default is None else str(default))
        try:
            return int(text)
        except ValueError:
            raise ValueError(f"{name}: expected a whole number, not {text!r:.40}") from None

    def local_cluster(self) -> Local:
        """Returns the local cluster.

        Raises:
            LookupError: the console was not started for one.
        """
        if self.local is None:
            raise LookupError("the console was not started for a local cluster; start it with --dir")
        return self.local


async def _messages(asked: Question) -> Answer:
    partition = asked.text("partition", "")
    search = Search(
        topic=asked.text("topic"),
        partition=asked.number("partition") if partition else None,
        origin=asked.text("origin", "tail"),
        value=asked.number("value", 0),
        limit=asked.number("limit", 50),
        key=asked.text("key", ""),
        contains=asked.text("contains", ""),
        committed_only=asked.text("committed", "") == "1",
    )
    return await browse(asked.identity, search, asked.avro)


async def _message(asked: Question) -> Answer:
    place = asked.text("topic"), asked.number("partition"), asked.number("offset")
    return await whole_record(asked.identity, *place, asked.avro)


async def _timeline(asked: Question) -> Answer:
    return asked.local_cluster().probe.watch()


async def _nodes(asked: Question) -> Answer:
    return await asked.local_cluster().nodes.rows()


async def _overview(asked: Question) -> Answer:
    identity = asked.identity
    return await cluster.overview(identity.admin, identity.quorum_admin, identity.rates, identity.copies.latest)


async def _topics(asked: Question) -> Answer:
    wanted, internal = asked.text("filter", ""), asked.text("internal", "") == "1"
    return await topics.topics(asked.identity.admin, asked.identity.rates, wanted, internal=internal)


async def _topic(asked: Question) -> Answer:
    identity = asked.identity
    return await topics.topic(identity.admin, identity.requester, identity.rates, asked.text("name"))


async def _transactions(asked: Question) -> Answer:
    return await groups.transactions(asked.identity.admin, time.time() * 1000)


async def _acls(asked: Question) -> Answer:
    # On connections that the other pages do not share: a broker that waits for a controller answers nothing else there.
    admin, wanted = asked.identity.quorum_admin, asked.text("filter", "")
    return await ask_controller(admin, lambda: rights.acls(admin, wanted))


async def _quotas(asked: Question) -> Answer:
    admin, wanted = asked.identity.quorum_admin, asked.text("filter", "")  # as for the entries above
    return await ask_controller(admin, lambda: rights.quotas(admin, wanted))


QUESTIONS: dict[str, Callable[[Question], Awaitable[Answer]]] = {
    "overview": _overview,
    "brokers": lambda asked: cluster.brokers(asked.identity.admin, asked.identity.quorum_admin),
    "controllers": lambda asked: cluster.controllers(asked.identity.quorum_admin),
    "topics": _topics,
    "topic": _topic,
    "groups": lambda asked: groups.groups(asked.identity.admin, asked.text("filter", "")),
    "group": lambda asked: groups.group(asked.identity.admin, asked.text("name")),
    "transactions": _transactions,
    "acls": _acls,
    "quotas": _quotas,
    "configurable": lambda asked: cluster.configurable(asked.identity.admin),
    "configuration": lambda asked: cluster.configuration(
        asked.identity.admin, asked.text("kind"), asked.text("name", "")
    ),
    "messages": _messages,
    "message": _message,
    "timeline": _timeline,
    "nodes": _nodes,
}
INTERVALS_S = {"timeline": 0.25, "nodes": 1.0}
"""Seconds between two answers of a live question; ``INTERVAL_S`` for all others."""
INTERVAL_S = 2.0
NOT_LIVE = frozenset({"messages", "message", "configuration", "configurable"})
"""Questions whose answers are not repeated: they cost much, or never change by themselves."""
