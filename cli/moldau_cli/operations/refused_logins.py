"""Asks nodes how many logins they refused. ``moldau cluster status`` and the web console show it.

Nodes count them since their start, by listener and mechanism, and answer at ``/logins`` of their ``metrics.listener``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.sasl.attempts import RefusedLogins
from moldau_cli.operations.node_pages import read_pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The refused logins of the nodes that answered. Nodes without SASL and TLS have an empty list."""

    by_node: Mapping[int, Sequence[RefusedLogins]]

    @property
    def is_known(self) -> bool:
        """Whether a node with a secured listener has answered."""
        return any(self.by_node.values())

    def of(self, node_id: int) -> int | None:
        """Returns the refused logins of one node; None where none is known."""
        found = self.by_node.get(node_id)
        return sum(each.count for each in found) if found else None

    @property
    def total(self) -> int:
        """The refused logins of all nodes."""
        return sum(each.count for found in self.by_node.values() for each in found)

    def text(self) -> str:
        """Returns the counts above zero, one phrase for each listener and mechanism of a node."""
        return ", ".join(
            f"{each.count} at node {node_id} ({each.listener}, {each.mechanism})"
            for node_id, found in sorted(self.by_node.items())
            for each in found
            if each.count
        )


async def ask_for_refusals(addresses: Mapping[int, str]) -> Refusals:
    """Asks nodes at the addresses of their ``metrics.listener``; those that do not answer in time are left out."""
    return Refusals(by_node=await read_pages(addresses, "/logins", parse_refusals))


def parse_refusals(page: bytes) -> list[RefusedLogins]:
    """Returns the counts in an answer.

    Raises:
        ValueError: it is no such answer.
    """
    rows = json.loads(page)
    try:
        return [
            RefusedLogins(listener=str(row["listener"]), mechanism=str(row["mechanism"]), count=int(row["count"]))
            for row in rows
        ]
    except (TypeError, KeyError) as error:
        raise ValueError(f"not the counts of logins: {page[:100]!r}") from error
