"""Goal: every transaction of two producers ends once, as its producer learned, whatever happens in between.

Method: all histories of requests, late copies, refused and lost writes, markers, a timeout and failovers, up to a
depth. The partition applies markers by the rules of a leader; from every state the world must come to rest.
"""

from __future__ import annotations

import pytest

from support.histories.explorer import explore
from support.histories.transactions import Transactions, second_transaction


def test_short_histories_of_transactions_keep_promises():
    assert explore(Transactions, 5, copies=False).states > 2_000


def test_late_requests_leave_the_second_transaction_alone():
    assert explore(second_transaction, 4, copies=False).states > 500


@pytest.mark.proof
@pytest.mark.parametrize(("scene", "depth"), [(Transactions, 7), (second_transaction, 6)])
def test_longer_histories_of_transactions_keep_promises(scene, depth):
    assert explore(scene, depth, copies=False).states > 3_000
