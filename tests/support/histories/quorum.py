"""A small quorum: three Raft cores whose disks forget what is not synced, and whose messages may come late.

An action is as large as a step of a story: a campaign among some nodes, a proposal, a replication. What happens within
it is the real cores' exchange of messages. Between actions all messages are lost, except those that an action holds.
Each node's disk is explicit: writes, and the part of them that is durable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_quorum.log.port import ElectionTiming, LogLimits
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from moldau_quorum.log.raft.core.raft_core import RaftCore
from moldau_quorum.log.raft.core.ready import Role
from moldau_quorum.log.raft.core.types import Entry, HardState, configuration_of
from moldau_quorum.log.raft.envelope import MessageError

if TYPE_CHECKING:
    from support.histories.explorer import Action

NODES = (1, 2, 3)
MEMBERSHIP = configuration_of({node: ("host", node) for node in NODES})
TIMING = ElectionTiming()
LIMITS = LogLimits()
MESSAGES_MAX = 60
"""Messages of one action; a healthy exchange needs far fewer."""


Sent = tuple[int, int, Message]
"""Sender, recipient and message."""


@dataclass
class Disk:
    """The writes of a node, and the part of them that survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    durable: tuple[HardState, tuple[Entry, ...]] = (HardState(), ())
    pending: list[tuple[int, HardState, tuple[Entry, ...]]] = field(default_factory=list)
    """The number of each write that is not synced, and the content of the disk after it."""

    def write(self, number: int, hard_state: HardState | None, entries: tuple[Entry, ...]) -> None:
        if hard_state is not None:
            self.hard_state = hard_state
        if entries:
            del self.entries[entries[0].index - 1 :]
            assert len(self.entries) == entries[0].index - 1, "a hole in a log"
            self.entries += entries
        content = (number, self.hard_state, tuple(self.entries))
        if (self.hard_state, tuple(self.entries)) == (self.pending[-1][1:] if self.pending else self.durable):
            self.pending[-1:] = [content]  # nothing to write: it needs no sync of its own
        else:
            self.pending.append(content)

    def sync(self) -> int:
        """Makes the oldest write durable, and returns its number."""
        number, hard_state, entries = self.pending.pop(0)
        self.durable = (hard_state, entries)
        return number


class Node:
    """A core with its disk. ``kept`` holds messages that wait for the disk."""

    def __init__(self, node_id: int, disk: Disk) -> None:
        self.node_id = node_id
        self.disk = disk
        disk.hard_state, entries = disk.durable
        disk.entries, disk.pending = list(entries), []
        self.core = RaftCore(
            node_id=node_id,
            timing=TIMING,
            limits=LIMITS,
            seed=node_id,
            now_ms=0.0,
            hard_state=disk.hard_state,
            log=EntryLog(entries=tuple(disk.entries)),
            snapshot=None,
            bootstrap=MEMBERSHIP,
        )
        self.kept: list[tuple[int, int, Message]] = []
        self.now = 0.0
        self.applied = 0

    def take(self, *, syncs: bool) -> list[tuple[int, Message]]:
        """Writes what is due, and returns what may be sent."""
        out: list[tuple[int, Message]] = []
        while self.core.has_ready:
            ready = self.core.take_ready()
            self.disk.write(ready.number, ready.hard_state, ready.entries)
            out += [(each.recipient, each.message) for each in ready.messages]
            self.kept += [(ready.number, each.recipient, each.message) for each in ready.messages_synced]
            for entry in ready.committed:
                assert entry.index == self.applied + 1, "entries are applied in order, once"
                self.applied = entry.index
            while syncs and self.disk.pending:
                out += self.sync()
        while syncs and self.disk.pending:
            out += self.sync()
        return out

    def sync(self) -> list[tuple[int, Message]]:
        """Makes the oldest write durable, and returns what waited for it."""
        number = self.disk.sync()
        out = [(recipient, message) for each, recipient, message in self.kept if each <= number]
        self.kept = [each for each in self.kept if each[0] > number]
        self.core.synced(number)
        return out

    def key(self) -> object:
        core = self.core
        leader = None
        if core.leader is not None:
            leader = tuple(
                (member, each.match, each.next, each.state, each.probe_sent, each.commit_sent)
                for member, each in sorted(core.leader.progress.items())
            )
        entries = tuple((entry.index, entry.epoch) for entry in self.disk.entries)
        log = tuple((core.log.entry(at).epoch) for at in range(1, core.log.last_index + 1))
        durable = (self.disk.durable[0], tuple(entry.epoch for entry in self.disk.durable[1]))
        return (
            *(core.role, core.hard_state, core.leader_id, core.commit_index, core.durable_index, self.applied),
            *(leader, log, entries, durable, tuple(message for _, _, message in self.kept)),
            tuple((state, tuple(entry.epoch for entry in held)) for _, state, held in self.disk.pending),
        )


class Quorum:
    """The world."""

    def __init__(self) -> None:
        self.nodes = {node: Node(node, Disk()) for node in NODES}
        self.held: list[Sent] = []
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.committed: list[tuple[int, bytes]] = []
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.proposals = 0
        self.crashes = 0

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        found += [("campaign", node, peer) for node in NODES for peer in NODES if peer != node]
        for node in self._leading():
            if self.proposals < 2:
                found.append(("propose", node))
                found.append(("propose_slowly", node))
            for peer in NODES:
                if peer != node:
                    found.append(("replicate", node, peer))
                    found.append(("write_only", node, peer))
                    found.append(("beat", node, peer))
                    if not self.held:
                        found.append(("hold", node, peer))
        if self.held:
            found.append(("arrive",))
        for node in NODES:
            if self.nodes[node].disk.pending:
                found.append(("sync", node))
            if self.crashes < 2:
                found.append(("crash", node))
        return found

    def campaign(self, node: int, peer: int) -> None:
        """An election in which only one peer takes part; no entry is replicated."""
        self.nodes[node].now += 10 * TIMING.election_timeout_ms_max
        self.nodes[node].core.tick(self.nodes[node].now)
        self._carry([], (node, peer), (VoteRequest, VoteResponse))

    def propose(self, node: int) -> None:
        """A leader appends an entry; nothing is sent."""
        self.proposals += 1
        self.nodes[node].core.propose(bytes((self.proposals,)))
        self.nodes[node].take(syncs=True)

    def propose_slowly(self, node: int) -> None:
        """As ``propose``, but the leader's disk does not sync yet."""
        self.proposals += 1
        self.nodes[node].core.propose(bytes((self.proposals,)))
        self.nodes[node].take(syncs=False)

    def replicate(self, node: int, peer: int) -> None:
        """A leader and one member exchange messages until both are at rest."""
        for _ in range(2):
            self._carry(self._heartbeat(node), (node, peer), (AppendRequest, AppendResponse))

    def write_only(self, node: int, peer: int) -> None:
        """A member takes requests of a leader, but its disk does not sync yet."""
        requests = [
            message
            for _, recipient, message in self._heartbeat(node)
            if recipient == peer and isinstance(message, AppendRequest)
        ]
        for message in sorted(requests, key=lambda each: not each.entries):
            self._receive(peer, node, message)
        for to, answer in self.nodes[peer].take(syncs=False):
            if to == node:
                self._receive(node, peer, answer)
        self.nodes[node].take(syncs=True)

    def beat(self, node: int, peer: int) -> None:
        """A heartbeat of a leader arrives and is answered; the entries that were sent with it are lost."""
        for _, recipient, message in self._heartbeat(node):
            if recipient == peer and isinstance(message, AppendRequest) and not message.entries:
                self._receive(peer, node, message)
        for to, answer in self.nodes[peer].take(syncs=True):
            if to == node:
                self._receive(node, peer, answer)
        self.nodes[node].take(syncs=True)

    def sync(self, node: int) -> None:
        """A disk syncs its oldest write, and the answers that waited for it reach their recipients."""
        for to, message in self.nodes[node].sync():
            self._receive(to, node, message)
            self.nodes[to].take(syncs=True)
        self.nodes[node].take(syncs=False)

    def hold(self, node: int, peer: int) -> None:
        """A request of a leader is held back in the network."""
        for _, recipient, message in self._heartbeat(node):
            if recipient == peer and isinstance(message, AppendRequest):
                self.held.append((node, peer, message))

    def arrive(self) -> None:
        """The request that was held back arrives, and is answered."""
        held, self.held = self.held, []
        for sender, recipient, message in held:
            self._receive(recipient, sender, message)
            for to, answer in self.nodes[recipient].take(syncs=True):
                if to == sender:
                    self._receive(sender, recipient, answer)
                    self.nodes[sender].take(syncs=True)

    def crash(self, node: int) -> None:
        """A machine loses power: what is not synced is gone."""
        self.crashes += 1
        self.nodes[node] = Node(node, self.nodes[node].disk)

    def settle(self) -> None:
        """All disturbances end: some node leads, and a new entry is committed everywhere."""
        for each in self.nodes.values():
            each.take(syncs=True)
        for _ in range(6):
            for node in NODES:
                self.nodes[node].now += 10 * TIMING.election_timeout_ms_max
                if not self._leading():
                    self.nodes[node].core.tick(self.nodes[node].now)
                self._carry(self._heartbeat(node), NODES, (object,))
            if len(self._leading()) == 1:
                break
        assert len(self._leading()) == 1, f"nodes {self._leading()} lead after all disturbances have ended"
        (leader,) = self._leading()
        entry = self.nodes[leader].core.propose(b"last")
        assert entry is not None
        for _ in range(3):
            self._carry(self._heartbeat(leader), NODES, (object,))
        for each in self.nodes.values():
            assert each.core.commit_index >= entry.index, f"node {each.node_id} does not learn of the last entry"
        self.check()

    # --- messages

    def _leading(self) -> list[int]:
        return [node for node in NODES if self.nodes[node].core.role is Role.LEADER]

    def _heartbeat(self, node: int) -> list[Sent]:
        """Lets a heartbeat interval pass for a leader, which has heard its majority; returns what it sends."""
        one = self.nodes[node]
        if one.core.leader is None:
            return []
        one.now = max(one.now, one.core.now_ms) + TIMING.heartbeat_interval_ms
        for each in one.core.leader.progress.values():
            each.last_seen_ms = one.now
        one.core.tick(one.now)
        return [(node, to, message) for to, message in one.take(syncs=True)]

    def _receive(self, recipient: int, sender: int, message: Message) -> None:
        node = self.nodes[recipient]
        try:
            node.core.receive(sender, message, node.now)
        except MessageError as error:
            raise AssertionError(f"node {recipient} refuses a message of node {sender}: {error}") from error

    def _carry(self, waiting: list[Sent], among: tuple[int, ...], kinds: tuple[type, ...]) -> None:
        carried = 0
        for node in among:
            waiting += [(node, to, message) for to, message in self.nodes[node].take(syncs=True)]
        while waiting:
            sender, recipient, message = waiting.pop(0)
            if recipient not in among or sender not in among or not isinstance(message, kinds):
                continue
            carried += 1
            assert carried <= MESSAGES_MAX, "two nodes exchange messages without an end"
            self._receive(recipient, sender, message)
            waiting += [(recipient, to, each) for to, each in self.nodes[recipient].take(syncs=True)]
            self._check_votes(self.nodes[recipient])
            self._check_role(self.nodes[recipient])

    # --- rules

    def key(self) -> object:
        return (
            tuple(self.nodes[node].key() for node in NODES),
            tuple(self.held),
            tuple(self.committed),
            self.proposals,
            self.crashes,
            tuple(sorted(self.votes.items())),
        )

    def check(self) -> None:
        for node in self.nodes.values():
            self._check_log(node)
            self._check_votes(node)
        for node in self.nodes.values():
            self._check_role(node)
            self._check_commit(node)

    def _check_log(self, node: Node) -> None:
        """Log matching: an entry has one content and one predecessor; the core and its disk agree."""
        before = 0
        log = node.core.log
        for index in range(1, log.last_index + 1):
            entry = log.entry(index)
            known = self.entries.setdefault((index, entry.epoch), (entry.data, before))
            assert known == (entry.data, before), f"entry {index} of epoch {entry.epoch} differs on node {node.node_id}"
            before = entry.epoch
        durable = node.disk.durable[1]
        assert node.core.durable_index <= len(durable), f"node {node.node_id} calls durable what is not"
        for index in range(1, node.core.durable_index + 1):
            assert durable[index - 1] == log.entry(index), f"node {node.node_id} calls entry {index} durable too early"

    def _check_votes(self, node: Node) -> None:
        state, _ = node.disk.durable
        if state.voted_for >= 0:
            known = self.votes.setdefault((node.node_id, state.epoch), state.voted_for)
            assert known == state.voted_for, f"node {node.node_id} votes twice in epoch {state.epoch}"

    def _check_role(self, node: Node) -> None:
        core = node.core
        if core.role is not Role.LEADER or core.leader is None:
            return
        votes = sum(self.votes.get((voter, core.epoch)) == node.node_id for voter in NODES)
        assert votes >= 2, f"node {node.node_id} leads epoch {core.epoch} with {votes} durable votes"
        known = self.leaders.setdefault(core.epoch, node.node_id)
        assert known == node.node_id, f"nodes {known} and {node.node_id} lead epoch {core.epoch}"
        if core.epoch == max(self.leaders):
            for index, (epoch, _) in enumerate(self.committed, 1):
                assert core.log.epoch_at(index) == epoch, f"leader {node.node_id} lacks committed entry {index}"
        for member, progress in core.leader.progress.items():
            durable = self.nodes[member].disk.durable[1]
            log = core.log
            agreed = 0
            while agreed < min(len(durable), log.last_index) and durable[agreed].epoch == log.entry(agreed + 1).epoch:
                agreed += 1
            newest = self.nodes[member].disk.durable[0].epoch == core.epoch
            assert not newest or progress.match <= agreed, f"leader {node.node_id} believes too much of node {member}"

    def _check_commit(self, node: Node) -> None:
        log = node.core.log
        for index in range(1, node.core.commit_index + 1):
            entry = log.entry(index)
            if index <= len(self.committed):
                assert self.committed[index - 1] == (entry.epoch, entry.data), f"two commits of entry {index}"
                continue
            holders = sum(
                len(each.disk.durable[1]) >= index and each.disk.durable[1][index - 1] == entry
                for each in self.nodes.values()
            )
            assert holders >= 2, f"entry {index} is committed, and durable on {holders} nodes"
            self.committed.append((entry.epoch, entry.data))


def led_quorum() -> Quorum:
    """Returns a quorum whose first node was elected by the second."""
    world = Quorum()
    world.campaign(1, 2)
    return world


def contested_quorum() -> Quorum:
    """Returns a quorum whose first node has not heard that the second one was elected after it."""
    world = led_quorum()
    world.campaign(2, 3)
    return world


def slow_quorum() -> Quorum:
    """Returns a quorum whose third node has not synced what the leader sent."""
    world = led_quorum()
    world.write_only(1, 3)
    return world


SCENES = (led_quorum, contested_quorum, slow_quorum)
