"""Lets sequence numbers of producers end early, so that a run of some seconds sees them begin again at 0."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from moldau.records import batch
from moldau_broker.log.producers import producer_state
from moldau_jepsen.simulation.judge.rules import producers

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORT_END = 127
"""The last sequence number of such runs, instead of 2^31 - 1; five batches that are remembered have fewer records."""

_ENDS = ((batch, "SEQUENCE_MAX"), (producer_state, "_SEQUENCE_MASK"), (producers, "SEQUENCE_MASK"))


@contextlib.contextmanager
def sequences_end_at(last: int) -> Iterator[None]:
    """Makes 0 follow ``last``, which is a power of two less one, in clients, brokers and rules during the block."""
    assert last & (last + 1) == 0, f"{last} is no mask"
    former = [vars(module)[name] for module, name in _ENDS]
    try:
        for module, name in _ENDS:
            setattr(module, name, last)
        yield
    finally:
        for (module, name), value in zip(_ENDS, former, strict=True):
            setattr(module, name, value)
