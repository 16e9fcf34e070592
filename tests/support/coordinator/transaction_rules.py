"""Rules for the transaction coordinator's core after each event: nothing waits without end, and no identity comes back.

An open transaction has a time limit. One whose outcome is decided has markers to write, or a write that is pending or
is repeated. A settled one has neither. The epochs of a producer id rise, and a producer id that was replaced is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.coordinator.transaction.core.state import TransactionStatus, parse_transaction

if TYPE_CHECKING:
    from moldau_broker.coordinator.runtime.effects import Append
    from moldau_broker.coordinator.transaction.core.lifecycle import TransactionLifecycle

TIMEOUT, COMPLETE = "transaction timeout", "write completion"


def check_waits(lifecycle: TransactionLifecycle) -> None:
    """Checks that each transaction ends by itself."""
    deadlines = lifecycle._deadlines
    for name, transaction in lifecycle.transactions.items():
        has_limit = deadlines.get((TIMEOUT, name)) is not None
        if transaction.status is TransactionStatus.ONGOING:
            assert has_limit or name in lifecycle.busy, f"the transaction of {name} may stay open for ever"
            continue
        assert not has_limit, f"the time limit of {name} outlives the transaction"
        if transaction.status.is_preparing:
            is_repeated = deadlines.get((COMPLETE, name)) is not None
            ends = is_repeated or name in lifecycle.busy or bool(lifecycle._markers_left.get(name))
            assert ends, f"nothing ends the decided transaction of {name}"
    for kind, name, *_ in (key for key in deadlines._due if len(key) > 1):
        assert kind != TIMEOUT or name in lifecycle.transactions, f"a time limit of {name} outlives it"


class Identities:
    """The producer ids and epochs of the transactional ids in a log."""

    def __init__(self) -> None:
        self._present: dict[str, int] = {}
        self._epochs: dict[int, int] = {}

    def note(self, append: Append) -> None:
        """Takes a committed write."""
        for record in append.records:
            name, transaction = parse_transaction(*record) or ("", None)
            if transaction is None:
                continue
            producer_id, epoch = transaction.producer_id, transaction.producer_epoch
            if self._present.get(name) != producer_id:
                assert producer_id not in self._epochs, f"{name} gets the producer id {producer_id} again"
                self._present[name] = producer_id
            assert epoch >= self._epochs.get(producer_id, 0), (
                f"the epoch of producer {producer_id} goes back to {epoch}"
            )
            self._epochs[producer_id] = epoch
