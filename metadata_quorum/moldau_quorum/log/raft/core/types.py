"""Values of the Raft core: entries, hard state, membership.

Names follow Kafka's: a Raft term is an epoch. Indexes start at 1; position (0, 0) is the empty log that all logs share.
"""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgpack

from moldau_quorum.log.port import VoterEndpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_NODE: Final = -1
"""In messages and files: no leader, no vote."""

ENTRY_OVERHEAD_BYTES: Final = 16
"""The cost of an entry in a message beside its data; for flow control only."""


class EntryKind(enum.IntEnum):
    """The kind of an entry."""

    DATA = 0
    NOOP = 1  # opens the epoch of a leader (Raft section 8)
    CONFIGURATION = 2  # the whole membership; in force from the moment it is in the log (Raft thesis section 4.1)


class Entry(NamedTuple):
    """One entry. A plain tuple, because there are many."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    epoch: int
    kind: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes that the entry takes in a message, about."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """State that must be durable before any answer that depends on it (Raft figure 2, "persistent state")."""

    epoch: int = 0
    voted_for: int = NO_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Membership: voters decide, learners only receive. Invariant: no id is both."""

    voters: Mapping[int, VoterEndpoint] = field(default_factory=dict)
    learners: Mapping[int, VoterEndpoint] = field(default_factory=dict)

    @property
    def quorum(self) -> int:
        """Votes that decide: more than half."""
        return len(self.voters) // 2 + 1

    def member(self, node_id: int) -> VoterEndpoint | None:
        """Returns the voter or learner of that id."""
        return self.voters.get(node_id) or self.learners.get(node_id)

    def members(self) -> list[VoterEndpoint]:
        """Voters and learners, sorted by id."""
        return [endpoint for _, endpoint in sorted({**self.voters, **self.learners}.items())]

    def with_learner(self, endpoint: VoterEndpoint) -> Configuration:
        """Returns the membership with a learner more."""
        assert endpoint.voter_id not in self.voters, "a voter cannot become a learner in one step"
        return Configuration(voters=self.voters, learners={**self.learners, endpoint.voter_id: endpoint})

    def with_voter(self, node_id: int) -> Configuration:
        """Returns the membership in which a learner has become a voter."""
        learners = dict(self.learners)
        endpoint = learners.pop(node_id)
        return Configuration(voters={**self.voters, node_id: endpoint}, learners=learners)

    def with_address(self, node_id: int, host: str, port: int) -> Configuration:
        """Returns the membership with a new address of a voter, which stays the same voter."""
        moved = replace(self.voters[node_id], host=host, port=port)
        return Configuration(voters={**self.voters, node_id: moved}, learners=self.learners)

    def without(self, node_id: int) -> Configuration:
        """Returns the membership without a member."""
        return Configuration(
            voters={key: value for key, value in self.voters.items() if key != node_id},
            learners={key: value for key, value in self.learners.items() if key != node_id},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPoint:
    """The part of the log that a snapshot replaces: up to ``index``, with the membership there."""

    index: int
    epoch: int
    configuration: Configuration


def configuration_of(voters: Mapping[int, tuple[str, int]]) -> Configuration:
    """Returns the membership that ``controller.quorum.voters`` describes."""
    return Configuration(
        voters={key: VoterEndpoint(voter_id=key, host=host, port=port) for key, (host, port) in sorted(voters.items())}
    )


def encode_configuration(configuration: Configuration) -> bytes:
    """Returns the membership in canonical msgpack: equal memberships give equal bytes."""

    def rows(members: Mapping[int, VoterEndpoint]) -> list[tuple[int, bytes, str, int]]:
        return [(key, member.directory_id.bytes, member.host, member.port) for key, member in sorted(members.items())]

    return bytes(msgpack.packb((rows(configuration.voters), rows(configuration.learners))))


def decode_configuration(data: bytes) -> Configuration:
    """Returns the membership of bytes that ``encode_configuration`` has made.

    Raises:
        ValueError: the bytes are not a membership, or one that no quorum can have.
    """
    try:
        voters, learners = (_members(rows) for rows in msgpack.unpackb(data, use_list=False))
    except (TypeError, msgpack.UnpackException, RecursionError) as error:
        raise ValueError(f"not a membership of the metadata quorum: {error}") from error
    if voters.keys() & learners.keys():
        raise ValueError(f"nodes {sorted(voters.keys() & learners.keys())} are voters and learners")
    return Configuration(voters=voters, learners=learners)


def encode_replayable(configuration: Configuration) -> bytes:
    """Encodes a membership that is about to enter a log, and decodes the result as every replica will.

    Raises:
        ValueError: the membership has no voters, or its encoding does not give it back.
    """
    try:
        data = encode_configuration(configuration)
    except OverflowError as error:
        raise ValueError(f"a member of the metadata quorum cannot be encoded: {error}") from error
    if decode_configuration(data) != configuration or not configuration.voters:
        raise ValueError("a membership of the metadata quorum does not survive its encoding, or has no voters")
    return data


def _members(rows: tuple[tuple[int, bytes, str, int], ...]) -> dict[int, VoterEndpoint]:
    members = {}
    for key, directory_id, host, port in rows:
        if [type(value) for value in (key, directory_id, host, port)] != [int, bytes, str, int]:
            raise ValueError("ill-typed member of the metadata quorum")
        member = VoterEndpoint(voter_id=key, directory_id=uuid.UUID(bytes=directory_id), host=host, port=port)
        problem = member.problem()
        if problem is not None:
            raise ValueError(problem)
        members[key] = member
    return members
