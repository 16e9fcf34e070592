"""Voters are known by their id and the directory that holds their log (KIP-853).

A voter that lost its directory has lost its promises, and must not vote under its old id: two such voters could lose
committed entries. Each node has a random directory id, every message names the directories of both ends, and the
membership holds the directory of each voter. An answer from another directory does not count.

``controller.quorum.voters`` names no directories, so the first election of a quorum is special. A node without entries
becomes a candidate only when every configured voter has answered that it has none either; these answers contain all
directory ids. The first leader writes them into the membership right after the entry that opens its epoch. A voter
without entries votes only for candidates that know its directory. So emptied voters cannot start a second history while
another voter still holds the first. In a membership of an older version the leader fills in the directories as voters
answer.

Without a directory id of its own (the pysyncobj engine, and cores under test) a node knows voters by id alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.values import ZERO_UUID
from moldau_quorum.log.raft.core.types import Configuration
from moldau_quorum.log.raft.envelope import WrongDirectoryError

if TYPE_CHECKING:
    from uuid import UUID

    from moldau_quorum.log.port import VoterEndpoint


class VoterDirectories:
    """One node's knowledge of the directories of all voters."""

    def __init__(self, node_id: int, own: UUID) -> None:
        """``own`` is zero where voters are known by id alone."""
        self._node_id = node_id
        self.own = own
        self._heard: dict[int, UUID] = {}

    @property
    def are_known(self) -> bool:
        """Whether voters are distinguished by their directories at all."""
        return self.own != ZERO_UUID

    def of(self, configuration: Configuration, member_id: int) -> UUID:
        """Returns the directory of a member: as the membership says, else as it was heard, else zero."""
        member = configuration.member(member_id)
        if member is not None and member.directory_id != ZERO_UUID:
            return member.directory_id
        return self._heard.get(member_id, ZERO_UUID)

    def is_own_voter(self, configuration: Configuration) -> bool:
        """Returns whether this node, with this directory, has a vote."""
        voter = configuration.voters.get(self._node_id)
        return voter is not None and (not self.are_known or voter.directory_id in (ZERO_UUID, self.own))

    def take_answer(self, configuration: Configuration, sender: int, directory: UUID) -> None:
        """Checks the sender of an answer, and remembers its directory.

        Raises:
            WrongDirectoryError: the membership has another directory for that node.
        """
        member = configuration.member(sender)
        if not self.are_known or member is None:
            return
        if member.directory_id not in (ZERO_UUID, directory):
            raise WrongDirectoryError(
                f"node {sender} answers from directory {directory}, but the quorum knows it by {member.directory_id}: "
                "remove the voter and add it again"
            )
        if directory != ZERO_UUID:
            self._heard[sender] = directory

    def is_same(self, before: Configuration, after: Configuration, member_id: int) -> bool:
        """Returns whether a member before a change of the membership is one after it, with the same directory.

        Filling in the directory that the member has answered from changes nothing. A membership that names another
        one, or none any more, speaks of a node that may have lost all that the member held.
        """
        old, new = before.member(member_id), after.member(member_id)
        if old is None or new is None:
            return False
        return old == new or self.of(before, member_id) in (ZERO_UUID, new.directory_id)

    def changed(self, before: Configuration, after: Configuration) -> None:
        """Forgets the directories of nodes that are no members any more, or other ones under the same id."""
        self._heard = {key: value for key, value in self._heard.items() if self.is_same(before, after, key)}

    def completed(self, configuration: Configuration) -> Configuration | None:
        """Returns the membership with all directories that are known by now; None if that adds nothing."""
        if not self.are_known:
            return None

        def known(member: VoterEndpoint) -> VoterEndpoint:
            directory = self.own if member.voter_id == self._node_id else self.of(configuration, member.voter_id)
            return member if member.directory_id != ZERO_UUID else replace(member, directory_id=directory)

        completed = Configuration(
            voters={key: known(member) for key, member in configuration.voters.items()},
            learners={key: known(member) for key, member in configuration.learners.items()},
        )
        return completed if completed != configuration else None
