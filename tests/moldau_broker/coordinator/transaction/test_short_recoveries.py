"""Goal: no two producers ever work under one id and epoch, and a producer that has been replaced cannot come back.

Method: all histories in which two clients of one transactional id begin, recover with the identity that they know
(KIP-360) and write, up to a depth. Answers get lost, and coordinators fail over. It begins with a fresh producer id, or
with one that has few epochs left.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.transaction.core.state import EPOCH_MAX, Transaction, transaction_record
from support.coordinator.transaction_world import Producer, TransactionDriver, code_of, init_request
from support.histories.explorer import explore

if TYPE_CHECKING:
    from collections.abc import Hashable

    from support.histories.explorer import Action

NAME = "x"
Identity = tuple[int, int]
"""Producer id and epoch."""


class Recoveries:
    """Two producers and their coordinator, which commits each write at once."""

    def __init__(self, *, bumps: bool, epoch: int | None) -> None:
        """``bumps``: the clients have an epoch per transaction. ``epoch`` is that of a former producer, if any."""
        self.driver = TransactionDriver()
        if epoch is not None:
            former = Transaction(
                transactional_id=NAME, producer_id=50, producer_epoch=epoch, timeout_ms=60_000, last_update_ms=1
            )
            self.driver.core.replay(*transaction_record(NAME, former))
        self.producers = tuple(Producer(self.driver, NAME, bumps=bumps) for _ in range(2))
        self.owners: dict[Identity, int] = {}
        """Which client was given an identity, even if it did not get the answer."""
        self.newest: int | None = None
        """The client that was initialised last; None while a request has fenced it, and has to be repeated."""

    def actions(self) -> list[Action]:
        found: list[Action] = [("fail_over",)]
        for who, producer in enumerate(self.producers):
            found += [("begin", who), ("lose_answer", who)]
            if producer.producer_id >= 0:
                found += [("recover", who, False), ("recover", who, True), ("write", who), ("commit", who)]
        return found

    def key(self) -> Hashable:
        transaction = self.driver.core.transactions.get(NAME)
        return (
            transaction,
            None if transaction is None else transaction.last_epoch,
            tuple((each.producer_id, each.epoch) for each in self.producers),
            tuple(sorted(self.owners.items())),
            self.newest,
        )

    def check(self) -> None:
        """Each action checks what it was given."""

    # --- actions

    def begin(self, who: int) -> None:
        """A client begins without an identity, as a process that has just started."""
        self._initialise(who, (-1, -1), is_lost=False)

    def lose_answer(self, who: int) -> None:
        """A client begins without an identity, and does not get the answer."""
        self._initialise(who, (-1, -1), is_lost=True)

    def recover(self, who: int, is_lost: bool) -> None:
        """A client asks for a new epoch of the identity that it has."""
        producer = self.producers[who]
        is_replaced = self.newest != who
        code = self._initialise(who, (producer.producer_id, producer.epoch), is_lost=is_lost)
        assert not (is_replaced and code is ErrorCode.NONE), f"client {who} was replaced, and comes back"

    def write(self, who: int) -> None:
        """A client adds a partition to its transaction."""
        code = self.producers[who].add(0)
        assert code is not ErrorCode.NONE or who == self.newest, f"client {who} was replaced, and writes"

    def commit(self, who: int) -> None:
        """A client ends its transaction; at level 2 the answer gives it the next epoch."""
        producer = self.producers[who]
        if producer.end(commit=True) is ErrorCode.NONE:
            assert who == self.newest, f"client {who} was replaced, and commits"
            self._give(who, (producer.producer_id, producer.epoch))

    def fail_over(self) -> None:
        """Another coordinator loads the log."""
        log = [record for append in self.driver.log for record in append.records]
        former = self.driver.core.transactions.get(NAME)
        self.driver.fail_over()
        if not log and former is not None:  # it was there before the log of this world
            self.driver.core.replay(*transaction_record(NAME, former))

    def _initialise(self, who: int, identity: Identity, *, is_lost: bool) -> ErrorCode:
        producer_id, epoch = identity
        answer = self.driver.ask(init_request(NAME, producer_id=producer_id, epoch=epoch), 4)
        code = code_of(answer)
        if code is ErrorCode.NONE:
            given = (answer.producer_id, answer.producer_epoch)  # type: ignore[attr-defined]
            self._give(who, given)
            self.newest = who
            if not is_lost:
                self.producers[who].producer_id, self.producers[who].epoch = given
        elif code is ErrorCode.CONCURRENT_TRANSACTIONS and (producer_id < 0 or self.newest != who):
            self.newest = None  # the transaction that was open is aborted first, and its producer fenced
        return code

    def _give(self, who: int, identity: Identity) -> None:
        owner = self.owners.setdefault(identity, who)
        assert owner == who, f"client {who} is given {identity}, which client {owner} has"


@pytest.mark.parametrize("bumps", [False, True], ids=["level 1", "level 2"])
@pytest.mark.parametrize("epoch", [None, EPOCH_MAX - 3, EPOCH_MAX - 2, EPOCH_MAX - 1], ids=str)
def test_no_identity_is_given_to_two_producers(epoch: int | None, bumps: bool) -> None:
    """Two producers of one identity would send the same sequences: records of one count as repeated by the other."""
    assert explore(partial(Recoveries, bumps=bumps, epoch=epoch), 4, copies=False).states > 100
