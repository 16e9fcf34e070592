"""Planted bugs of the quorum, each switched on by name, in tests only: the campaign must find every one.

    with mutant("vote-not-synced"):
        ...

``SEEDS`` says within how many seeds of
the campaign it must be found.

    PYTHONPATH=tests python -m support.raft.mutants        finds them all and prints how fast
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgpack

from moldau_jepsen.planted_bug import Patch, PlantedBug, planted
from moldau_quorum.log.raft import node
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.incoming_snapshot import IncomingSnapshot
from moldau_quorum.log.raft.core.leader import LeaderRole
from moldau_quorum.log.raft.core.messages import AppendResponse, VoteResponse
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.ready import Role
from moldau_quorum.log.raft.core.types import NO_NODE, EntryKind, SnapshotPoint, encode_configuration
from moldau_quorum.log.raft.directories import VoterDirectories
from moldau_quorum.log.raft.envelope import Identity
from moldau_quorum.log.raft.storage import record_format, wal
from moldau_quorum.log.raft.storage.snapshot_store import SnapshotWriter
from moldau_quorum.log.raft.storage.wal import SyncWork, WriteAheadLog
from support.raft import campaign as raft_campaign
from support.raft import story as raft_story
from support.raft.world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from uuid import UUID

    from moldau.runtime.ports.environment import Disk, OpenMode
    from moldau_quorum.log.raft.core.messages import AppendRequest, Message, SnapshotRequest, VoteRequest
    from moldau_quorum.log.raft.core.ready import Ready
    from moldau_quorum.log.raft.core.types import Configuration, Entry

Make = TypeVar("Make", bound="Callable[..., object]")
"""A function from the original attributes to their replacements."""

MUTANTS: dict[str, PlantedBug] = {}


def plant(
    name: str, *targets: tuple[object, str], text: str, judges: tuple[str, ...] = ("campaign",)
) -> Callable[[Make], Make]:
    """Registers ``make(original...) -> replacement`` for ``targets``: pairs of owner and attribute."""

    def register(make: Make) -> Make:
        def patches() -> list[Patch]:
            replacements = make(*(getattr(owner, attribute) for owner, attribute in targets))
            if not isinstance(replacements, tuple):
                replacements = (replacements,)
            return [
                (owner, attribute, replacement)
                for (owner, attribute), replacement in zip(targets, replacements, strict=True)
            ]

        MUTANTS[name] = PlantedBug(name=name, area="quorum", text=text, patches=patches, judges=judges)
        return make

    return register


def mutant(name: str) -> AbstractContextManager[None]:
    """Plants a bug for the length of a block."""
    return planted(MUTANTS[name])


# --- durability


@plant(
    "vote-not-synced",
    (RaftCore, "send"),
    text="a vote is sent before it is durable",
    judges=("campaign", "story vote_then_crash"),
)
def _vote_not_synced(send: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, recipient: int, message: Message) -> None:
        (self.send_early if isinstance(message, VoteResponse) else lambda *a: send(self, *a))(recipient, message)

    return mutated


@plant(
    "entry-acknowledged-before-sync", (RaftCore, "send"), text="a follower acknowledges entries before they are durable"
)
def _entry_acknowledged_before_sync(send: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, recipient: int, message: Message) -> None:
        (self.send_early if isinstance(message, AppendResponse) else lambda *a: send(self, *a))(recipient, message)

    return mutated


@plant(
    "own-entry-counted-before-sync",
    (LeaderRole, "_durable_on_quorum"),
    text="the leader counts its own entries before they are durable",
)
def _own_entry_counted_before_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole) -> Any:
        durable, self._core.writes.durable_index = self._core.durable_index, self._core.log.last_index
        try:
            return original(self)
        finally:
            self._core.writes.durable_index = durable

    return mutated


@plant("sync-does-nothing", (SyncWork, "run"), text="a sync of the log does nothing")
def _sync_does_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: None


@plant("segment-name-not-synced", (SyncWork, "run"), text="the name of a new segment is not synced")
def _segment_name_not_synced(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: self.file.sync()


@plant("vote-forgotten-in-new-segment", (WriteAheadLog, "rotate"), text="a new segment does not repeat the vote")
def _vote_forgotten(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: WriteAheadLog) -> None:
        state = self._hard_state
        self._hard_state = type(state)(epoch=state.epoch, voted_for=NO_NODE)
        original(self)

    return mutated


@plant(
    "checksum-ignored",
    (record_format, "read_record"),
    (wal, "read_record"),
    text="checksums of records are not compared",
)
def _checksum_ignored(original: Callable[..., Any], _: Callable[..., Any]) -> tuple[object, ...]:
    def mutated(sequence: int, buffer: bytes, position: int) -> record_format.Record | None:
        if position + record_format.HEADER_BYTES > len(buffer):
            return None
        magic, length, _, synced, kind = record_format._HEADER.unpack_from(buffer, position)
        end = position + record_format.HEADER_BYTES + length
        if magic != record_format.MAGIC or end > len(buffer):
            return None
        return record_format.Record(position, end, kind, synced, buffer[position + record_format.HEADER_BYTES : end])

    return mutated, mutated


@plant("torn-tail-kept", (WriteAheadLog, "_load"), text="a torn record at the end of the log is not cut")
def _torn_tail_kept(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: WriteAheadLog, sequence: int, *, first: bool, last: bool, exists: bool) -> None:
        disk: Any = self._disk

        class UncutDisk:
            def open(_, path: str, mode: OpenMode) -> object:
                file = disk.open(path, mode)

                class File:
                    def __getattr__(_, name: str) -> Any:
                        return getattr(file, name)

                    def truncate(_, size: int) -> None:
                        pass

                return File()

            def __getattr__(_, name: str) -> Any:
                return getattr(disk, name)

        self._disk = cast("Disk", UncutDisk())
        try:
            original(self, sequence, first=first, last=last, exists=exists)
        finally:
            self._disk = disk

    return mutated


@plant("snapshot-renamed-before-sync", (SnapshotWriter, "finish"), text="a snapshot gets its name before it is durable")
def _snapshot_renamed_before_sync(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: SnapshotWriter) -> None:
        self._append(record_format.RecordType.SNAPSHOT_FOOTER, msgpack.packb((self.piece_count,)))
        if self._file is not None:
            self._file.close()
        self._file = None
        self._placed = True
        self._disk.rename(self.part_path, self.path)
        self._disk.sync_directory(self._directory)

    return mutated


# --- directories


@plant(
    "emptied-voter-accepted",
    (VoterDirectories, "take_answer"),
    (VoterDirectories, "is_own_voter"),
    (Identity, "check"),
    (RaftCore, "_founds"),
    text="voters are known by their id, even if their log is gone",
)
def _emptied_voter_accepted(*originals: Callable[..., Any]) -> tuple[object, ...]:
    """Voters have directories, but are known by their id alone."""

    def take_answer(self: VoterDirectories, configuration: Configuration, sender: int, directory: UUID) -> None:
        self._heard[sender] = directory

    def is_own_voter(self: VoterDirectories, configuration: Configuration) -> bool:
        return self._node_id in configuration.voters

    return take_answer, is_own_voter, lambda self, envelope: None, property(lambda self: False)


@plant("cut-log-accepted", (wal._Segment, "read_slots"), text="a log that lost its durable end is accepted")
def _cut_log_accepted(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: wal._Segment, buffer: bytes, position: int) -> None:
        original(self, buffer, position)
        self.durable, self.followed = 0, False

    return mutated


# --- elections


@plant("voted-for-ignored", (RaftCore, "_on_vote_request"), text="a voter votes again in the same epoch")
def _voted_for_ignored(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, sender: int, request: VoteRequest, addressed: UUID) -> None:
        if not request.pre_vote and self._log_is_up_to_date(request) and self.role is Role.FOLLOWER:
            self._set_hard_state(self.epoch, sender)
            self.send(sender, VoteResponse(epoch=self.epoch, pre_vote=False, granted=True))
            return
        original(self, sender, request, addressed)

    return mutated


@plant("log-of-candidate-ignored", (RaftCore, "_log_is_up_to_date"), text="a candidate with an older log gets votes")
def _log_of_candidate_ignored(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: True


@plant(
    "length-of-log-decides-alone",
    (RaftCore, "_log_is_up_to_date"),
    text="the length of a candidate's log counts, its last epoch does not",
)
def _length_decides(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: request.last_index >= self.log.last_index


@plant(
    "pre-vote-skipped",
    (RaftCore, "_campaign"),
    text="a candidate raises its epoch without a pre-vote",
    judges=("campaign", "story rejoining_stale_leader"),
)
def _pre_vote_skipped(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *, pre_vote: original(self, pre_vote=False)


@plant("epoch-not-kept", (node.RaftNode, "_carry_out"), text="an epoch without a vote is not made durable")
def _epoch_not_kept(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: node.RaftNode, ready: Ready) -> None:
        if ready.hard_state is not None and ready.hard_state.voted_for == NO_NODE:
            ready = replace(ready, hard_state=None)
        original(self, ready)

    return mutated


# --- replication and commit


@plant(
    "own-epoch-rule-dropped",
    (LeaderRole, "advance_commit"),
    text="a leader commits entries of former epochs by counting",
    judges=("story figure_8",),
)
def _own_epoch_rule_dropped(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole) -> None:
        index = self._durable_on_quorum()
        if index > self._core.commit_index:
            self._core.commit_to(index)
            self._finish_reads()
            self._flush_wanted = True

    return mutated


@plant(
    "truncation-on-every-append",
    (RaftCore, "_on_append_request"),
    text="an append request cuts the entries behind it, though they agree",
    judges=("campaign", "story reordering"),
)
def _truncation_on_every_append(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, sender: int, request: AppendRequest) -> None:
        original(self, sender, request)
        end = max(request.prev_index + len(request.entries), self.commit_index)
        if self.log.epoch_at(end) is not None and end < self.log.last_index and self.installing is None:
            self._truncate(end)

    return mutated


@plant(
    "commit-beyond-match",
    (RaftCore, "_on_append_request"),
    text="a follower commits entries that it has not compared with the leader's",
)
def _commit_beyond_match(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, sender: int, request: AppendRequest) -> None:
        original(self, sender, request)
        if self.installing is None:
            self.commit_index = max(self.commit_index, min(request.commit_index, self.log.last_index))

    return mutated


@plant(
    "previous-entry-not-compared", (RaftCore, "_on_append_request"), text="the entry before an append is not compared"
)
def _previous_entry_not_compared(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, sender: int, request: AppendRequest) -> None:
        if self.log.base_index <= request.prev_index <= self.log.last_index:
            epoch = self.log.epoch_at(request.prev_index)
            assert epoch is not None, "the log holds an entry at each of its indexes"
            request = replace(request, prev_epoch=epoch)
        original(self, sender, request)

    return mutated


@plant("conflict-kept", (EntryLog, "epoch_at"), text="a follower keeps an entry that conflicts with the leader's")
def _conflict_kept(original: Callable[..., Any]) -> Callable[..., Any]:
    """An entry that stands at an index already is taken for the leader's."""

    def mutated(self: EntryLog, index: int) -> int | None:
        found: int | None = original(self, index)
        frame = sys._getframe(1)
        if found is not None and frame.f_code.co_name == "_on_append_request" and "entry" in frame.f_locals:
            return int(frame.f_locals["entry"].epoch)
        return found

    return mutated


@plant("minority-commits", (LeaderRole, "_durable_on_quorum"), text="entries that a minority holds are committed")
def _minority_commits(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole) -> int:
        core = self._core
        held = sorted(
            core.durable_index if voter == core.node_id else self.progress[voter].match
            for voter in core.configuration.voters
        )
        return held[max(0, len(held) - core.configuration.quorum + 1) if len(held) > 2 else -1]

    return mutated


# --- snapshots


@plant(
    "stale-snapshot-accepted",
    (RaftCore, "_on_snapshot_request"),
    text="a snapshot older than the commit index is installed",
    judges=("story stale_snapshot",),
)
def _stale_snapshot_accepted(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: RaftCore, sender: int, request: SnapshotRequest) -> None:
        commit, self.commit_index = self.commit_index, 0
        try:
            original(self, sender, request)
        finally:
            self.commit_index = commit

    return mutated


@plant("snapshot-index-off-by-one", (node, "SnapshotWriter"), text="a snapshot is named by the index before its own")
def _snapshot_index_off_by_one(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(disk: Disk, directory: str, point: SnapshotPoint, source: str) -> SnapshotWriter:
        if source == "taking" and point.index > 1:
            point = SnapshotPoint(index=point.index - 1, epoch=point.epoch, configuration=point.configuration)
        writer: SnapshotWriter = original(disk, directory, point, source)
        return writer

    return mutated


@plant("snapshot-pieces-mixed", (IncomingSnapshot, "wanted_piece"), text="pieces of different snapshots are joined")
def _snapshot_pieces_mixed(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request: self._receiving[1] if self._receiving is not None else 0


@plant(
    "log-kept-behind-snapshot", (WriteAheadLog, "reset"), text="an installed snapshot does not reset the durable log"
)
def _log_kept_behind_snapshot(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: WriteAheadLog, index: int, epoch: int) -> None:
        self._last_index, self._last_epoch = index, epoch

    return mutated


# --- reads and membership


@plant(
    "read-without-quorum",
    (LeaderRole, "read_index"),
    text="a leader answers reads without asking whether it still leads",
    judges=("campaign", "story reads"),
)
def _read_without_quorum(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole, read_id: int) -> bool:
        if self._core.commit_index < self.first_index:
            return False
        self._core.read_done(read_id, self._core.commit_index)
        return True

    return mutated


@plant(
    "read-before-first-commit",
    (LeaderRole, "read_index"),
    text="a leader answers reads before it has committed an entry of its epoch",
    judges=("campaign", "story reads"),
)
def _read_before_first_commit(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole, read_id: int) -> Any:
        first, self.first_index = self.first_index, 0
        try:
            return original(self, read_id)
        finally:
            self.first_index = first

    return mutated


@plant(
    "active-before-first-commit",
    (node.RaftNode, "_settle_leadership"),
    text="a leader becomes active before it has committed an entry of its epoch",
)
def _active_before_first_commit(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: node.RaftNode) -> None:
        original(self)
        if self.core.leader is not None:
            self._report_leadership(active=True)

    return mutated


@plant(
    "two-memberships-at-once",
    (LeaderRole, "change_configuration"),
    text="a second change of configuration begins before the first is committed",
    judges=("story membership_under_partition",),
)
def _two_memberships_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole, configuration: Configuration) -> Entry:
        return self._append(EntryKind.CONFIGURATION, encode_configuration(configuration))

    return mutated


@plant("learner-counts", (LeaderRole, "_durable_on_quorum"), text="learners count for the majority")
def _learner_counts(original: Callable[..., Any]) -> Callable[..., Any]:
    def mutated(self: LeaderRole) -> int:
        core = self._core
        members = core.configuration.members()
        held = sorted(
            core.durable_index if member.voter_id == core.node_id else self.progress[member.voter_id].match
            for member in members
        )
        return held[len(held) - core.configuration.quorum]

    return mutated


BUGS = tuple(MUTANTS.values())
"""All planted bugs of the quorum."""

SEEDS = 300


def story_that_differs(name: str) -> str | None:
    """The first story that comes out otherwise under a mutant; None if all are as written."""
    with mutant(name):
        for path in sorted(raft_story.STORIES.glob("*.txt")):
            text = path.read_text()
            try:
                reported = raft_story.run_story(text)
            except AssertionError as error:
                reported = str(error)
            if reported != text:
                return path.stem
    return None


def main() -> int:
    missed: list[str] = []
    World.STEPS_MAX = 60_000  # sound runs take about 7,000
    for name in sys.argv[1:] or MUTANTS:
        begin = time.perf_counter()
        with mutant(name):
            found = raft_campaign.find(range(SEEDS))
        seconds = time.perf_counter() - begin
        story = story_that_differs(name) if found is None else None
        if found is None and story is None:
            missed.append(name)
            print(f"{name:34} NOT FOUND in {SEEDS} seeds, {seconds:.1f} s", flush=True)
        elif found is None:
            print(f"{name:34} found by the story {story}, not by {SEEDS} seeds", flush=True)
        else:
            error = " ".join(str(found[1]).split())
            print(f"{name:34} seed {found[0]:4} {seconds:6.1f} s  {type(found[1]).__name__}: {error[:100]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
