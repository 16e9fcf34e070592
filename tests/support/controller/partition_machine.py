"""Random histories of one partition, judged by a model: each possible leader has all acknowledged records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from support.controller.model import ModelController, check_partition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_quorum.metadata.image import PartitionImage


class PartitionMachine(RuleBasedStateMachine):
    """Brokers start, stop and lose state at random; a model tracks which brokers have each acknowledged record.

    The model: the current ISR acknowledges a record if it has ``min.insync.replicas`` members. A replica that joins the
    ISR has all records; a replica that restarts uncleanly loses its tail.
    """

    BROKERS: ClassVar[tuple[int, ...]] = (1, 2, 3)
    FACTOR = 3

    def __init__(self) -> None:
        super().__init__()
        self.controller = ModelController()
        self.controller.join(*self.BROKERS)
        self.controller.create("t", factor=self.FACTOR, min_insync_replicas="2")
        self.records = 0
        self.has: dict[int, set[int]] = {b: set() for b in self.BROKERS}
        self.unclean = False

    @property
    def partition(self) -> PartitionImage:
        return self.controller.partition("t")

    @rule()
    def produce(self) -> None:
        """Appends a record that the ISR fetches and, if it is large enough, acknowledges."""
        if self.partition.leader == -1 or len(self.partition.isr) < 2:
            return
        self.records += 1
        for broker in self.partition.isr:
            self.has[broker].add(self.records)

    @rule(broker=st.sampled_from(BROKERS))
    def shrink(self, broker: int) -> None:
        leader = self.partition.leader
        if leader not in (-1, broker):
            outcome = self.controller.alter("t", [b for b in self.partition.isr if b != broker])
            assert outcome.error_code == 0

    @rule(broker=st.sampled_from(BROKERS))
    def catch_up_and_join(self, broker: int) -> None:
        leader = self.partition.leader
        if leader == -1 or broker in self.partition.isr:
            return
        self.has[broker] = set(self.has[leader])
        outcome = self.controller.alter("t", [*self.partition.isr, broker])
        alive = not self.controller.image.brokers[broker].fenced
        stopping = self.controller.image.brokers[broker].in_controlled_shutdown
        assert (outcome.error_code == 0) == (alive and not stopping)

    @rule(broker=st.sampled_from(BROKERS))
    def fence(self, broker: int) -> None:
        self.controller.fence(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def clean_restart(self, broker: int) -> None:
        self.controller.join(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def unclean_restart(self, broker: int) -> None:
        """Restarts a broker whose process died and lost some of its unsynced tail."""
        self.controller.unclean_restart(broker)
        self.has[broker] = {record for record in self.has[broker] if record <= self.records // 2}
        self.controller.beat(broker)

    @rule(broker=st.sampled_from(BROKERS))
    @precondition(lambda self: self.partition.leader != -1)
    def shut_down(self, broker: int) -> None:
        if not self.controller.image.brokers[broker].fenced:
            self.controller.beat(broker, want_shut_down=True)

    @invariant()
    def well_formed(self) -> None:
        check_partition(self.partition)
        leader = self.partition.leader
        if leader != -1:
            assert self.controller.image.brokers[leader].active

    @invariant()
    def elr_is_empty_while_the_isr_is_large_enough(self) -> None:
        if len(self.partition.isr) >= 2:
            assert self.partition.elr == ()

    @invariant()
    def eligible_replicas_have_everything_acknowledged(self) -> None:
        if self.partition.leader_recovery_state == 1:
            self.unclean = True  # the last known leader was elected: the partition is marked, and loss is possible
        if self.unclean:
            self.records = 0
            self.has = {b: set() for b in self.BROKERS}
            self.unclean = False
        everything = set(range(1, self.records + 1))
        for broker in (*self.partition.isr, *self.partition.elr):
            assert self.has[broker] == everything, f"broker {broker} may lead but lacks acknowledged records"


class MovingPartitionMachine(PartitionMachine):
    """Adds moves that are redirected and cancelled at random; a broker that leaves the replicas deletes its log."""

    BROKERS: ClassVar[tuple[int, ...]] = (1, 2, 3, 4, 5)
    FACTOR = 1

    @rule()
    def produce(self) -> None:
        enough = min(2, len(self.partition.replicas))
        if self.partition.leader == -1 or len(self.partition.isr) < enough:
            return
        self.records += 1
        for broker in self.partition.isr:
            self.has[broker].add(self.records)

    @rule(pick=st.integers(min_value=0, max_value=4))
    def catch_up_and_join(self, pick: int) -> None:
        before = self.partition
        late = [r for r in before.replicas if r not in before.isr and self.controller.image.brokers[r].active]
        if before.leader == -1 or not late:
            return
        broker = late[pick % len(late)]
        self.has[broker] = set(self.has[before.leader])
        outcome = self.controller.alter("t", [*before.isr, broker])
        assert outcome.error_code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)
        self._judge_change(before, joined=(broker,))

    @rule(wanted=st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True))
    def move(self, wanted: list[int]) -> None:
        before = self.partition
        assert self._reassign(wanted) == ErrorCode.NONE
        assert {r for r in self.partition.replicas if r not in self.partition.removing_replicas} == set(wanted)
        if self.partition.reassigning:
            assert set(before.isr) <= set(self.partition.isr), "a replica in sync was dropped before the target is"
        self._judge_change(before)

    @rule()
    def cancel(self) -> None:
        before = self.partition
        code = self._reassign(None)
        if not before.reassigning:
            assert code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        else:
            assert code in (ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
            assert self.partition.reassigning == (code != ErrorCode.NONE)
        self._judge_change(before)

    def _reassign(self, target: list[int] | None) -> int:
        topic = ReassignableTopic(name="t", partitions=[ReassignablePartition(partition_index=0, replicas=target)])
        response = self.controller.handle(AlterPartitionReassignmentsRequest(topics=[topic]))
        return int(response.responses[0].partitions[0].error_code)

    def _judge_change(self, before: PartitionImage, joined: Iterable[int] = ()) -> None:
        """Asserts that one of the replicas with all acknowledged records stays, and that the metadata names it."""
        after = self.partition
        for broker in set(before.replicas) - set(after.replicas):
            self.has[broker] = set()
        if before.isr:
            in_sync = {*before.isr, *joined}
            assert set(after.isr) & in_sync, f"no replica of the ISR {in_sync} is left in {after.isr}"
        elif before.elr:
            assert set(before.elr) & {*after.isr, *after.elr}, f"no replica of the ELR {before.elr} is left"
        elif before.last_known_elr:
            assert after.last_known_elr == before.last_known_elr or after.leader in before.last_known_elr
            assert set(before.last_known_elr) <= set(after.replicas)
        if before.removing_replicas and not after.reassigning and set(after.replicas) < set(before.replicas):
            went = set(before.replicas) - set(after.replicas)
            if went & set(before.removing_replicas):
                assert set(after.isr) == set(after.replicas), "a move has ended before its whole target was in sync"
