"""Goal: under any order of writes, commits, refusals, failovers and deletions no acknowledged delivery is forgotten.

Method: a Hypothesis state machine drives two share-partitions. Checked after every step: a new coordinator that loads
the log has the state of the present one (replay equals handle), epochs never decrease, and each acknowledged batch is
in the state, unless the state has begun again or the start offset has passed it.
"""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.share.core.config import ShareConfig
from moldau_broker.coordinator.share.core.requests import Delete, Initialize, Read
from support.coordinator.share_world import ShareDriver, key, write
from support.proof import examples

KEYS = (key(0), key(1))
WHICH = st.sampled_from(KEYS)
EPOCH = st.integers(-1, 3)
CONFIG = ShareConfig(updates_per_snapshot=2, prune_interval_ms=3_000, cold_interval_ms=7_000)


class ShareMachine(RuleBasedStateMachine):
    """Acknowledged writes are kept per share-partition, with the state epoch under which they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = ShareDriver(CONFIG, auto_commit=False)
        self.open: dict[int, tuple[object, object]] = {}
        self.acknowledged: dict[object, dict[int, tuple[int, int]]] = {each: {} for each in KEYS}
        self.epochs = dict.fromkeys(KEYS, (-1, -1))

    def send(self, where, ask) -> None:
        self.open[self.driver.send((where, ask))] = (where, ask)
        self.take_in()

    def take_in(self) -> None:
        """Notes what is acknowledged now, in the order of the requests."""
        for request_id in sorted(self.open.keys() & self.driver.answers.keys()):
            where, ask = self.open.pop(request_id)
            if self.driver.codes(request_id) != [ErrorCode.NONE]:
                if isinstance(ask, Delete | Initialize):
                    self.forget(where)  # it may have taken effect nevertheless
                continue
            if isinstance(ask, Delete) or (isinstance(ask, Initialize) and ask.start_offset >= 0):
                self.forget(where)
            elif not isinstance(ask, Read | Initialize):
                for batch in ask.batches:
                    for offset in range(batch.first_offset, batch.last_offset + 1):
                        reported = (batch.delivery_count, batch.delivery_state)
                        known = self.acknowledged[where]
                        known[offset] = max(reported, known.get(offset, reported))

    def forget(self, where) -> None:
        self.acknowledged[where] = {}
        self.epochs[where] = (-1, -1)

    @rule(where=WHICH, epoch=st.integers(0, 3), start=st.sampled_from([-1, -1, 0, 4]))
    def initialize(self, where, epoch: int, start: int) -> None:
        if start < 0 and self.driver.core.states.get(where) is not None:
            epoch = min(epoch, self.driver.core.states[where].state_epoch)  # a repetition
        if start >= 0:
            self.driver.commit()
        self.send(where, Initialize(state_epoch=epoch, start_offset=start))
        if start >= 0:
            self.driver.commit()
            self.take_in()

    @rule(
        where=WHICH,
        first=st.integers(0, 9),
        length=st.integers(1, 4),
        state=st.sampled_from([0, 2, 4]),
        count=st.integers(1, 3),
        start=st.sampled_from([-1, -1, 2, 5]),
        epoch=EPOCH,
    )
    def write_state(self, where, first: int, length: int, state: int, count: int, start: int, epoch: int) -> None:
        ask = write((first, first + length - 1, state, count), start=start, state_epoch=-1, leader_epoch=epoch)
        self.send(where, ask)

    @rule(where=WHICH, epoch=EPOCH)
    def read(self, where, epoch: int) -> None:
        self.send(where, Read(leader_epoch=epoch))

    @rule(where=WHICH)
    def delete(self, where) -> None:
        self.driver.commit()
        self.send(where, Delete())
        self.driver.commit()
        self.take_in()

    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        self.driver.commit(count)
        self.take_in()

    @rule(where=WHICH, first=st.integers(0, 9))
    def refused_write(self, where, first: int) -> None:
        if self.driver.core.states.get(where) is not None and not self.driver.uncommitted:
            self.driver.refuse(
                ErrorCode.NOT_ENOUGH_REPLICAS, (where, write((first, first, 2, 3), state_epoch=-1, leader_epoch=-1))
            )

    @rule(milliseconds=st.sampled_from([1, 2_900, 6_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.driver.pass_time(milliseconds)
        self.take_in()

    @rule(keeps=st.booleans())
    def fail_over(self, keeps: bool) -> None:
        self.driver.fail_over(keeps=keeps)
        self.take_in()
        assert not self.open, "a request was left without an answer"

    @invariant()
    def loading_the_log_gives_the_same_states(self) -> None:
        assert self.driver._new_core().states == self.driver.core.states

    @invariant()
    def nothing_acknowledged_is_forgotten(self) -> None:
        for where, offsets in self.acknowledged.items():
            state = self.driver.core.states.get(where)
            if state is None:
                assert not offsets
                continue
            known = {
                offset: (batch.delivery_count, batch.delivery_state)
                for batch in state.batches
                for offset in range(batch.first_offset, batch.last_offset + 1)
            }
            for offset, reported in list(offsets.items()):
                if offset < state.start_offset:
                    del offsets[offset]
                else:
                    assert known[offset] >= reported
            assert (state.state_epoch, state.leader_epoch) >= self.epochs[where]
            self.epochs[where] = (state.state_epoch, state.leader_epoch)

    @invariant()
    def batches_are_disjoint(self) -> None:
        for state in self.driver.core.states.values():
            before = replace(state).start_offset - 1
            for batch in state.batches:
                assert before < batch.first_offset <= batch.last_offset
                before = batch.last_offset


TestShareMachine = ShareMachine.TestCase
TestShareMachine.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
