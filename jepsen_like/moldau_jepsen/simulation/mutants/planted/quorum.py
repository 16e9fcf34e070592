"""Bugs in the quorum of controllers and in how its log is applied."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_quorum.log.port import CommittedEntry
from moldau_quorum.log.raft.core.leader import LeaderRole
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.types import NO_NODE, Configuration
from moldau_quorum.log.raft.core.writes import Writes
from moldau_quorum.log.raft.directories import VoterDirectories
from moldau_quorum.log.raft.envelope import Identity
from moldau_quorum.log.raft.storage.wal import SyncWork, WriteAheadLog, _Segment
from moldau_quorum.metadata.records import ConfigRecord, decode_command, encode_command
from moldau_quorum.node import directory as node_directory
from moldau_quorum.node.state_machine import MetadataStateMachine

if TYPE_CHECKING:
    from uuid import UUID

    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.log.raft.core.messages import AppendRequest
    from moldau_quorum.metadata.records import MetadataRecord


def emptied_voter_accepted() -> list[Patch]:
    """Messages are not asked for directories, and an emptied voter votes as if it had never promised anything."""

    def take_answer(self: VoterDirectories, configuration: Configuration, sender: int, directory: UUID) -> None:
        self._heard[sender] = directory

    return [
        (VoterDirectories, "take_answer", take_answer),
        (VoterDirectories, "is_own_voter", lambda self, configuration: self._node_id in configuration.voters),
        (Identity, "check", lambda self, envelope: None),
        (RaftCore, "_founds", property(lambda self: False)),
        (node_directory, "_check_log", lambda disk, engine_path, identity: None),
        (_Segment, "read_slots", lambda self, buffer, position: setattr(self, "slots", position)),
    ]


def quorum_of_one() -> list[Patch]:
    return [(Configuration, "quorum", property(lambda self: max(1, len(self.voters) // 2)))]


def vote_forgotten() -> list[Patch]:
    original = WriteAheadLog.write

    def write(self: WriteAheadLog, hard_state: object, entries: object, prev_epoch: int = 0) -> None:
        if hard_state is not None:
            hard_state = dataclasses.replace(hard_state, voted_for=NO_NODE)  # type: ignore[type-var]
        original(self, hard_state, entries, prev_epoch)  # type: ignore[arg-type]

    return [(WriteAheadLog, "write", write)]


def votes_twice() -> list[Patch]:
    original = RaftCore._on_vote_request

    def on_vote_request(self: RaftCore, sender: int, request: object, addressed: UUID) -> None:
        kept = self.hard_state
        if self.leader is None and not request.pre_vote and kept.voted_for != self.node_id:  # type: ignore[attr-defined]
            self.hard_state = dataclasses.replace(kept, voted_for=NO_NODE)
            self.leader_id = None
        original(self, sender, request, addressed)  # type: ignore[arg-type]

    return [(RaftCore, "_on_vote_request", on_vote_request)]


def votes_for_stale_log() -> list[Patch]:
    return [(RaftCore, "_log_is_up_to_date", lambda self, request: True)]


def answers_before_durable() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        held = sorted(
            (core.log.last_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )
        return held[len(held) - core.configuration.quorum]

    return [
        (RaftCore, "send", RaftCore.send_early),
        (LeaderRole, "_durable_on_quorum", durable_on_quorum),
        (RaftCore, "applicable_index", property(lambda self: self.commit_index)),
    ]


def counts_one_follower_twice() -> list[Patch]:
    def durable_on_quorum(self: LeaderRole) -> int:
        core = self._core
        return max(
            (core.durable_index if voter == core.node_id else self.progress[voter].match)
            for voter in core.configuration.voters
        )

    return [(LeaderRole, "_durable_on_quorum", durable_on_quorum)]


def wal_not_synced() -> list[Patch]:
    return [(SyncWork, "run", lambda self: None)]


def truncated_write_counts() -> list[Patch]:
    """A write under way counts in full although the log was truncated below its end."""

    def truncated(self: Writes, last_index: int) -> None:
        self.durable_index = min(self.durable_index, last_index)
        self.entries_changed(last_index + 1)

    return [(Writes, "truncated", truncated)]


def metadata_applied_out_of_order() -> list[Patch]:
    original = MetadataStateMachine.apply
    held: dict[int, object] = {}

    def apply(self: MetadataStateMachine, entry: object) -> None:
        waiting = held.pop(id(self), None)
        if waiting is None and entry.index % 7 == 0:  # type: ignore[attr-defined]
            held[id(self)] = entry
            return
        original(self, entry)  # type: ignore[arg-type]
        if waiting is not None:
            original(self, waiting)  # type: ignore[arg-type]

    return [(MetadataStateMachine, "apply", apply)]


def conflicts_kept() -> list[Patch]:
    """Entries are compared by their index alone: a follower's entry counts as the one that the leader sent."""
    original = RaftCore._on_append_request

    def on_append_request(self: RaftCore, sender: int, request: AppendRequest) -> None:
        log = self.log
        entries = tuple(
            log.entry(entry.index) if log.base_index < entry.index <= log.last_index else entry
            for entry in request.entries
        )
        original(self, sender, dataclasses.replace(request, entries=entries))

    return [(RaftCore, "_on_append_request", on_append_request)]


def configuration_applied_late() -> list[Patch]:
    """Changes of configuration are gathered, and some are applied after those of the entry that follows."""
    original = MetadataStateMachine.apply
    held: dict[int, tuple[MetadataRecord, ...]] = {}

    def apply(self: MetadataStateMachine, entry: CommittedEntry) -> bool:
        late = held.pop(id(self), ())
        command = decode_command(entry.data)
        records = command.records
        if not late and entry.index % 3 == 0 and records and all(isinstance(one, ConfigRecord) for one in records):
            held[id(self)] = records
            records = ()
        changed = encode_command(dataclasses.replace(command, records=(*records, *late)))
        return original(self, CommittedEntry(index=entry.index, epoch=entry.epoch, data=changed))

    return [(MetadataStateMachine, "apply", apply)]
