"""A seeded world of quorum members, without an event loop: one heap of events, virtual time, virtual disks.

Nodes are the production ``RaftNode`` on the simulation's virtual disk. A step is one event: a message, a timer, the end
of a sync, a step of a snapshot, an action of a client or of the nemesis. After each step ``RaftInvariants`` looks at
the node that moved. Nothing here decides which faults happen; that is ``raft_campaign``'s.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import DiskProfile
from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
from moldau_jepsen.world.trace import Trace
from moldau_quorum.log.port import (
    CommittedEntry,
    ElectionTiming,
    Leadership,
    LogDamagedError,
    LogLimits,
    LogPosition,
    MetadataLogConfig,
    MetadataLogError,
    SnapshotInvalidError,
    VoterEndpoint,
)
from moldau_quorum.log.raft.core.messages import MESSAGE_TYPES, AppendRequest, decode_payload, encode_message
from moldau_quorum.log.raft.envelope import Envelope, MessageError, WrongDirectoryError, unseal
from moldau_quorum.log.raft.node import RaftNode
from moldau_quorum.log.raft.storage.record_format import read_record
from moldau_quorum.log.raft.storage.wal import SLOT_BYTES
from support.raft.invariants import RaftInvariants, Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_quorum.log.raft.core.messages import Message
    from moldau_quorum.log.raft.core.types import Configuration
    from moldau_quorum.log.raft.storage.snapshot_jobs import Job
    from moldau_quorum.log.raft.storage.wal import SyncWork
    from moldau_quorum.log.raft.waiting import Pending

GENESIS = bytes(8)


def newest_mark(disk: NodeDisk, path: str) -> int:
    """How much of a segment its marks call durable."""
    file = disk.open(path, OpenMode.READ)
    sequence, buffer = int(path[-24:-4]), file.read(0, file.size)
    file.close()
    first = read_record(sequence, buffer, 0)
    if first is None:
        return 0
    slots = [read_record(sequence, buffer, first.end + number * SLOT_BYTES) for number in range(2)]
    return max((slot.synced for slot in slots if slot is not None), default=0)


def message_in(body: bytes) -> Message:
    """The message of the Raft core that a body holds."""
    return decode_payload(unseal(body)[2])


def run_jobs(node: RaftNode) -> None:
    """Carries out the jobs of a node that is driven by hand, such as snapshots."""
    while (job := node.take_job()) is not None:
        while job.step():
            pass
        work = job.blocking_work()
        if work is not None:
            work()
        job.finish()
        node.process()


def hand_to(node: RaftNode, sender: int, message: Message, now_ms: float, **envelope: Any) -> None:
    """Gives a node a message that no peer has sent."""
    directories = {
        "sender_directory": node.core.directories.of(node.core.configuration, sender),
        "recipient_directory": node.identity.directory_id,
    }
    body = encode_message(Envelope(sender, node.identity.node_id, **{**directories, **envelope}), message)
    node.prepare(*unseal(body))(now_ms)


class SimulatedCrash(BaseException):
    """Unwinds the code of a node at the disk call at which its process dies."""


class NoTrace(Trace):
    """A trace that drops the events that the virtual disk reports."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)

    def event(self, kind: str, *fields: object) -> None:
        pass

    note = event


def link_hash(chain: bytes, index: int, data: bytes) -> bytes:
    return hashlib.blake2b(chain + struct.pack("<Q", index) + data, digest_size=8).digest()


class ChainMachine:
    """A state machine whose state is a hash chain over all that was applied: no two histories share one."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        self.index, self.chain = 0, GENESIS
        self.leadership = Leadership()
        self.pieces: list[bytes] | None = None

    def apply(self, entry: CommittedEntry) -> None:
        assert self.pieces is None, "an entry was applied in the middle of a snapshot"
        self.world.invariants.applying(self.node_id, self, entry)
        self.index, self.chain = entry.index, link_hash(self.chain, entry.index, entry.data)

    def leadership_changed(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.world.invariants.leadership(self.node_id, self, leadership)

    def snapshot_pieces(self) -> Iterator[bytes]:
        state = struct.pack("<Q", self.index) + self.chain
        return iter([state[:5], state[5:11], b"", state[11:]])

    def restore_begin(self) -> None:
        self.pieces = []

    def restore_piece(self, piece: bytes) -> None:
        assert self.pieces is not None, "a snapshot has begun"
        self.pieces.append(piece)

    def restore_end(self, position: LogPosition) -> None:
        assert self.pieces is not None, "a snapshot has begun"
        state = b"".join(self.pieces)
        self.pieces = None
        index = struct.unpack("<Q", state[:8])[0] if len(state) == 16 else -1
        if not self.index <= index <= position.index:
            raise SnapshotInvalidError(f"a state of {len(state)} bytes and index {index} is none after {self.index}")
        self.index, self.chain = index, state[8:]
        self.world.invariants.restored(self.node_id, self, position)


@dataclass
class Link:
    """How messages travel one way between two nodes."""

    delay: tuple[float, float] = (0.3, 3.0)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    cut: bool = False
    last_arrival: float = 0.0


@dataclass
class Member:
    """One machine and the process on it, if it runs."""

    node_id: int
    disk: VirtualDisk
    rate: float = 1.0
    life: int = 0
    node: RaftNode | None = None
    node_disk: NodeDisk | None = None
    machine: ChainMachine | None = None
    syncing: bool = False
    job: Job | None = None
    crash_with_power: bool = False
    wakeup: float = float("inf")
    joins: bool = False
    sync_delay: tuple[float, float] = (0.1, 2.0)
    disks: int = 1
    """Disks that this machine has had, with the one that it has now."""
    begun: bool = False
    """Whether there has been a log on its disk, as ``meta.properties`` of a controller states."""
    lost: str = ""
    """The loss of its disk, until the machine is a voter again; empty without a loss."""
    refuses: bool = False
    """Whether it does not start, because it has found out."""

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self.node is not None

    @property
    def live_node(self) -> RaftNode:
        """The node of the process, which must run."""
        assert self.node is not None, f"node {self.node_id} runs"
        return self.node

    @property
    def live_machine(self) -> ChainMachine:
        """The state machine of the process, which must have been started."""
        assert self.machine is not None, f"node {self.node_id} was started"
        return self.machine

    @property
    def directory_id(self) -> UUID:
        return UUID(int=1_000 * self.disks + self.node_id)


class World:
    """See the module."""

    STEPS_MAX = 400_000
    """A run that takes more is busy for nothing."""

    def __init__(
        self,
        seed: int,
        *,
        voters: int = 3,
        spares: int = 0,
        timing: ElectionTiming | None = None,
        limits: LogLimits | None = None,
        engine: Callable[..., Any] = RaftNode,
        verbose: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.engine = engine
        self.verbose = verbose
        self.lines: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.sequence = 0
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.timing = timing or ElectionTiming(
            election_timeout_ms_min=150, election_timeout_ms_max=300, heartbeat_interval_ms=40, refused_grace_ms=30
        )
        self.limits = limits or LogLimits()
        self.voters = {number: (f"host-{number}", 9093) for number in range(1, voters + 1)}
        self.members: dict[int, Member] = {}
        for number in range(1, voters + spares + 1):
            disk = VirtualDisk(f"disk-{number}", random.Random(self.random.getrandbits(64)), NoTrace(), DiskProfile())
            self.members[number] = Member(number, disk, joins=number > voters)
        self.links = {(a, b): Link() for a in self.members for b in self.members if a != b}
        self.invariants = RaftInvariants(self)
        self.acknowledged: dict[bytes, int] = {}  # value -> index
        self.proposed = 0

    # --- events

    def at(self, delay: float, action: Callable[..., object], *arguments: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (self.now + delay, self.sequence, action, arguments))

    def run_until(self, end: float) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(self.events)
            self.steps += 1
            assert self.steps <= self.STEPS_MAX, f"more than {self.STEPS_MAX} steps: nodes are busy for nothing"
            action(*arguments)
        self.now = max(self.now, end)

    def log(self, kind: str, *fields: object) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        line = f"{self.now:10.3f} {kind:<12} {' '.join(str(item) for item in fields)}"
        self.digest.update(line.encode())
        if self.verbose:
            self.lines.append(line)

    def endpoint(self, number: int) -> VoterEndpoint:
        return VoterEndpoint(voter_id=number, host=f"host-{number}", port=9093)

    # --- processes

    def start(self, number: int) -> None:
        member = self.members[number]
        assert member.node is None, "it runs already"
        member.life += 1
        member.node_disk = NodeDisk(member.disk)
        member.machine = ChainMachine(self, number)
        member.syncing, member.job, member.wakeup = False, None, float("inf")
        config = MetadataLogConfig(
            node_id=number,
            directory="/data/metadata",
            voters=self.voters,
            timing=self.timing,
            limits=self.limits,
            joins=member.joins,
            directory_id=member.directory_id,
            log_exists=member.begun,
        )
        seed = self.random.getrandbits(64)
        self.log("start", number, member.life)

        def begin() -> None:
            try:
                member.node = self.engine(
                    member.node_disk, config, member.machine, seed=seed, now_ms=self.local_ms(member)
                )
            except LogDamagedError:
                if not member.lost:
                    raise
                self.log("refuses", number)
                member.refuses = True
                self.stop(member)
                return
            if member.lost not in ("", "replaced"):
                raise Violation(self, "lost-log-accepted", f"node {number} starts though its log was {member.lost}")
            member.begun = True
            job = member.live_node.restore_job()
            if job is not None:
                while job.step():
                    pass
                job.finish()
            self.invariants.started(member)

        self.guard(member, begin)

    def local_ms(self, member: Member) -> float:
        return self.now * member.rate

    def guard(self, member: Member, action: Callable[..., object], *arguments: Any) -> None:
        """Runs code of a node; a crash in the middle of it ends the process."""
        if member.node is None and member.node_disk is None:
            return
        try:
            action(*arguments)
            if member.node is not None:
                self.pump(member)
        except SimulatedCrash:
            self.crash(member.node_id, power_loss=member.crash_with_power)

    def crash(self, number: int, *, power_loss: bool) -> None:
        member = self.members[number]
        self.log("crash", number, "power" if power_loss else "kill")
        self.stop(member)
        if power_loss:
            member.disk.lose_power()

    def stop(self, member: Member) -> None:
        if member.node_disk is not None:
            member.node_disk.freeze()
        member.node, member.node_disk, member.job = None, None, None
        member.life += 1
        self.invariants.stopped(member)

    def lose_disk(self, number: int, how: str) -> None:
        """Something becomes of the disk of a member that has just been killed: what it had promised is gone."""
        member = self.members[number]
        disk = NodeDisk(member.disk)
        paths = [path for path in member.disk.files("/data/metadata") if path.endswith(".wal")]
        if not paths or not member.begun or not newest_mark(disk, paths[-1]):
            return
        self.log("lost-disk", number, how)
        member.lost = how
        if how == "emptied":
            self.new_disk(member)
        elif how == "log-removed":
            for path in paths:
                disk.remove(path)
        elif how == "last-removed" and len(paths) > 1:
            disk.remove(paths[-1])
        else:
            file = disk.open(paths[-1], OpenMode.WRITE)
            # Less than a sync at the next start would have made durable: what is cut must have been promised.
            file.truncate(self.random.randrange(newest_mark(disk, paths[-1])))
            file.close()

    def new_disk(self, member: Member) -> None:
        """A disk without anything, which gets a directory id of its own."""
        member.disk.replace(["/data"])
        member.disks += 1
        member.begun = member.refuses = False
        member.lost = "replaced"
        self.invariants.replaced(member)

    def operate(self) -> None:
        """An operator lets a new voter take the place of one that has lost its disk, a step at a time."""
        for member in self.members.values():
            active = self.active()
            if not member.lost or not active:
                continue
            if member.refuses:
                self.new_disk(member)
                self.start(member.node_id)
            if member.lost != "replaced" or member.node is None:
                continue
            leader, number = active[0], member.node_id
            configuration = leader.live_node.core.configuration
            known = configuration.member(number)
            if known is not None and known.directory_id != member.directory_id:
                self.change(leader, configuration.without(number))
            elif known is None:
                endpoint = replace(self.endpoint(number), directory_id=member.directory_id)
                self.change(leader, configuration.with_learner(endpoint))
            elif number in configuration.voters:
                if leader.live_node.core.commit_index >= leader.live_node.core.configuration_index:
                    member.lost = ""
            else:
                role = leader.live_node.core.leader
                progress = None if role is None else role.progress.get(number)
                if progress is not None and progress.answered and progress.match >= leader.live_node.core.commit_index:
                    self.change(leader, configuration.with_voter(number))

    def arm_crash(self, number: int, writes: int, *, power_loss: bool) -> None:
        """Kills the node at the ``writes``-th change of its disk from now."""
        member = self.members[number]
        if member.node_disk is None:
            return

        def strike() -> None:
            raise SimulatedCrash

        member.crash_with_power = power_loss
        member.node_disk.crash_after_writes(writes, strike)

    # --- running a node

    def pump(self, member: Member) -> None:
        node = member.live_node
        node.process()
        self.dispatch(member)
        if not member.syncing:
            work = node.begin_sync()
            if work is not None:
                member.syncing = True
                self.at(self.random.uniform(*member.sync_delay), self.finish_sync, member, member.life, work)
        if member.job is None and node.has_job:
            member.job = node.take_job()
            self.at(self.random.uniform(0.1, 5.0), self.step_job, member, member.life)
        deadline = max(node.core.next_deadline_ms() / member.rate, self.now + 0.5)
        if deadline < member.wakeup or member.wakeup <= self.now:
            member.wakeup = deadline
            self.at(deadline - self.now, self.tick, member, member.life, deadline)
        self.invariants.check(member)

    def dispatch(self, member: Member) -> None:
        for recipient, body in member.live_node.take_outbox():
            self.invariants.sending(member, recipient, body)
            link = self.links.get((member.node_id, recipient))
            if link is None:
                continue
            self.transmit(link, member.node_id, recipient, body)
            if link.duplication and self.random.random() < link.duplication:
                self.transmit(link, member.node_id, recipient, body, extra=self.random.uniform(0, 200))

    def transmit(self, link: Link, sender: int, recipient: int, body: bytes, extra: float = 0.0) -> None:
        if link.cut or (link.loss and self.random.random() < link.loss):
            return
        arrival = self.now + self.random.uniform(*link.delay) + extra
        if link.reordering and self.random.random() < link.reordering:
            arrival += self.random.uniform(0, 100)
        elif not extra:
            arrival = max(arrival, link.last_arrival)
            link.last_arrival = arrival
        self.at(arrival - self.now, self.deliver, sender, recipient, body)

    def deliver(self, sender: int, recipient: int, body: bytes) -> None:
        member = self.members[recipient]
        if member.node is None or self.links[sender, recipient].cut:
            return
        if self.verbose and self.engine is RaftNode:
            message = message_in(body)
            shown: object = message
            if isinstance(message, AppendRequest):
                shown = replace(message, entries=tuple(entry[:3] for entry in message.entries))  # type: ignore[misc]
            self.log("message", f"{sender}->{recipient}", shown)
        else:
            self.log("message", sender, recipient, hashlib.blake2b(body, digest_size=6).hexdigest())
        self.invariants.delivering(member, body)
        self.guard(member, self.receive, member, body)

    def receive(self, member: Member, body: bytes) -> None:
        library: Any = member.node
        if not hasattr(library, "prepare"):  # the unmodified library, which accepts every message
            library.receive(body, self.local_ms(member))
            return
        envelope, payload_format, payload = unseal(body)
        try:
            member.live_node.prepare(envelope, payload_format, payload)(self.local_ms(member))
        except WrongDirectoryError as error:
            self.log("stranger", envelope.sender, envelope.recipient)
            if not any(self.members[number].disks > 1 for number in (envelope.sender, envelope.recipient)):
                raise Violation(self, "refused", f"node {member.node_id} mistakes a member: {error}") from error
        except MessageError as error:
            raise Violation(self, "refused", f"node {member.node_id} refuses what a member sent: {error}") from error

    def tick(self, member: Member, life: int, deadline: float) -> None:
        if member.life != life or member.wakeup != deadline or member.node is None:
            return
        member.wakeup = float("inf")
        self.guard(member, member.live_node.tick, self.local_ms(member))

    def finish_sync(self, member: Member, life: int, work: SyncWork) -> None:
        if member.life != life or member.node is None:
            return

        def finish() -> None:
            work.run()
            member.syncing = False
            member.live_node.sync_done(work)

        self.guard(member, finish)

    def step_job(self, member: Member, life: int) -> None:
        if member.life != life or member.node is None:
            return

        def step() -> None:
            job = member.job
            assert job is not None, "a job was taken"
            if job.step():
                self.at(self.random.uniform(0.1, 5.0), self.step_job, member, life)
                return
            work = job.blocking_work()
            if work is not None:
                work()
            job.finish()
            member.job = None

        self.guard(member, step)

    # --- clients

    def running(self) -> list[Member]:
        return [member for _, member in sorted(self.members.items()) if member.node is not None]

    def active(self) -> list[Member]:
        return [member for member in self.running() if member.live_machine.leadership.active]

    def propose(self, member: Member, size: int = 8) -> None:
        """A client sends a new value to a node that takes itself for the active leader."""
        self.proposed += 1
        value = struct.pack("<Q", self.proposed) + bytes(size)
        holder: list[Pending] = []

        def notify() -> None:
            pending = holder[0]
            if pending.error is None:
                self.log("acknowledge", member.node_id, pending.position.index)
                self.acknowledged[value] = pending.position.index
                self.invariants.acknowledged(member, pending.position, value)

        def propose() -> None:
            try:
                holder.append(
                    member.live_node.propose(value, epoch=member.live_machine.leadership.epoch, notify=notify)
                )
            except MetadataLogError:
                self.log("refused", member.node_id)

        self.guard(member, propose)

    def read(self, member: Member) -> None:
        """A linearizable read: when it ends, the node must have applied all that was committed when it began."""
        floor = self.invariants.committed_index
        holder: list[Pending] = []

        def notify() -> None:
            if holder[0].error is None:
                self.log("read", member.node_id, floor)
                self.invariants.read_done(member, floor)

        def read() -> None:
            try:
                holder.append(member.live_node.read(notify))
            except MetadataLogError:
                self.log("read-refused", member.node_id)

        self.guard(member, read)

    def change(self, member: Member, configuration: Configuration) -> None:
        def change() -> None:
            try:
                member.live_node.change_configuration(configuration, notify=lambda: None)
                self.log("membership", member.node_id, sorted(configuration.voters), sorted(configuration.learners))
            except MetadataLogError:
                self.log("membership-refused", member.node_id)

        self.guard(member, change)

    # --- judging

    def heal(self) -> None:
        for link in self.links.values():
            link.loss = link.duplication = link.reordering = 0.0
            link.cut = False
            link.delay = (0.3, 3.0)
        for member in self.members.values():
            member.rate = member.rate  # clocks go on drifting: liveness must not hang on them
            member.sync_delay = (0.1, 2.0)

    def converge(self, milliseconds: float = 20_000) -> float:
        """After all faults: everything must come together within a bounded time. Returns how long it took."""
        self.heal()
        begin = self.now
        for member in self.members.values():
            if member.node is None and not member.refuses:
                self.start(member.node_id)
        while self.now - begin < milliseconds:
            for member in self.members.values():
                if member.node is None and not member.refuses:  # an armed crash took effect
                    self.start(member.node_id)
            self.run_until(self.now + 50)
            self.operate()
            if self.settled():
                return self.now - begin
            for member in self.active()[:1]:
                self.propose(member)
        raise Violation(self, "stuck", "the members did not come together after all faults were healed")

    def settled(self) -> bool:
        active = self.active()
        if len(active) != 1:
            return False
        leader = active[0]
        members = [self.members[member.voter_id] for member in leader.live_node.core.configuration.members()]
        index = self.invariants.committed_index
        if any(member.lost for member in self.members.values()):
            return False
        return (
            max(self.acknowledged.values(), default=0) > 0
            and leader.live_node.applied_index == index == leader.live_node.core.log.last_index
            and all(member.node is not None and member.live_node.applied_index == index for member in members)
        )


MESSAGE_NAMES = [message_type.__name__ for message_type in MESSAGE_TYPES]
