"""Goal: under any order of requests, time, commits, markers and failovers a transaction is atomic and ends.

Method: a Hypothesis state machine drives producers against the core. Each partition applies markers with the rules of
a partition leader. Checked: all markers of a transaction have the same outcome, which is the outcome that its client
got; the epoch of an id never decreases; in the end no transaction hangs.
"""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.transaction.core.state import TransactionStatus
from support.coordinator.transaction_world import Producer, TransactionDriver, add_request
from support.proof import examples

PRODUCERS = 3
WHO = st.integers(0, PRODUCERS - 1)


class TransactionMachine(RuleBasedStateMachine):
    """Producers 0 and 1 share a transactional id and fence each other; 2 has its own and raises epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = TransactionDriver(automatic=False)
        self.producers = [
            Producer(self.driver, "shared"),
            Producer(self.driver, "shared"),
            Producer(self.driver, "own", bumps=True),
        ]
        self.highest: dict[str, tuple[int, int]] = {}
        self.decided: dict[tuple[int, int], bool] = {}
        self.checked = 0

    @rule(who=WHO)
    def init(self, who: int) -> None:
        self.step(lambda: self.producers[who].init(timeout_ms=10_000))

    @rule(who=WHO, partition=st.integers(0, 3))
    def add(self, who: int, partition: int) -> None:
        self.step(lambda: self.producers[who].add(partition))

    @rule(who=WHO)
    def add_offsets(self, who: int) -> None:
        self.step(lambda: self.producers[who].add_offsets())

    @rule(who=WHO, commit=st.booleans())
    def end(self, who: int, commit: bool) -> None:
        """Ends a transaction; after NONE its markers, found by their epoch, must have that outcome."""
        producer = self.producers[who]
        ongoing = self.driver.state(producer.name) == TransactionStatus.ONGOING.label
        before = (producer.producer_id, producer.epoch)
        code = self.step(lambda: producer.end(commit=commit))
        if code is ErrorCode.NONE and ongoing:
            key = (before[0], before[1] + 1 if producer.bumps else before[1])
            assert not producer.bumps or (producer.producer_id, producer.epoch) == key
            assert not producer.bumps or self.decided.setdefault(key, commit) is commit
            assert self.driver.state(producer.name).endswith("Commit" if commit else "Abort")

    @rule(who=WHO, partitions=st.integers(1, 3), commit=st.booleans(), written=st.booleans())
    def whole_transaction(self, who: int, partitions: int, commit: bool, written: bool) -> None:
        """Runs a whole transaction, the usual case; its markers may stay unwritten."""
        producer = self.producers[who]
        if producer.producer_id < 0:
            self.init(who)
        for partition in range(partitions):
            self.add(who, partition)
        self.end(who, commit)
        while written and self.driver.markers:
            self.driver.write_markers()
            self.driver.commit()

    def step(self, act: Callable[[], ErrorCode]) -> ErrorCode:
        """Sends a request and commits its write at once; `leave_a_write_lying` does not commit it."""
        self.driver.commits_at_once = True
        try:
            return act()
        finally:
            self.driver.commits_at_once = False

    @rule(who=WHO)
    def leave_a_write_lying(self, who: int) -> None:
        """Leaves a write uncommitted, which the next coordinator may or may not load; ignores the answer."""
        producer = self.producers[who]
        self.driver.send(add_request(producer.producer_id, producer.epoch, 9, name=producer.name), 4)

    @rule()
    def commit_log(self) -> None:
        self.driver.commit()

    @precondition(lambda self: self.driver.uncommitted)
    @rule(code=st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR]))
    def refuse_write(self, code: ErrorCode) -> None:
        self.driver.refuse(code)

    @precondition(lambda self: self.driver.markers)
    @rule(count=st.integers(0, 3))
    def write_markers(self, count: int) -> None:
        self.driver.write_markers(count)

    @rule(milliseconds=st.sampled_from([1, 900, 4_000, 12_000]))
    def pass_time(self, milliseconds: int) -> None:
        self.driver.pass_time(milliseconds)

    @rule()
    def fail_over(self) -> None:
        self.driver.fail_over()
        assert set(self.driver.answers) == set(range(self.driver.request_count))

    @invariant()
    def no_transaction_ends_in_two_ways(self) -> None:
        """Checks that the markers of one producer epoch agree, however many coordinators send them."""
        for marker, partition in self.driver.written[self.checked :]:
            producer = (marker.producer.producer_id, marker.producer.producer_epoch)
            if producer in self.decided and producer[0] == self.id_of("own"):
                # One epoch is one transaction here, so all its markers have the outcome that the client got.
                assert marker.commit is self.decided[producer]
            assert partition[0] in ("t", "__consumer_offsets")
        self.checked = len(self.driver.written)

    @invariant()
    def states_are_sound(self) -> None:
        for name, transaction in self.driver.core.transactions.items():
            identity = (transaction.producer_id, transaction.producer_epoch)
            assert identity >= self.highest.get(name, (-1, -1))
            self.highest[name] = identity
            assert transaction.status is not TransactionStatus.PREPARE_EPOCH_FENCE
            if transaction.status is TransactionStatus.ONGOING:
                assert transaction.start_ms > 0
            if transaction.status.is_settled:
                assert not transaction.partitions
        for sent in self.driver.markers:
            prepared = self.driver.core.transactions[sent.transactional_id]
            assert prepared.status is (
                TransactionStatus.PREPARE_COMMIT if sent.marker.commit else TransactionStatus.PREPARE_ABORT
            )
            assert prepared.producer_epoch == sent.marker.producer.producer_epoch

    def id_of(self, name: str) -> int:
        transaction = self.driver.core.transactions.get(name)
        return -1 if transaction is None else transaction.producer_id

    def teardown(self) -> None:
        """Checks that every transaction ends by its timeout, and that every request has an answer."""
        self.driver.automatic = True
        self.driver.settle()
        self.driver.pass_time(200_000)
        self.driver.settle()
        assert all(transaction.status.is_settled for transaction in self.driver.core.transactions.values())
        assert set(self.driver.answers) == set(range(self.driver.request_count))


TestTransactionMachine = TransactionMachine.TestCase
TestTransactionMachine.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
