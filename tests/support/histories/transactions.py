"""A small transactional world: two producers of one transactional id, a coordinator, and one partition.

Each action sends one request, or lets one thing happen: a write is committed, lost with its coordinator, or committed
although its coordinator is gone; markers are written; a copy of the last EndTxn arrives once more; a timeout passes.
The partition takes records and markers by the rules of a partition leader, and remembers how each record ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.transaction.core.config import TransactionConfig
from support.coordinator.transaction_world import (
    Producer,
    TransactionDriver,
    code_of,
    end_request,
)

if TYPE_CHECKING:
    from moldau_broker.coordinator.runtime.effects import SendMarkers
    from support.histories.explorer import Action

NAME = "x"
FAILOVERS_MAX = 2
INITS_MAX = 3
RECORDS_MAX = 3
TIMEOUT_MS = 10_000


@dataclass
class Partition:
    """A partition leader: one open transaction of each producer id."""

    epoch: int = -1
    producer_id: int = -1
    open: list[int] = field(default_factory=list)
    outcome: dict[int, bool] = field(default_factory=dict)
    """How each record ended, by its number; True if it was committed."""

    def append(self, identity: tuple[int, int], record: int) -> bool:
        if identity < (self.producer_id, self.epoch):
            return False
        self.producer_id, self.epoch = identity
        self.open.append(record)
        return True

    def end(self, identity: tuple[int, int], *, commit: bool) -> None:
        """Takes a marker. One of this level carries the epoch after that of the records."""
        if identity <= (self.producer_id, self.epoch):
            return
        for record in self.open:
            assert record not in self.outcome, f"record {record} ends twice"
            self.outcome[record] = commit
        self.open = []
        self.producer_id, self.epoch = identity


class Transactions:
    """The world."""

    def __init__(self) -> None:
        self.driver = TransactionDriver(TransactionConfig(), automatic=False)
        self.producers = (Producer(self.driver, NAME, bumps=True), Producer(self.driver, NAME, bumps=True))
        self.partition = Partition()
        self.records: list[tuple[int, int, int]] = []
        """Of each record: who wrote it, producer id, epoch."""
        self.promised: dict[int, bool] = {}
        """The outcome of each record according to EndTxn."""
        self.commits_asked: set[tuple[int, int]] = set()
        """The identities under which EndTxn asked for a commit."""
        self.last_end: list[tuple[int, int, bool] | None] = [None, None]
        self.failovers = self.inits = self.timeouts = 0
        self.highest = (-1, -1)
        self.current: int | None = None
        """The producer that was initialised last."""

    # --- actions

    def actions(self) -> list[Action]:
        found: list[Action] = []
        for who, producer in enumerate(self.producers):
            if self.inits < INITS_MAX:
                found.append(("init", who))
            if producer.producer_id < 0:
                continue
            if len(self.records) < RECORDS_MAX:
                found.append(("write", who))
            found += [("end", who, True), ("end", who, False)]
            if self.last_end[who] is not None:
                found.append(("end_again", who))
        if self.driver.uncommitted:
            found += [("commit",), ("refuse",)]
        if self.driver.markers:
            found.append(("write_markers",))
        if self.failovers < FAILOVERS_MAX:
            found.append(("fail_over", False))
            if self.driver.uncommitted:
                found.append(("fail_over", True))
        if not self.timeouts:
            found.append(("pass_timeout",))
        return found

    def init(self, who: int) -> None:
        """A producer begins, or begins again; its write is committed at once."""
        self.inits += 1
        if self._at_once(lambda: self.producers[who].init(TIMEOUT_MS)) is ErrorCode.NONE:
            self.current = who

    def write(self, who: int) -> None:
        """A producer writes a record; the leader adds the partition for it."""
        producer = self.producers[who]
        if self._at_once(lambda: producer.add(0, version=4)) is not ErrorCode.NONE:
            return
        assert who == self.current, f"producer {who} is fenced, and writes"
        identity = (producer.producer_id, producer.epoch)
        if self.partition.append(identity, len(self.records)):
            self.records.append((who, *identity))

    def end(self, who: int, commit: bool) -> None:
        """A producer ends its transaction; the decision stays uncommitted."""
        producer = self.producers[who]
        self.last_end[who] = (producer.producer_id, producer.epoch, commit)
        if commit:
            self.commits_asked.add((producer.producer_id, producer.epoch))
        request = end_request(producer.producer_id, producer.epoch, commit=commit)
        self._asked = (who, self.driver.send(request, 5), producer.producer_id, producer.epoch, commit)
        self._learn()

    def end_again(self, who: int) -> None:
        """A copy of the last EndTxn arrives late; no client waits for its answer."""
        sent = self.last_end[who]
        assert sent is not None
        self.driver.send(end_request(sent[0], sent[1], commit=sent[2]), 5)
        self._learn()

    def commit(self) -> None:
        """The oldest write is committed."""
        append = self.driver.uncommitted.pop(0)
        self.driver.log.append(append)
        self.driver.perform(self.driver.core.committed(append.append_id, self.driver.moment()))
        self._learn()

    def refuse(self) -> None:
        """The log refuses the oldest write."""
        self.driver.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
        self._learn()

    def write_markers(self) -> None:
        """The markers of the oldest decision are written, and the coordinator hears of it."""
        self._mark(self.driver.markers[0])
        self.driver.write_markers()

    def fail_over(self, kept: bool) -> None:
        """Another coordinator loads the log; with ``kept`` it finds what was not known to be committed."""
        self.failovers += 1
        if kept:
            self.driver.log += self.driver.uncommitted
        for sent in self.driver.markers:
            if kept:
                self._mark(sent)  # they were written, and the answer was lost
        self.driver.fail_over()
        self._asked = None

    def pass_timeout(self) -> None:
        """The transaction's timeout passes."""
        self.timeouts += 1
        self.driver.pass_time(TIMEOUT_MS + 1)

    def settle(self) -> None:
        """All disturbances end: the transaction is settled, and every promise is kept."""
        for _ in range(4):
            self.driver.commit()
            while self.driver.markers:
                self.write_markers()
                self.driver.commit()
            self.driver.pass_time(TIMEOUT_MS)
        self._learn()
        self.check()
        for transaction in self.driver.core.transactions.values():
            assert transaction.status.is_settled, f"the transaction stays {transaction.status.name}"
        assert not self.partition.open, f"records {self.partition.open} hang"
        assert set(self.driver.answers) == set(range(self.driver.request_count)), "a request has no answer"

    # --- what follows

    _asked: tuple[int, int, int, int, bool] | None = None

    def _at_once(self, act) -> ErrorCode:  # type: ignore[no-untyped-def]
        self.driver.commits_at_once = True
        try:
            return act()  # type: ignore[no-any-return]
        except KeyError:
            return ErrorCode.REQUEST_TIMED_OUT  # an older write of this id is not committed: no answer yet
        finally:
            self.driver.commits_at_once = False

    def _mark(self, sent: SendMarkers) -> None:
        producer = sent.marker.producer
        self.partition.end((producer.producer_id, producer.producer_epoch), commit=sent.marker.commit)

    def _learn(self) -> None:
        """A producer takes the answer to its EndTxn, if it is there."""
        if self._asked is None:
            return
        who, request_id, producer_id, epoch, commit = self._asked
        answer = self.driver.answers.get(request_id)
        if answer is None:
            return
        self._asked = None
        if code_of(answer) is ErrorCode.NONE:
            producer = self.producers[who]
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch  # type: ignore[attr-defined]
            for number, record in enumerate(self.records):
                if record == (who, producer_id, epoch):
                    known = self.promised.setdefault(number, commit)
                    assert known is commit, f"record {number} is promised to be committed and aborted"

    # --- rules

    def key(self) -> object:
        core = self.driver.core
        transaction = core.transactions.get(NAME)
        return (
            *(transaction, None if transaction is None else transaction.last_epoch),
            tuple((write.after, write.respond is None) for write in core.lifecycle.pending.values()),
            tuple(each.partitions for each in self.driver.markers),
            tuple((each.producer_id, each.epoch) for each in self.producers),
            *(self.partition.epoch, self.partition.producer_id, tuple(self.partition.open)),
            *(tuple(sorted(self.partition.outcome.items())), tuple(sorted(self.promised.items()))),
            *(tuple(self.last_end), self.failovers, self.inits, self.timeouts, self.current, len(self.records)),
            self._asked and (self._asked[0], *self._asked[2:]),
            tuple(sorted(self.commits_asked)),
        )

    def check(self) -> None:
        transaction = self.driver.core.transactions.get(NAME)
        if transaction is not None:
            identity = (transaction.producer_id, transaction.producer_epoch)
            assert identity >= self.highest, f"the producer goes back from {self.highest} to {identity}"
            self.highest = identity
        for number, committed in self.partition.outcome.items():
            asked = self.records[number][1:] in self.commits_asked
            assert asked or not committed, f"record {number} is committed, and its producer did not ask for it"
        for number, commit in self.promised.items():
            ended = self.partition.outcome.get(number, commit)
            promise = "committed" if commit else "aborted"
            assert ended is commit, f"record {number} was promised to be {promise}"


def second_transaction() -> Transactions:
    """Returns a world whose first producer has committed a transaction, and has begun the next one."""
    world = Transactions()
    world.init(0)
    world.write(0)
    world.end(0, True)
    world.commit()
    world.write_markers()
    world.commit()
    world.write(0)
    return world


SCENES = (Transactions, second_transaction)
