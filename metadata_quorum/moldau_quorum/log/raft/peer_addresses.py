"""Where one node looks for the other members of its quorum. Pure.

The membership of the log has the address of each member, and the node's file those of the voters that it was started
with. While this node was away, voters may have joined or moved, and one of them may lead: it cannot reach this node's
log before this node knows its address. Other voters name these addresses (``MetadataLog.learn_voters``). What they name
counts until the log or the file says something else about that voter than it did then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_quorum.log.raft.core.types import Configuration

    Address = tuple[str, int]

LEARNED_VOTERS_MAX: Final = 64
"""Voters that others have named and that are not in this node's membership."""


class PeerAddresses:
    """Invariant: each entry of ``_learned`` has the address that the node knew before, None for an unknown voter."""

    __slots__ = ("_configured", "_learned", "_node_id", "changes")

    def __init__(self, node_id: int, configured: Mapping[int, Address]) -> None:
        """``configured`` are the voters of the node's file."""
        self._node_id = node_id
        self._configured = configured
        self._learned: dict[int, tuple[Address | None, Address]] = {}
        self.changes = 0
        """Counts what was learned."""

    def learn(self, configuration: Configuration, addresses: Mapping[int, Address]) -> dict[int, Address]:
        """Takes over the addresses that another voter names, and returns those that are new."""
        known, present = self._known(configuration), self.of(configuration)
        new: dict[int, Address] = {}
        for voter_id, address in sorted(addresses.items()):
            if voter_id == self._node_id or present.get(voter_id) == address:
                continue
            if voter_id in known or voter_id in self._learned or len(self._learned) < LEARNED_VOTERS_MAX:
                self._learned[voter_id] = known.get(voter_id), address
                new[voter_id] = address
        self.changes += len(new)
        return new

    def of(self, configuration: Configuration) -> dict[int, Address]:
        """Returns the address of each other node that this one keeps a link to."""
        addresses = self._known(configuration)
        for voter_id, (before, address) in self._learned.items():
            if addresses.get(voter_id) == before:
                addresses[voter_id] = address
        return addresses

    def _known(self, configuration: Configuration) -> dict[int, Address]:
        """Returns the addresses of log and file; the log comes first."""
        known = {**self._configured, **{each.voter_id: (each.host, each.port) for each in configuration.members()}}
        known.pop(self._node_id, None)
        return known
