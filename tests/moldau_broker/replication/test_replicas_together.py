"""Goal: replicas that obey their rules lose no acknowledged record, whatever the order of events.

Method: a Hypothesis state machine with three replicas (the real state machines, logs as lists), a small model of the
controller, metadata that reaches each broker late, and ISR changes whose answers get lost. After every step,
acknowledged records are in the log of every committed in-sync replica, logs agree below their high watermarks, and
high watermarks do not decrease.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.replica import Applied, IsrProposal, PartitionState, Replica, ReplicaEffects
from support.proof import examples

BROKERS = (1, 2, 3)
LAG_MS = 100.0
MIN_ISR = 2


@dataclass
class Node:
    """The durable and the volatile state of a broker."""

    log: list[tuple[int, int]] = field(default_factory=list)  # (leader epoch, value)
    epochs: list[tuple[int, int]] = field(default_factory=list)  # (leader epoch, start offset), as begun or replicated
    high_watermark: int = 0
    alive: bool = True
    broker_epoch: int = 0
    replica: Replica | None = None
    seen: int = 0  # the number of metadata records that have arrived
    waiting: list[tuple[int, int, int]] = field(default_factory=list)  # (leader epoch, end offset, value) for acks=all

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if self.epochs and epoch == self.epochs[-1][0]:
            return epoch, len(self.log)
        floor = -1
        for known, start in self.epochs:
            if known > epoch:
                return (floor if floor >= 0 else epoch), start
            floor = known
        return -1, -1

    def assign(self, epoch: int, start: int) -> None:
        while self.epochs and (self.epochs[-1][0] >= epoch or self.epochs[-1][1] >= start):
            self.epochs.pop()
        self.epochs.append((epoch, start))

    def truncate(self, offset: int) -> None:
        del self.log[offset:]
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]


class ReplicasTogether(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.nodes = {broker_id: Node(broker_epoch=broker_id) for broker_id in BROKERS}
        self.next_broker_epoch = 10
        self.registered = {broker_id: broker_id for broker_id in BROKERS}  # unfenced brokers and their epochs
        self.metadata: list[tuple[PartitionState, dict[int, int]]] = []
        self.proposals: list[tuple[int, IsrProposal]] = []
        self.acknowledged: dict[int, int] = {}  # offset -> value
        self.next_value = 0
        self.marks: dict[tuple[int, int, int], int] = {}

    # --- the controller ---------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.commit(PartitionState(leader=1, leader_epoch=0, partition_epoch=0, replicas=BROKERS, isr=BROKERS))
        for broker_id in BROKERS:
            self.start(broker_id)

    @property
    def state(self) -> PartitionState:
        return self.metadata[-1][0]

    def commit(self, state: PartitionState) -> None:
        self.metadata.append((state, dict(self.registered)))

    def elect(self, isr: tuple[int, ...], leader: int) -> None:
        """Commits a change; elects a new leader from the live in-sync replicas."""
        before = self.state
        if leader not in isr or leader not in self.registered:
            leader = next((broker_id for broker_id in isr if broker_id in self.registered), -1)
        self.commit(
            replace(
                before,
                leader=leader,
                leader_epoch=before.leader_epoch + (leader != before.leader),
                partition_epoch=before.partition_epoch + 1,
                isr=isr,
            )
        )

    @rule(broker_id=st.sampled_from(BROKERS))
    def fence(self, broker_id: int) -> None:
        """Ends the session of a broker, dead or not: it leaves the ISR unless it is the last member."""
        if broker_id not in self.registered:
            return
        del self.registered[broker_id]
        isr = tuple(member for member in self.state.isr if member != broker_id) or self.state.isr
        self.elect(isr, self.state.leader)

    @rule(broker_id=st.sampled_from(BROKERS))
    def register(self, broker_id: int) -> None:
        """Registers a live, fenced broker under a new epoch."""
        node = self.nodes[broker_id]
        if not node.alive or broker_id in self.registered:
            return
        self.next_broker_epoch += 1
        node.broker_epoch = self.next_broker_epoch
        self.registered[broker_id] = node.broker_epoch
        self.elect(self.state.isr, self.state.leader)

    @precondition(lambda self: self.proposals)
    @rule(index=st.integers(0, 5), answered=st.booleans())
    def decide(self, index: int, answered: bool) -> None:
        """Delivers a proposal to the controller; a lost answer makes the leader repeat it."""
        position = index % len(self.proposals)
        broker_id, proposal = self.proposals.pop(position)
        state = self.state
        if (state.leader, state.leader_epoch) != (broker_id, proposal.leader_epoch):
            error = ErrorCode.FENCED_LEADER_EPOCH
        elif state.partition_epoch != proposal.partition_epoch:
            error = ErrorCode.INVALID_UPDATE_VERSION
        elif any(
            self.registered.get(member) != epoch
            for member, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
        ):
            error = ErrorCode.INELIGIBLE_REPLICA
            self.commit(replace(state, partition_epoch=state.partition_epoch + 1))
        else:
            error = ErrorCode.NONE
            self.commit(replace(state, isr=proposal.isr, partition_epoch=state.partition_epoch + 1))
        node = self.nodes[broker_id]
        if not node.alive or node.replica is None:
            return
        if not answered:
            if node.replica.proposal is proposal:
                self.proposals.append((broker_id, proposal))
            return
        self.perform(broker_id, node.replica.alter_answered(proposal, error, self.now, self.eligible(node)))

    # --- the brokers ------------------------------------------------------------------------------------------------

    def eligible(self, node: Node) -> dict[int, int]:
        return self.metadata[node.seen - 1][1] if node.seen else {}

    def start(self, broker_id: int) -> None:
        node = self.nodes[broker_id]
        node.replica = Replica(
            broker_id,
            high_watermark=node.high_watermark,
            log_end_offset=len(node.log),
            lag_time_max_ms=LAG_MS,
            min_insync_replicas=MIN_ISR,
        )
        node.seen = len(self.metadata) - 1
        self.hear(broker_id)

    @rule(broker_id=st.sampled_from(BROKERS))
    def hear(self, broker_id: int) -> None:
        """Delivers the next committed metadata record to a broker."""
        node = self.nodes[broker_id]
        if not node.alive or node.replica is None or node.seen >= len(self.metadata):
            return
        state = self.metadata[node.seen][0]
        node.seen += 1
        applied = node.replica.apply(state, len(node.log), self.now)
        if applied is Applied.LEADER:
            node.assign(state.leader_epoch, len(node.log))
        self.perform(broker_id, node.replica.reconsider(self.now, self.eligible(node)))

    @rule(broker_id=st.sampled_from(BROKERS))
    def crash(self, broker_id: int) -> None:
        """Kills a process; its log stays, and its checkpointed high watermark may be old."""
        node = self.nodes[broker_id]
        if node.alive and sum(other.alive for other in self.nodes.values()) > 1:
            node.alive = False
            node.replica = None
            node.waiting = []

    @rule(broker_id=st.sampled_from(BROKERS))
    def restart(self, broker_id: int) -> None:
        """Restarts a broker; it registers, which removes it from the ISR, before it serves."""
        node = self.nodes[broker_id]
        if node.alive:
            return
        node.alive = True
        self.fence(broker_id)
        self.register(broker_id)
        self.start(broker_id)

    @rule(milliseconds=st.sampled_from([1, 60, 150]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        for broker_id, node in self.nodes.items():
            if node.alive and node.replica is not None:
                self.perform(broker_id, node.replica.tick(self.now, self.eligible(node)))

    @rule(broker_id=st.sampled_from(BROKERS), count=st.integers(1, 3))
    def produce(self, broker_id: int, count: int) -> None:
        """Sends a record with acks=all to a broker that acts as leader."""
        node = self.nodes[broker_id]
        replica = node.replica
        if not node.alive or replica is None or replica.check_append(-1) is not ErrorCode.NONE:
            return
        epoch = replica.state.leader_epoch
        for _ in range(count):
            node.log.append((epoch, self.next_value))
            node.waiting.append((epoch, len(node.log), self.next_value))
            self.next_value += 1
        self.perform(broker_id, replica.log_end_moved(len(node.log), self.now, self.eligible(node)))

    @rule(broker_id=st.sampled_from(BROKERS), records=st.integers(0, 3))
    def fetch(self, broker_id: int, records: int) -> None:
        """Fetches from the broker that the follower's metadata name as leader."""
        node = self.nodes[broker_id]
        follower = node.replica
        if not node.alive or follower is None or follower.is_leader or follower.state.leader not in self.nodes:
            return
        source_id = follower.state.leader
        source = self.nodes[source_id]
        leader = source.replica
        if not source.alive or leader is None:
            return
        if leader.check_access(follower.state.leader_epoch, leader_only=True) is not ErrorCode.NONE:
            return
        offset = len(node.log)
        last_epoch = node.epochs[-1][0] if node.epochs else -1
        if last_epoch >= 0:
            epoch, end = source.end_offset_for_epoch(last_epoch)
            assert end >= 0, "a leader has an epoch that is not older than any follower's"
            if epoch < last_epoch or end < offset:
                _, local_end = node.end_offset_for_epoch(epoch)
                target = min(end, local_end) if local_end >= 0 else end
                node.truncate(min(target, len(node.log)))
                follower.truncated(len(node.log))
                return
        effects = leader.followed(broker_id, node.broker_epoch, offset, 0, self.now, self.eligible(source))
        if effects.error is not ErrorCode.NONE:
            return
        self.perform(source_id, effects)
        for epoch, value in source.log[offset : offset + records]:
            if not node.epochs or epoch > node.epochs[-1][0]:
                node.assign(epoch, len(node.log))
            node.log.append((epoch, value))
        follower.log_end_moved(len(node.log), self.now, self.eligible(node))
        follower.leader_high_watermark(leader.high_watermark)
        node.high_watermark = follower.high_watermark

    @rule(absent=st.sampled_from((0, *BROKERS)), commit=st.booleans())
    def settle(self, absent: int, commit: bool) -> None:
        """Brings all brokers but one up to date, which leads to states close to failures."""
        for _ in range(4):
            for broker_id, node in self.nodes.items():
                while broker_id != absent and node.alive and node.seen < len(self.metadata):
                    self.hear(broker_id)
            for broker_id in BROKERS:
                if broker_id != absent:
                    self.fetch(broker_id, 100)
            while commit and self.proposals:
                self.decide(0, True)

    def perform(self, broker_id: int, effects: ReplicaEffects) -> None:
        node = self.nodes[broker_id]
        replica = node.replica
        assert replica is not None
        if effects.proposal is not None and all(known is not effects.proposal for _, known in self.proposals):
            self.proposals.append((broker_id, effects.proposal))
        still: list[tuple[int, int, int]] = []
        for epoch, end, value in node.waiting:
            verdict = replica.acknowledgement(epoch, end)
            if verdict is ErrorCode.NONE:
                self.acknowledged[end - 1] = value
            elif verdict is None:
                still.append((epoch, end, value))
        node.waiting = still
        if replica.is_leader:
            node.high_watermark = replica.high_watermark

    # --- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def acknowledged_records_are_on_every_in_sync_replica(self) -> None:
        if not self.metadata:
            return
        for broker_id in self.state.isr:
            log = self.nodes[broker_id].log
            for offset, value in self.acknowledged.items():
                assert offset < len(log), f"offset {offset} is missing on {broker_id}"
                assert log[offset][1] == value, f"offset {offset} differs on {broker_id}"

    @invariant()
    def logs_agree_below_their_high_watermarks(self) -> None:
        for one in self.nodes.values():
            for other in self.nodes.values():
                common = min(one.high_watermark, other.high_watermark)
                assert one.log[:common] == other.log[:common]

    @invariant()
    def high_watermarks_do_not_fall(self) -> None:
        for broker_id, node in self.nodes.items():
            if node.replica is None:
                continue
            key = (broker_id, node.broker_epoch, node.replica.state.leader_epoch)
            assert node.replica.high_watermark >= self.marks.get(key, 0)
            assert node.replica.high_watermark <= len(node.log)
            if node.replica.is_leader:
                self.marks[key] = node.replica.high_watermark


TestReplicasTogether = ReplicasTogether.TestCase
TestReplicasTogether.settings = settings(max_examples=examples(150), stateful_step_count=60, deadline=None)
