"""The one module that imports pysyncobj: its subclass with an own journal, transport, snapshots, clock and filters.

Defects of the library, and the code that closes each here (details are in docs/internals/pysyncobj.md):

    a snapshot chunk advances the commit index over an unverified log   chunks carry commit index 0
    a matching append truncates what follows                            appends are trimmed against the own log
    an old answer lowers the next index, or belongs to another term     envelope with term and sequence
    nothing is synced; torn and rotten journals                         own journal, sync before each message
    a snapshot that failed to load is acknowledged; an older one loads  own snapshot transfer, piece by piece
    entries larger than a batch are pickled                             one message holds any entry
    a stale leader never gets an answer                                 an answer of its own (``stale_term``)
    a repeated vote counts twice                                        each voter counts once a term

The library reads the clock through a global function, so this module puts one of its own in its place, which returns
the time of the node that is being run. It moves by itself when it is asked very often: the library loops on it.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Final, Protocol

import pysyncobj.syncobj as _syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.transport import Transport

if TYPE_CHECKING:
    import random

    from moldau_quorum.log.port import ElectionTiming, LogLimits
    from moldau_quorum.log.pysyncobj.journal import DurableJournal, LibraryEntry
    from moldau_quorum.log.pysyncobj.wire import LibraryMessage

_CALLS_MAX: Final = 300
"""The clock stands still for so many questions within one step."""


class _Clock:
    """The time of the node that is being run."""

    seconds = 0.0
    calls = 0

    @classmethod
    def now(cls) -> float:
        cls.calls += 1
        return cls.seconds + max(0, cls.calls - _CALLS_MAX) * 1e-3


_syncobj.monotonicTime = _Clock.now
_syncobj.PIPE_NOTIFIER_ENABLED = False  # it would wake a poller that is never waited for


class MemberNode(Node):  # type: ignore[misc]
    """A member, with the same hash in every process: the library keeps members in sets."""

    def __hash__(self) -> int:
        return int(self.id)


class _NoPoller:
    """The library's sockets are not used."""

    def poll(self, timeout: float) -> None:
        """Returns at once: there is nothing to wait for."""


class Owner(Protocol):
    """The calls that the library makes on the node around it."""

    def send_message(self, member: int, message: LibraryMessage) -> None:
        """Sends when all that was written is durable."""
        ...

    def apply_command(self, command: bytes, index: int, term: int) -> None:
        """Applies the next committed command."""
        ...

    def begin_snapshot(self, before: LibraryEntry, last: LibraryEntry) -> None:
        """Begins a snapshot of the present state."""
        ...

    def snapshot_finished(self) -> bool:
        """Returns whether the snapshot that was begun is durable; True once."""
        ...

    def next_piece(self, member: int) -> tuple[int, int, int, bytes]:
        """Returns snapshot index, number, count and content of the piece that the member needs."""
        ...

    def restore(self) -> tuple[LibraryEntry, LibraryEntry]:
        """Brings the state machine to the newest snapshot; returns its last entry and the one before."""
        ...


class _Serializer:
    """Snapshots, in the place of the library's own."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._index: int | None = None

    def checkSerializing(self) -> tuple[int, int | None]:
        if self._index is None:
            return SERIALIZER_STATE.NOT_SERIALIZING, None
        if not self._owner.snapshot_finished():
            return SERIALIZER_STATE.SERIALIZING, self._index
        index, self._index = self._index, None
        return SERIALIZER_STATE.SUCCESS, index

    def serialize(self, data: tuple[None, LibraryEntry, LibraryEntry, object], index: int) -> None:
        if self._index is None:
            self._index = index
            self._owner.begin_snapshot(data[2], data[1])

    def getTransmissionData(self, member: MemberNode) -> tuple[tuple[int, int, int, bytes], bool, bool]:
        index, number, count, data = self._owner.next_piece(member.id)
        return (index, number, count, data), number == 0, number + 1 == count

    def setTransmissionData(self, data: object) -> bool:
        """Does nothing: the node has put the snapshot in place before it informs the library."""
        return True

    def cancelTransmisstion(self, member: MemberNode) -> None:
        """Does nothing: a piece is repeated until it is acknowledged."""


class _Filter(Transport):  # type: ignore[misc]
    """Between the library and the node: messages out, filtered messages in."""

    def __init__(self, library: HardenedSyncObj, self_node: MemberNode, others: set[MemberNode]) -> None:
        super().__init__(library, self_node, others)
        self.library = library

    @property
    def ready(self) -> bool:
        return True

    def send(self, member: MemberNode, message: LibraryMessage) -> bool:
        library = self.library
        if "serialized" in message:
            index, piece, count, data = message["serialized"][0]
            message = {
                "type": "snapshot",
                "term": message["term"],
                "index": index,
                "piece": piece,
                "count": count,
                "data": data,
            }
            library.pause(member)  # ends the library's loop: the next piece goes when this one is acknowledged
        elif message["type"] == "next_node_idx" and library.answer_fix is not None:
            message = {**message, **library.answer_fix}
        assert "transmission" not in message, "no entry is larger than a message may be"
        library.owner.send_message(member.id, message)
        return True

    def deliver(self, member: MemberNode, message: LibraryMessage) -> None:
        self._onMessageReceived(member, message)


class HardenedSyncObj(SyncObj):  # type: ignore[misc]
    """The library, driven step by step. Between steps the node around it makes things durable."""

    owner: Owner

    def __init__(
        self,
        owner: Owner,
        journal: DurableJournal,
        *,
        node_id: int,
        members: list[int],
        timing: ElectionTiming,
        limits: LogLimits,
        draw: random.Random,
        now_ms: float,
    ) -> None:
        """``members`` are all voters, this node among them."""
        self.owner = owner
        self._own_journal = journal
        self._own_serializer = _Serializer(owner)
        self._draw = draw
        self._timing = timing
        self.answer_fix: LibraryMessage | None = None
        self._won_term: int | None = None  # a lone voter's election, not yet durable
        self._barriers: collections.Counter[int] = collections.Counter()
        self._votes: dict[int, int] = {}  # member to the last term in which its vote was counted
        self.sequences: collections.Counter[int] = collections.Counter()
        self.member_nodes = {member: MemberNode(member) for member in sorted(members)}
        self.enter(now_ms)
        others = [node for member, node in self.member_nodes.items() if member != node_id]
        super().__init__(
            self.member_nodes[node_id],
            others,
            conf=SyncObjConf(
                autoTick=False,
                useFork=False,
                appendEntriesUseBatch=True,  # the node sends at once, and once for all that came together
                appendEntriesBatchSizeBytes=max(limits.append_bytes_max, limits.entry_bytes_max + 2),
                appendEntriesPeriod=timing.heartbeat_interval_ms / 1000,
                raftMinTimeout=timing.election_timeout_ms_min / 1000,
                raftMaxTimeout=timing.election_timeout_ms_max / 1000,
                leaderFallbackTimeout=timing.election_timeout_ms_max / 1000,
                dynamicMembershipChange=False,
                journalFile=None,
                fullDumpFile="/dev/null/never-written",  # demanded beside a serializer
                logCompactionMinEntries=1 << 62,
                logCompactionMinTime=1 << 62,
                serializer=lambda path, data: None,
                deserializer=lambda path: (),
                commandsQueueSize=0,
            ),
            transportClass=_Filter,
        )
        self._poller = _NoPoller()
        for node in others:
            self._private("transport")._onNodeConnected(node)

    # --- the library's private parts; their names contain the class they belong to

    @property
    def _SyncObj__raftLog(self) -> DurableJournal:
        return self._own_journal

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, stock: object) -> None:
        """Drops the journal in memory that the library makes."""

    @property
    def _SyncObj__serializer(self) -> _Serializer:
        return self._own_serializer

    @_SyncObj__serializer.setter
    def _SyncObj__serializer(self, stock: object) -> None:
        """Drops the serializer that the library makes; it would write files."""

    def _SyncObj__generateRaftTimeout(self) -> float:
        low, high = self._timing.election_timeout_ms_min, self._timing.election_timeout_ms_max
        return (low + (high - low) * self._draw.random()) / 1000

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:
        """Loads the snapshot as the library does, but lets errors out."""
        last, before = self.owner.restore()
        journal = self._own_journal
        if clearJournal or len(journal) < 2 or (journal.entry(0), journal.entry(1)) != (before, last):
            journal.clear()
            journal.add(*before)
            journal.add(*last)
        self._SyncObj__raftLastApplied = last[1]
        self._SyncObj__raftCommitIndex = min(max(self.commit_index, last[1]), journal.entry(-1)[1])

    def _SyncObj__onBecomeLeader(self) -> None:
        """Delays the leadership of a lone voter, which wins in the step of its vote, until that vote is durable."""
        if len(self.member_nodes) == 1:
            self._won_term = self.term
        else:
            super()._SyncObj__onBecomeLeader()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        """Applies a command as bytes, without unpickling it."""
        index = self._private("raftLastApplied") + 1
        position = index - self._own_journal.entry(0)[1]
        self.owner.apply_command(command, index, self._own_journal.entry(position)[2])

    def _private(self, name: str) -> Any:  # noqa: ANN401 - the library has no types
        return getattr(self, f"_SyncObj__{name}")

    def _call(self, name: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - the library has no types
        return getattr(self, f"_SyncObj__{name}")(*arguments, **named)

    # --- state

    @property
    def term(self) -> int:
        return int(self._private("raftCurrentTerm"))

    @property
    def leads(self) -> bool:
        return bool(self._isLeader())

    @property
    def leader(self) -> int | None:
        node = self._private("raftLeader")
        return None if node is None else int(node.id)

    @property
    def commit_index(self) -> int:
        return int(self._private("raftCommitIndex"))

    @property
    def last_applied(self) -> int:
        return int(self._private("raftLastApplied"))

    @property
    def first_own_index(self) -> int:
        """Index of the entry that opened this leader's term."""
        return int(self._private("noopIDx") or 0)

    def match_index(self, member: int) -> int:
        return int(self._private("raftMatchIndex").get(self.member_nodes[member], 0))

    def last_response_ms(self, member: int) -> float:
        return float(self._private("lastResponseTime").get(self.member_nodes[member], 0.0)) * 1000

    # --- steps

    def enter(self, now_ms: float) -> None:
        """Sets the time of the following calls."""
        _Clock.seconds, _Clock.calls = now_ms / 1000, 0

    def step(self, now_ms: float) -> None:
        """Runs one tick of the library. Earlier writes must be durable, because the library counts them now."""
        self.enter(now_ms)
        for node in self.member_nodes.values():
            if node != self.selfNode:
                self._private("connectedNodes").add(node)
        commit, won_term = self.commit_index, self._won_term
        self.doTick(0)
        if won_term is not None:
            self._won_term = None
            if won_term == self.term and not self.leads:
                super()._SyncObj__onBecomeLeader()
        if self.leads and self.commit_index > commit:
            self._call("sendAppendEntries")

    def hasten_election(self, peer: int, now_ms: float) -> None:
        """Shortens the election timeout if ``peer``, whose host refuses connections, led: to at most half.

        The time is drawn from so wide a range because there is no pre-vote, and a split vote costs a whole timeout.
        """
        if self.leads or self.leader != peer:
            return
        self._SyncObj__raftLeader = None
        soon = (now_ms + self._timing.election_timeout_ms_min / 2 * self._draw.random()) / 1000
        self._SyncObj__raftElectionDeadline = min(float(self._private("raftElectionDeadline")), soon)

    def pause(self, member: MemberNode) -> None:
        """Stops sending to a member until the next step."""
        self._private("connectedNodes").discard(member)

    def load_snapshot(self) -> None:
        """Loads the snapshot of this node at its start; what the journal holds before it is void."""
        self._call("loadDumpFile", clearJournal=False)

    def append(self, command: bytes, now_ms: float) -> int:
        """Appends a command as leader and returns its index."""
        self.enter(now_ms)
        self._applyCommand(command, None)
        self._checkCommandsToApply()
        return self._own_journal.entry(-1)[1]

    def send_appends(self, now_ms: float) -> None:
        """Sends what is new to all members."""
        self.enter(now_ms)
        if self.leads:
            self._call("sendAppendEntries")

    def hand_over(self, member: int, now_ms: float) -> None:
        """Asks a member that holds everything to campaign."""
        self.enter(now_ms)
        self.transferLeadership(self.member_nodes[member])

    # --- messages in

    def receive(self, member: int, term: int, sequence: int, message: LibraryMessage, now_ms: float) -> None:
        """Takes a message that has passed the filters."""
        self.enter(now_ms)
        node, kind = self.member_nodes[member], message["type"]
        if kind in ("append_entries", "snapshot") and message["term"] < self.term:
            self.owner.send_message(member, {"type": "stale_term", "term": self.term})
        elif kind == "append_entries":
            self._receive_append(node, dict(message))
        elif kind == "next_node_idx":
            self._receive_answer(node, term, sequence, message)
        elif kind == "stale_term":
            if message["term"] > self.term:
                # A vote request that can never win makes the library enter the newer term.
                request = {"type": "request_vote", "term": message["term"], "last_log_index": 0, "last_log_term": -1}
                self._private("transport").deliver(node, request)
        elif kind == "response_vote":
            if self._votes.get(member, 0) < message["term"]:  # the library would count a repeated one twice
                self._votes[member] = message["term"]
                self._private("transport").deliver(node, message)
        else:
            self._private("transport").deliver(node, message)

    def _receive_answer(self, node: MemberNode, term: int, sequence: int, message: LibraryMessage) -> None:
        if term != self.term or not self.leads:
            return
        if message["reset"]:
            if sequence <= self._barriers[node.id]:
                message = {**message, "reset": False, "success": False}  # answers what was sent before the last reset
            else:
                self._barriers[node.id] = self.sequences[node.id]
                wanted = max(2, min(message["next_node_idx"], self._own_journal.entry(-1)[1] + 1))
                message = {**message, "next_node_idx": wanted}
        self._private("transport").deliver(node, message)

    def _receive_append(self, node: MemberNode, message: LibraryMessage) -> None:
        """Trims an append against the own log, so that the library truncates only where the logs differ."""
        journal = self._own_journal
        first, last = journal.entry(0)[1], journal.entry(-1)[1]
        previous, entries = message["prevLogIdx"], message["entries"]
        self.answer_fix = None
        try:
            if first <= previous <= last:
                if journal.entry(previous - first)[2] != message["prevLogTerm"]:
                    self.answer_fix = {"next_node_idx": max(first + 1, min(previous, self.commit_index + 1))}
                else:
                    self._trim(message, previous, entries)
            elif previous < first:
                self._skip_covered(message, first)
            self._private("transport").deliver(node, message)
        finally:
            self.answer_fix = None

    def _trim(self, message: LibraryMessage, previous: int, entries: tuple[LibraryEntry, ...]) -> None:
        journal = self._own_journal
        first, last = journal.entry(0)[1], journal.entry(-1)[1]
        same = 0
        while (
            same < len(entries)
            and entries[same][1] <= last
            and journal.entry(entries[same][1] - first)[2] == entries[same][2]
        ):
            same += 1
        covered = previous + len(entries)
        if same == len(entries):
            message["commit_index"] = min(message["commit_index"], covered)
            message["prevLogIdx"], message["prevLogTerm"], message["entries"] = last, journal.entry(-1)[2], ()
            self.answer_fix = {"next_node_idx": covered + 1}
        else:
            assert entries[same][1] > self.commit_index, "a committed entry would be lost"
            if same:
                message["prevLogIdx"], message["prevLogTerm"] = entries[same - 1][1], entries[same - 1][2]
                message["entries"] = entries[same:]

    def _skip_covered(self, message: LibraryMessage, first: int) -> None:
        """Skips the part of an append that a snapshot of this node covers: it agrees with every leader."""
        journal = self._own_journal
        entries = message["entries"]
        rest = tuple(entry for entry in entries if entry[1] > first)
        covered = message["prevLogIdx"] + len(entries)
        if covered >= first and first > 1:
            message["prevLogIdx"], message["prevLogTerm"], message["entries"] = first, journal.entry(0)[2], rest
            self._trim(message, first, rest)

    def snapshot_heard(self, member: int, term: int, now_ms: float) -> None:
        """Notes that the sender of a piece of a snapshot leads and is alive; commits nothing."""
        self.enter(now_ms)
        heartbeat = {
            "type": "append_entries",
            "term": term,
            "commit_index": 0,
            "entries": (),
            "serialized": None,
        }
        self._private("transport").deliver(self.member_nodes[member], heartbeat)

    def snapshot_stored(self, now_ms: float) -> None:
        """Loads a received snapshot, which is durable and in place."""
        self.enter(now_ms)
        self._call("loadDumpFile", clearJournal=False)

    def snapshot_acknowledged(self, member: int, now_ms: float) -> None:
        """Notes that a member is alive, because it asks for the next piece."""
        self.enter(now_ms)
        if self.leads:
            alive = {"type": "next_node_idx", "next_node_idx": 1, "reset": False, "success": False}
            self._private("transport").deliver(self.member_nodes[member], alive)
            self._private("connectedNodes").add(self.member_nodes[member])
            self._call("sendAppendEntries")

    def compact(self) -> None:
        """Asks for a snapshot at the next step."""
        self.forceLogCompaction()
