"""Invariants that hold after every single step of any run (Raft figure 3, and Moldau's own).

election safety        at most one leader in an epoch
log matching           an entry with the same index and epoch is the same entry, with the same entry before it
leader completeness    a new leader holds all that was committed in earlier epochs
state machine safety   all nodes commit and apply the same entry at an index, in order, each once
durable votes          in an epoch a node votes for one candidate, across all its lives
durable epochs         the epoch of a node does not fall while it lives
pre-vote               no node enters an epoch of its own accord before others agreed
reads                  a linearizable read sees all that was committed when it began
acknowledgements       an acknowledged value stands in the committed log where it was acknowledged, for good
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from moldau_quorum.log.raft.core.messages import TimeoutNow, VoteRequest, VoteResponse, decode_payload
from moldau_quorum.log.raft.core.types import EntryKind
from moldau_quorum.log.raft.envelope import unseal

if TYPE_CHECKING:
    from moldau_quorum.log.port import CommittedEntry, Leadership, LogPosition
    from moldau_quorum.log.raft.core.raft_core import RaftCore
    from support.raft.world import ChainMachine, Member, World

GENESIS = bytes(8)

NOTHING: tuple[int, int, bytes] = (-1, EntryKind.NOOP, b"")
"""Stands at index 0, where no entry is."""


class Violation(AssertionError):
    """An invariant does not hold; ``rule`` is its name, as above with hyphens."""

    def __init__(self, world: World, rule: str, text: str) -> None:
        self.rule = rule
        super().__init__(f"at {world.now:.3f} ms, step {world.steps}: {rule}: {text}")


class RaftInvariants:
    """Watches a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leaders: dict[int, int] = {}  # epoch -> node
        self.votes: dict[tuple[int, int], int] = {}  # (node, epoch) -> candidate
        self.entries: dict[
            tuple[int, int], tuple[int, bytes, int | None]
        ] = {}  # (index, epoch) -> (kind, data, epoch of the entry before)
        self.committed = [NOTHING]  # index -> (epoch, kind, data)
        self.committed_in = [0]  # index -> epoch of the node that first knew it to be committed
        self.chains = [GENESIS]  # index -> state of the machine after it
        self.applied: dict[int, int] = {}  # node -> last applied index in this life
        self.commits: dict[int, int] = {}  # node -> commit index in this life
        self.checked: dict[int, tuple[int, int]] = {}  # node -> (last index, last epoch) of the log when last looked at
        self.epochs: dict[int, int] = {}
        self.agreed: dict[
            int, dict[int | str, bool]
        ] = {}  # node -> voters that agreed to an election of it, since its last epoch
        self.leading: dict[int, int] = {}
        self.keeps_commit_index = getattr(world.engine, "keeps_commit_index", True)
        self.has_pre_vote = getattr(world.engine, "has_pre_vote", True)

    def fail(self, rule: str, text: str) -> NoReturn:
        raise Violation(self.world, rule, text)

    @property
    def committed_index(self) -> int:
        return len(self.committed) - 1

    # --- lives

    def started(self, member: Member) -> None:
        number = member.node_id
        self.applied[number] = member.live_node.applied_index
        self.commits[number] = 0
        self.checked.pop(number, None)
        self.leading.pop(number, None)
        epoch = member.live_node.core.epoch
        self.epochs[number] = epoch
        self.agreed[number] = {}
        for (node, at), candidate in self.votes.items():
            if node == number and at > epoch:
                self.fail(
                    "durable-votes",
                    f"node {number} has voted for {candidate} in epoch {at}, but came back in epoch {epoch}",
                )
            if node == number and at == epoch and member.live_node.core.hard_state.voted_for != candidate:
                self.fail(
                    "durable-votes",
                    f"node {number} has voted for {candidate} in epoch {at}, and does not know it any more",
                )

    def stopped(self, member: Member) -> None:
        self.leading.pop(member.node_id, None)

    # --- messages

    def sending(self, member: Member, recipient: int, body: bytes) -> None:
        inspect = getattr(self.world.engine, "vote_in", None)
        if inspect is not None:
            vote = inspect(member.node_id, recipient, body)
            if vote is not None:
                self.vote(member.node_id, *vote)
            return
        message = decode_payload(unseal(body)[2])
        if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
            self.vote(member.node_id, message.epoch, recipient)
        elif isinstance(message, VoteRequest) and not message.pre_vote:
            self.vote(member.node_id, message.epoch, member.node_id)

    def vote(self, node: int, epoch: int, candidate: int) -> None:
        before = self.votes.setdefault((node, epoch), candidate)
        if before != candidate:
            self.fail(
                "durable-votes", f"node {node} votes for {candidate} in epoch {epoch}, after it voted for {before}"
            )

    def delivering(self, member: Member, body: bytes) -> None:
        if not self.has_pre_vote:
            return
        envelope, _, payload = unseal(body)
        sender, message = envelope.sender, decode_payload(payload)
        if isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            self.agreed[member.node_id][sender] = True
        elif isinstance(message, TimeoutNow):
            self.agreed[member.node_id]["leader"] = True

    def replaced(self, member: Member) -> None:
        """Handles an empty disk: the node that runs there now has made no promise yet."""
        number = member.node_id
        self.votes = {key: candidate for key, candidate in self.votes.items() if key[0] != number}
        for known in (self.epochs, self.commits):
            known[number] = 0
        self.checked.pop(number, None)
        self.agreed[number] = {}

    # --- nodes

    def check(self, member: Member) -> None:
        core = member.live_node.core
        self.check_epoch(member, core)
        self.check_log(member, core)
        self.check_commit(member, core)
        if self.keeps_commit_index and core.applied_index > core.commit_index and core.installing is None:
            self.fail(
                "state-machine-safety",
                f"node {member.node_id} applied {core.applied_index}, but committed {core.commit_index}",
            )
        leader = core.leader
        if leader is not None and self.leading.get(member.node_id) != core.epoch:
            self.leading[member.node_id] = core.epoch
            self.new_leader(member, core)

    def check_epoch(self, member: Member, core: RaftCore) -> None:
        number = member.node_id
        if core.epoch < self.epochs[number]:
            self.fail("durable-epochs", f"the epoch of node {number} fell from {self.epochs[number]} to {core.epoch}")
        if core.epoch > self.epochs[number]:
            own = core.hard_state.voted_for == number
            if self.has_pre_vote and own and not self.agreed[number] and core.configuration.quorum > 1:
                self.fail(
                    "pre-vote", f"node {number} entered epoch {core.epoch} though no node had agreed to an election"
                )
            self.epochs[number] = core.epoch
            self.agreed[number] = {}

    def check_log(self, member: Member, core: RaftCore) -> None:
        log = core.log
        end = (log.last_index, log.last_epoch)
        before = self.checked.get(member.node_id)
        if end == before:
            return
        self.checked[member.node_id] = end
        start = max(log.base_index, min(core.applied_index, log.last_index))
        previous = log.epoch_at(start)
        for index in range(start + 1, log.last_index + 1):
            entry = log.entry(index)
            known = self.entries.setdefault((index, entry.epoch), (entry.kind, entry.data, previous))
            if known != (entry.kind, entry.data, previous):
                self.fail(
                    "log-matching", f"node {member.node_id} holds {entry[:3]} after epoch {previous}, not {known}"
                )
            previous = entry.epoch

    def check_commit(self, member: Member, core: RaftCore) -> None:
        number = member.node_id
        if self.keeps_commit_index and core.commit_index < self.commits[number]:
            self.fail(
                "state-machine-safety",
                f"the commit index of node {number} fell to {core.commit_index} from {self.commits[number]}",
            )
        for index in range(max(self.commits[number], core.log.base_index) + 1, core.commit_index + 1):
            entry = core.log.entry(index)
            found = (entry.epoch, entry.kind, entry.data)
            if index < len(self.committed):
                if self.committed[index] != found:
                    self.fail(
                        "state-machine-safety",
                        f"node {number} commits {found} at {index}, where {self.committed[index]} is committed",
                    )
                continue
            if index != len(self.committed):
                self.fail(
                    "state-machine-safety",
                    f"node {number} commits {index}, but no node knew {len(self.committed)} to be committed",
                )
            self.committed.append(found)
            self.committed_in.append(core.epoch)
            chain = self.chains[-1]
            if entry.kind == EntryKind.DATA:
                from support.raft.world import link_hash

                chain = link_hash(chain, index, entry.data)
            self.chains.append(chain)
        self.commits[number] = max(self.commits[number], core.commit_index)
        if core.commit_index >= len(self.committed):
            self.fail("state-machine-safety", f"node {number} has commit index {core.commit_index} without the entries")

    def new_leader(self, member: Member, core: RaftCore) -> None:
        number = member.node_id
        before = self.leaders.setdefault(core.epoch, number)
        if before != number:
            self.fail("election-safety", f"nodes {before} and {number} both lead in epoch {core.epoch}")
        log = core.log
        for index in range(log.base_index + 1, len(self.committed)):
            if self.committed_in[index] < core.epoch and log.epoch_at(index) != self.committed[index][0]:
                self.fail(
                    "leader-completeness",
                    f"node {number} leads in epoch {core.epoch} with epoch {log.epoch_at(index)} at index {index}, "
                    f"where {self.committed[index]} is committed",
                )

    # --- state machines

    def applying(self, number: int, machine: ChainMachine, entry: CommittedEntry) -> None:
        if entry.index >= len(self.committed):
            # The step is not over: look at what the node has just committed.
            self.check_commit(self.world.members[number], self.world.members[number].live_node.core)
        if entry.index >= len(self.committed):
            self.fail("state-machine-safety", f"node {number} applies {entry.index}, which is not committed")
        if self.committed[entry.index] != (entry.epoch, EntryKind.DATA, entry.data):
            self.fail(
                "state-machine-safety",
                f"node {number} applies {entry} where {self.committed[entry.index]} is committed",
            )
        if entry.index <= machine.index:
            self.fail("state-machine-safety", f"node {number} applies {entry.index} after {machine.index}")
        if machine.chain != self.chains[entry.index - 1]:
            self.fail(
                "state-machine-safety",
                f"the state of node {number} before index {entry.index} is not that of the committed log",
            )

    def restored(self, number: int, machine: ChainMachine, position: LogPosition) -> None:
        if position.index >= len(self.committed):
            self.fail(
                "state-machine-safety", f"node {number} restores a snapshot of {position.index}, which is not committed"
            )
        if machine.chain != self.chains[position.index]:
            self.fail(
                "state-machine-safety",
                f"the snapshot of index {position.index} on node {number} is not the state at that index",
            )
        if position.epoch != self.committed[position.index][0]:
            self.fail(
                "state-machine-safety",
                f"the snapshot of index {position.index} on node {number} has epoch {position.epoch}",
            )

    def leadership(self, number: int, machine: ChainMachine, leadership: Leadership) -> None:
        if leadership.active:
            # It may decide: it must have applied all that was committed in earlier epochs.
            core = self.world.members[number].live_node.core
            floor = max(
                (index for index in range(1, len(self.committed)) if self.committed_in[index] < core.epoch), default=0
            )
            if machine.chain != self.chains[machine_position(self, machine, core)] or core.applied_index < floor:
                self.fail(
                    "leader-completeness",
                    f"node {number} is active in epoch {core.epoch} before it has applied {floor}",
                )

    # --- clients

    def acknowledged(self, member: Member, position: LogPosition, value: bytes) -> None:
        index = position.index
        if index >= len(self.committed) or self.committed[index][2] != value:
            self.fail(
                "acknowledgements", f"node {member.node_id} acknowledged a value at {index} that is not committed there"
            )

    def read_done(self, member: Member, floor: int) -> None:
        if member.live_node.applied_index < floor:
            self.fail(
                "reads",
                f"a read on node {member.node_id} saw index {member.live_node.applied_index}, "
                f"but {floor} was committed before it began",
            )

    def final(self) -> None:
        """After all: what was acknowledged is there, and all states are equal."""
        for value, index in self.world.acknowledged.items():
            if self.committed[index][2] != value:
                self.fail("acknowledgements", f"the value acknowledged at {index} is lost")
        for member in self.world.running():
            if member.live_machine.chain != self.chains[member.live_node.applied_index]:
                self.fail(
                    "state-machine-safety", f"the final state of node {member.node_id} is not that of the committed log"
                )


def machine_position(invariants: RaftInvariants, machine: ChainMachine, core: RaftCore) -> int:
    """The index whose state the machine should have: entries of the log itself do not change it."""
    return min(core.applied_index, len(invariants.chains) - 1)
