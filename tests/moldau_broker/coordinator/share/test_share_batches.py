"""Goal: combined batches say of each offset what the strongest batch says, and nothing else.

Method: all lists of up to three batches over five offsets are compared with a naive table of offsets.
"""

from itertools import pairwise, product

import pytest

from moldau_broker.coordinator.share.core.batches import StateBatch, combine

RANGES = [(first, last) for first in range(4) for last in range(first, 4)]
STATES = [(0, 1), (2, 1), (0, 2)]
BATCHES = [StateBatch(first, last, state, count) for (first, last), (state, count) in product(RANGES, STATES)]


def table(batches, start_offset: int) -> dict[int, tuple[int, int]]:
    """Returns count and state of each offset."""
    found: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(max(batch.first_offset, start_offset), batch.last_offset + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (batch.delivery_count, batch.delivery_state))
    return found


def check(batches, start_offset: int) -> None:
    found = combine(batches, start_offset)
    assert table(found, -1) == table(batches, start_offset)
    for left, right in pairwise(found):
        assert left.last_offset < right.first_offset
        assert left.last_offset + 1 < right.first_offset or left[2:] != right[2:], "two batches of the same state"


@pytest.mark.parametrize("start_offset", [-1, 2])
def test_all_lists_of_up_to_three_batches(start_offset: int) -> None:
    for first in BATCHES:
        check([first], start_offset)
        for second in BATCHES:
            check([first, second], start_offset)
    for chosen in product(BATCHES[::2], BATCHES[::3], BATCHES[1::4]):
        check(chosen, start_offset)


def test_batches_that_kafka_documents() -> None:
    """Golden cases: overlap on both sides, a hole, and a start offset inside a batch."""
    assert combine([StateBatch(100, 110, 0, 1), StateBatch(105, 115, 0, 2)], -1) == (
        StateBatch(100, 104, 0, 1),
        StateBatch(105, 115, 0, 2),
    )
    assert combine([StateBatch(100, 120, 0, 1), StateBatch(105, 110, 2, 1)], -1) == (
        StateBatch(100, 104, 0, 1),
        StateBatch(105, 110, 2, 1),
        StateBatch(111, 120, 0, 1),
    )
    assert combine([StateBatch(100, 110, 0, 1), StateBatch(111, 119, 0, 1)], 109) == (StateBatch(109, 119, 0, 1),)
    assert combine([StateBatch(100, 110, 0, 1)], 111) == ()
