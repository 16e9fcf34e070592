"""Stock pysyncobj in the campaign's world, as a negative control: the campaign must convict it.

The library's own log handling, journal and snapshots are at work, on real files in a temporary directory (they know no
other). Only commands, clock and transport are ours; messages go to the library as they come, unfiltered.

``moldau sim run`` finds this module by its path (``moldau_jepsen.simulation.campaign.outside_controls``) and calls
``convict``. It lies among the tests so that no installed program can run a quorum on the library as it is.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import tempfile
import textwrap
import traceback
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import msgpack
import pysyncobj.syncobj as library
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from moldau_quorum.log.port import CommittedEntry, Leadership, LogPosition, NotLeaderError, OutcomeUnknownError
from moldau_quorum.log.pysyncobj.library import _Clock
from moldau_quorum.log.raft.core.types import NO_NODE, Entry, EntryKind, HardState, configuration_of
from moldau_quorum.log.raft.waiting import Pending
from support.raft.campaign import run_seed
from support.raft.hardened_pysyncobj import CampaignNode
from support.raft.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.world.disk.disk import NodeDisk
    from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
    from moldau_quorum.log.port import MetadataLogConfig, StateMachine

DATA = b"\x10"
TEXT_MAX = 300
"""Characters of a violation that are reported; the entries in it may be longer."""
LIBRARY = os.path.dirname(library.__file__)
HOMES: dict[VirtualDisk, tempfile.TemporaryDirectory[str]] = {}  # virtual disk -> the directory that stands for it
assert library.monotonicTime == _Clock.now


def home_of(disk: VirtualDisk) -> str:
    """A machine keeps its directory over all lives of its process."""
    if disk not in HOMES:
        HOMES[disk] = tempfile.TemporaryDirectory(prefix="moldau-stock-")
    return HOMES[disk].name


class StockMember(Node):  # type: ignore[misc]  # the library has no annotations
    def __hash__(self) -> int:
        return int(self.id)


class StockTransport(Transport):  # type: ignore[misc]  # the library has no annotations
    def __init__(self, owner: Any, self_node: Node, others: Sequence[Node]) -> None:
        super().__init__(owner, self_node, others)
        self.owner = owner

    @property
    def ready(self) -> bool:
        return True

    def send(self, member: Node, message: object) -> bool:
        self.owner.shell.outbox.append((int(member.id), msgpack.packb(message)))
        return True


class StockSyncObj(SyncObj):  # type: ignore[misc]  # the library has no annotations
    def __init__(self, shell: StockNode, *arguments: Any, **named: Any) -> None:
        self.shell = shell
        super().__init__(*arguments, **named)

    def _SyncObj__generateRaftTimeout(self) -> float:
        low, high = self.shell.timing.election_timeout_ms_min, self.shell.timing.election_timeout_ms_max
        return (low + (high - low) * self.shell.draw.random()) / 1000

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        self.shell.apply(command)


class StockNode:
    """The face that the world expects."""

    has_pre_vote = False
    keeps_commit_index = False  # it lets the commit index fall; that is not what it is convicted of

    def __init__(
        self, disk: NodeDisk, config: MetadataLogConfig, machine: StateMachine, *, seed: int, now_ms: float
    ) -> None:
        self.machine, self.config, self.timing = machine, config, config.timing
        self.draw = random.Random(seed)
        self.outbox: list[tuple[int, bytes]] = []
        self.proposals: dict[int, Pending] = {}
        self.leadership = Leadership()
        self.configuration = configuration_of(config.voters)
        self.now = now_ms
        home = home_of(disk._disk)
        self.nodes = {number: StockMember(str(number)) for number in sorted(config.voters)}
        others = [node for number, node in self.nodes.items() if number != config.node_id]
        self.enter(now_ms)
        self.library = StockSyncObj(
            self,
            self.nodes[config.node_id],
            others,
            conf=SyncObjConf(
                autoTick=False,
                useFork=False,
                appendEntriesUseBatch=False,
                appendEntriesPeriod=self.timing.heartbeat_interval_ms / 1000,
                raftMinTimeout=self.timing.election_timeout_ms_min / 1000,
                raftMaxTimeout=self.timing.election_timeout_ms_max / 1000,
                leaderFallbackTimeout=3.0,
                journalFile=f"{home}/journal",
                fullDumpFile=f"{home}/dump",
                serializer=self.dump,
                deserializer=self.load,
                logCompactionMinEntries=min(config.limits.snapshot_after_entries, 200),
                logCompactionMinTime=1 << 40,
            ),
            transportClass=StockTransport,
        )
        for node in others:
            self.private("transport")._onNodeConnected(node)
        self.library.doTick(0)

    def private(self, name: str) -> Any:
        return getattr(self.library, f"_SyncObj__{name}")

    def enter(self, now_ms: float) -> None:
        self.now = max(self.now, now_ms)
        _Clock.seconds, _Clock.calls = self.now / 1000, 0

    # --- state machine

    @property
    def applied_index(self) -> int:
        return int(self.private("raftLastApplied"))

    def apply(self, command: bytes) -> None:
        index = self.applied_index + 1
        entry = self.log_entry(index)
        if command[:1] == DATA:
            self.machine.apply(CommittedEntry(index=index, epoch=entry.epoch, data=command[1:]))
        pending = self.proposals.pop(index, None)
        if pending is not None:
            pending.finish(None if pending.position.epoch == entry.epoch else NotLeaderError(-1, entry.epoch))

    def dump(self, path: str, data: Any) -> None:
        last, before, _ = data
        with open(path, "wb") as file:
            file.write(msgpack.packb((last, before, list(self.machine.snapshot_pieces()))))

    def load(self, path: str) -> tuple[Any, Any, list[StockMember]]:
        with open(path, "rb") as file:
            last, before, pieces = msgpack.unpackb(file.read(), use_list=False)
        self.machine.restore_begin()
        for piece in pieces:
            self.machine.restore_piece(piece)
        self.machine.restore_end(LogPosition(index=last[1], epoch=last[2]))
        return last, before, list(self.nodes.values())

    # --- EngineNode

    def restore_job(self) -> None:
        return None

    def receive(self, body: bytes, now_ms: float) -> None:
        self.enter(now_ms)
        sender, inner = msgpack.unpackb(body, use_list=False)
        message = msgpack.unpackb(inner, use_list=False, strict_map_key=False)
        self.private("transport")._onMessageReceived(self.nodes[sender], message)

    def tick(self, now_ms: float) -> None:
        self.enter(now_ms)

    def process(self) -> None:
        self.enter(self.now)
        self.library.doTick(0)
        leads, term = self.library._isLeader(), self.library.raftCurrentTerm
        for index in [
            index for index, pending in self.proposals.items() if not leads or pending.position.epoch != term
        ]:
            self.proposals.pop(index).finish(OutcomeUnknownError("leadership was lost"))
        active = leads and self.applied_index >= (self.private("noopIDx") or 1 << 62)
        leader = self.private("raftLeader")
        leadership = Leadership(leader_id=int(leader.id) if leader else -1, epoch=term, active=active)
        if leadership != self.leadership:
            self.leadership = leadership
            self.machine.leadership_changed(leadership)

    def take_outbox(self) -> list[tuple[int, bytes]]:
        outbox, self.outbox = self.outbox, []
        return [(recipient, msgpack.packb((self.config.node_id, body))) for recipient, body in outbox]

    def begin_sync(self) -> None:
        return None

    has_job = False

    def take_job(self) -> None:
        return None

    def propose(self, data: bytes, *, epoch: int, notify: Callable[[], None]) -> Pending:
        if not self.leadership.active or not self.library._isLeader():
            raise NotLeaderError(-1, epoch)
        self.enter(self.now)
        self.library._applyCommand(DATA + data, None)
        self.library._checkCommandsToApply()
        entry = self.private("raftLog")[-1]
        pending = Pending(LogPosition(index=entry[1], epoch=entry[2]), len(data), notify)
        self.proposals[entry[1]] = pending
        return pending

    def read(self, notify: Callable[[], None]) -> NoReturn:
        raise NotLeaderError(-1, 0)

    def transfer(self, target: int) -> None:
        self.library.transferLeadership(self.nodes[target])

    def take_snapshot(self) -> None:
        self.library.forceLogCompaction()

    # --- what the invariants look at

    @property
    def core(self) -> StockNode:
        return self

    @property
    def log(self) -> StockNode:
        return self

    installing = None

    @property
    def epoch(self) -> int:
        return int(self.library.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self.library.raftCommitIndex)

    @property
    def leader(self) -> StockNode | None:
        return self if self.library._isLeader() else None

    @property
    def leader_id(self) -> int | None:
        leader = self.private("raftLeader")
        return int(leader.id) if leader else None

    @property
    def hard_state(self) -> HardState:
        voted_for = self.private("votedForNodeId")
        return HardState(epoch=self.epoch, voted_for=NO_NODE if voted_for is None else int(voted_for))

    def next_deadline_ms(self) -> float:
        return self.now + 20.0

    @property
    def base_index(self) -> int:
        return int(self.private("raftLog")[0][1]) - 1

    @property
    def last_index(self) -> int:
        return int(self.private("raftLog")[-1][1])

    @property
    def last_epoch(self) -> int:
        return int(self.private("raftLog")[-1][2])

    def log_entry(self, index: int) -> Entry:
        command, at, term = self.private("raftLog")[index - self.base_index - 1]
        command = bytes(command)
        kind = EntryKind.DATA if command[:1] == DATA else EntryKind.NOOP
        return Entry(at, term, kind, command[1:] if kind == EntryKind.DATA else b"")

    entry = log_entry

    def epoch_at(self, index: int) -> int | None:
        return self.log_entry(index).epoch if self.base_index < index <= self.last_index else None

    @staticmethod
    def vote_in(sender: int, recipient: int, body: bytes) -> tuple[int, int] | None:
        message = msgpack.unpackb(msgpack.unpackb(body, use_list=False)[1], use_list=False, strict_map_key=False)
        if message["type"] == "response_vote":
            return message["term"], recipient
        return None


OPTIONS: dict[str, Any] = {
    "engine": StockNode,
    "faults": ("kill", "halves", "isolate", "snapshot", "slow-link", "one-way"),
}


def convict(seed: int) -> tuple[str, str] | None:
    """Runs a seed; returns the rule that was broken and how, or None if the run breaks none.

    The same seed must pass on the hardened library, with the same faults: otherwise the world is at fault,
    and its violation is raised. A run that ends with an exception out of the library breaks no rule; any other
    exception is a defect of the harness.
    """
    try:
        _run_quietly(seed)
    except Violation as violation:
        run_seed(seed, **{**OPTIONS, "engine": CampaignNode})
        return violation.rule, textwrap.shorten(str(violation), TEXT_MAX)
    except Exception as error:
        if not any(frame.f_code.co_filename.startswith(LIBRARY) for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
    return None


def _run_quietly(seed: int) -> None:
    """The library logs what it stumbles over, and never closes its journal; its files go when the run ends."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                run_seed(seed, **OPTIONS)
            except BaseException as error:
                _forget_frames(error)
                raise
            finally:
                for home in HOMES.values():
                    home.cleanup()
                HOMES.clear()
                gc.collect()
    finally:
        logging.disable(disabled)


def _forget_frames(error: BaseException | None) -> None:
    """Releases the nodes in the frames of an exception, so that their journals are collected while warnings are off."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
