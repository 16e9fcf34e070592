"""A small partition: a leader with two followers, and a controller whose decisions reach the leader late.

``min.insync.replicas`` is 2. What the leader acknowledges must be in the log of each replica that the controller may
elect: the members of the committed ISR, and the eligible replicas (KIP-966), whether the leader knows of them or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.values import BrokerId, LeaderEpoch, Offset
from moldau_broker.replication.replica import IsrProposal, PartitionState, Replica, ReplicaEffects

if TYPE_CHECKING:
    from support.histories.explorer import Action

LEADER = BrokerId(1)
FOLLOWERS = (BrokerId(2), BrokerId(3))
LEADER_EPOCH = LeaderEpoch(4)
LAG_MS = 100.0
MIN_ISR = 2
RECORDS_MAX = 2
FENCINGS_MAX = 2
PAUSES_MAX = 3


class Partition:
    """The world."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), elr: tuple[int, ...] = (), ahead: int = 0) -> None:
        """Begins with a committed ISR and ELR; ``ahead`` is the number of records that only the leader holds."""
        self.now = 0.0
        self.isr = tuple(BrokerId(member) for member in isr)
        self.elr = tuple(BrokerId(member) for member in elr)
        self.partition_epoch = 1
        self.brokers = dict.fromkeys((LEADER, *FOLLOWERS), 10)
        """The registered and unfenced brokers, with their broker epochs."""
        self.ends = dict.fromkeys(FOLLOWERS, Offset(0))
        """The log end of each follower."""
        self.known: list[PartitionState] = []
        """Committed changes that the leader has not applied yet."""
        self.proposal: IsrProposal | None = None
        self.acked = Offset(0)
        self.fencings = self.pauses = 0
        self.replica = Replica(
            LEADER,
            high_watermark=Offset(0),
            log_end_offset=Offset(ahead),
            lag_time_max_ms=LAG_MS,
            min_insync_replicas=MIN_ISR,
        )
        self.replica.apply(self._state(), Offset(ahead), self.now)
        self._do(self.replica.reconsider(self.now, self.brokers))

    def _state(self) -> PartitionState:
        return PartitionState(
            leader=LEADER,
            leader_epoch=LEADER_EPOCH,
            partition_epoch=self.partition_epoch,
            replicas=(LEADER, *FOLLOWERS),
            isr=self.isr,
        )

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        if self.replica.log_end_offset < RECORDS_MAX:
            found.append(("append",))
        for follower in FOLLOWERS:
            found += [("fetch", follower, True), ("fetch", follower, False)]
            if follower in self.brokers and self.fencings < FENCINGS_MAX:
                found.append(("fence", follower))
            elif follower not in self.brokers:
                found.append(("unfence", follower))
        if self.pauses < PAUSES_MAX:
            found.append(("pause",))
        found.append(("tick",))
        if self.proposal is not None:
            found += [("decide", True), ("decide", False), ("refuse",)]
        if self.known:
            found.append(("learn",))
        return found

    def append(self) -> None:
        """A producer's record is appended, if the leader takes it."""
        if self.replica.check_append(-1) is ErrorCode.NONE:
            self._do(self.replica.log_end_moved(Offset(self.replica.log_end_offset + 1), self.now, self.brokers))

    def fetch(self, follower: BrokerId, gets: bool) -> None:
        """A follower fetches; with ``gets`` the answer arrives, and it appends the records."""
        epoch = self.brokers.get(follower, 9)
        self._do(self.replica.followed(follower, epoch, self.ends[follower], Offset(0), self.now, self.brokers))
        if gets:
            self.ends[follower] = self.replica.log_end_offset

    def pause(self) -> None:
        """More than half of ``replica.lag.time.max.ms`` passes."""
        self.pauses += 1
        self.now += LAG_MS * 0.6

    def tick(self) -> None:
        """The leader looks for followers that lag."""
        self._do(self.replica.tick(self.now, self.brokers))

    def fence(self, follower: BrokerId) -> None:
        """The session of a follower ends: the controller takes it out of the ISR."""
        self.fencings += 1
        del self.brokers[follower]
        if follower in self.isr:
            self._change(tuple(member for member in self.isr if member != follower))

    def unfence(self, follower: BrokerId) -> None:
        """A follower has a session again, under a new broker epoch."""
        self.brokers[follower] = 10 + self.fencings

    def decide(self, answered: bool) -> None:
        """The controller decides on the proposal in flight; without ``answered`` its answer is lost."""
        proposal, self.proposal = self.proposal, None
        assert proposal is not None
        code = ErrorCode.NONE
        if proposal.partition_epoch != self.partition_epoch:
            code = ErrorCode.INVALID_UPDATE_VERSION
        elif any(
            self.brokers.get(member) != epoch
            for member, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
            if member != LEADER
        ):
            code = ErrorCode.INELIGIBLE_REPLICA
            self._change(self.isr)
        else:
            self._change(proposal.isr)
        outcome = code if answered else ErrorCode.REQUEST_TIMED_OUT
        self._do(self.replica.alter_answered(proposal, outcome, self.now, self.brokers))

    def refuse(self) -> None:
        """The controller was not reached, and the proposal was not sent."""
        proposal, self.proposal = self.proposal, None
        assert proposal is not None
        self._do(self.replica.alter_answered(proposal, ErrorCode.OPERATION_NOT_ATTEMPTED, self.now, self.brokers))

    def learn(self) -> None:
        """The leader applies the next committed change."""
        self.replica.apply(self.known.pop(0), self.replica.log_end_offset, self.now)
        self.proposal = self.replica.proposal
        self._do(self.replica.reconsider(self.now, self.brokers))

    def settle(self) -> None:
        """All disturbances end: both followers are admitted, and what was appended is acknowledged."""
        for follower in FOLLOWERS:
            if follower not in self.brokers:
                self.unfence(follower)
        for _ in range(8):
            while self.known:
                self.learn()
            for follower in FOLLOWERS:
                self.fetch(follower, True)
            self.tick()
            if self.proposal is not None:
                self.decide(True)
        assert len(self.isr) == 3, f"the ISR stays {self.isr}"
        assert self.replica.high_watermark == self.replica.log_end_offset, "the high watermark stays behind"

    # --- what follows

    def _change(self, isr: tuple[BrokerId, ...]) -> None:
        """The controller commits another ISR, and the ELR that goes with it."""
        left = {*self.elr, *self.isr} - set(isr)
        self.elr = () if len(isr) >= MIN_ISR else tuple(sorted(left))
        self.isr = isr
        self.partition_epoch += 1
        self.known.append(self._state())

    def _do(self, effects: ReplicaEffects) -> None:
        if effects.proposal is not None:
            self.proposal = effects.proposal

    # --- rules

    def key(self) -> object:
        replica = self.replica
        return (
            *(self.isr, self.elr, tuple(sorted(self.brokers.items())), tuple(self.ends.items()), self.acked),
            tuple((state.isr, state.partition_epoch) for state in self.known),
            self.proposal and (self.proposal.isr, self.proposal.partition_epoch - self.partition_epoch),
            replica.proposal and replica.proposal.isr,
            *(replica.state.isr, replica.high_watermark, replica.log_end_offset, self.fencings, self.pauses),
            tuple(
                (each.log_end_offset, each.broker_epoch, self.now - each.last_caught_up_ms, each.last_fetch_ms)
                for each in map(replica.follower, FOLLOWERS)
                if each is not None
            ),
        )

    def check(self) -> None:
        replica = self.replica
        while (
            self.acked < replica.log_end_offset
            and replica.acknowledgement(LEADER_EPOCH, Offset(self.acked + 1)) is ErrorCode.NONE
        ):
            self.acked = Offset(self.acked + 1)
        assert replica.high_watermark <= replica.log_end_offset
        for member in (*self.isr, *self.elr):
            end = replica.log_end_offset if member == LEADER else self.ends[member]
            assert end >= self.acked, f"replica {member} may be elected, and lacks record {self.acked - 1}"
        holders = 1 + sum(end >= self.acked for end in self.ends.values())
        assert holders >= MIN_ISR, f"record {self.acked - 1} is acknowledged, and on {holders} replicas"


def lone_leader() -> Partition:
    """Returns a partition whose ISR is its leader alone; broker 2 is eligible, and broker 3 is about to return."""
    return Partition(isr=(1,), elr=(2,))


def smallest_isr() -> Partition:
    """Returns a partition whose ISR has no member to spare, and whose third replica is outside."""
    return Partition(isr=(1, 2))


def shrunk_isr() -> Partition:
    """Returns a partition that lost broker 2, which lacks the last record; broker 3 has it and is outside."""
    world = smallest_isr()
    world.append()
    world.fetch(BrokerId(3), True)
    world.fence(BrokerId(2))
    world.learn()
    return world


def admission_committed() -> Partition:
    """Returns a partition whose controller has admitted broker 3; the leader has its answer, and not the metadata."""
    world = smallest_isr()
    world.fetch(BrokerId(3), True)
    world.decide(True)
    return world


def admission_unanswered() -> Partition:
    """Returns a partition whose controller has admitted broker 3, and whose leader knows nothing of it."""
    world = smallest_isr()
    world.fetch(BrokerId(3), True)
    world.decide(False)
    return world


def new_leader() -> Partition:
    """Returns a partition whose new leader has a record that no follower has."""
    return Partition(ahead=1)


SCENES = (Partition, lone_leader, smallest_isr, shrunk_isr, admission_committed, admission_unanswered, new_leader)
