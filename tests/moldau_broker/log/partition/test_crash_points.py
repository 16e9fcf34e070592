"""Goal: a crash after any single write leaves a whole log.

Method: for each operation, the power fails after its first, second, third ... write, until the operation completes;
``make test`` leaves out writes between. The log after the restart is compared with the model (``support.log.model``).
"""

from __future__ import annotations

import pytest

from support.log.model import checkpoint, close, crash_after_each_write, restart_at, retention, roll, swap, truncate
from support.proof import all_examples, examples, proof_beyond

OPERATIONS = [
    (roll, False),
    (truncate, False),
    (swap, True),
    (checkpoint, False),
    (checkpoint, True),
    (retention, False),
    (restart_at, False),
    (close, False),
]

WRITES_OF_SWAP = 60
"""About so many: with few examples the power fails after each third."""


@pytest.mark.drawn
@pytest.mark.parametrize("power_lost", proof_beyond(1, [True, False]))
@pytest.mark.parametrize(("operation", "compact"), OPERATIONS, ids=[f"{op.__name__}-{c}" for op, c in OPERATIONS])
def test_crash_after_each_write(operation, compact: bool, power_lost: bool) -> None:
    step = WRITES_OF_SWAP // examples(WRITES_OF_SWAP) if operation is swap else 1 if all_examples() else 2
    assert crash_after_each_write(operation, compact=compact, power_lost=power_lost, step=step) > 2 * step
