"""Random lives of one partition, judged by a model of the data: who may lead must have everything acknowledged."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller_model import ModelController, check_partition


class PartitionMachine(RuleBasedStateMachine):
    """Brokers come, go and lose state at random; a model remembers who has each acknowledged record.

    The model of the data: a record is acknowledged by the ISR of its moment, if that has ``min.insync.replicas``
    members. A replica that joins the ISR has everything; one that restarts uncleanly keeps only what it had before,
    minus its tail.
    """

    BROKERS = (1, 2, 3)

    def __init__(self) -> None:
        super().__init__()
        self.controller = ModelController()
        self.controller.join(*self.BROKERS)
        self.controller.create("t", min_insync_replicas="2")
        self.records = 0
        self.has: dict[int, set[int]] = {b: set() for b in self.BROKERS}
        self.unclean = False

    @property
    def partition(self):
        return self.controller.partition("t")

    @rule()
    def produce(self) -> None:
        """The leader appends; followers in the ISR fetch; acknowledged when the ISR is large enough."""
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
        """The process died, and with it some of its unsynced tail."""
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
            self.unclean = True  # the last known leader was taken: loss is possible, and marked
        if self.unclean:
            self.records = 0
            self.has = {b: set() for b in self.BROKERS}
            self.unclean = False
        everything = set(range(1, self.records + 1))
        for broker in (*self.partition.isr, *self.partition.elr):
            assert self.has[broker] == everything, f"broker {broker} may lead but lacks acknowledged records"
