"""Goal: however much metadata changes at once, the event loop goes on between the steps.

Method: an applier over images of a size, with a task beside it that counts its turns.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau_broker.server.metadata_applier import STEPS, MetadataApplier
from moldau_quorum.image import MetadataImage

PARTITIONS = 400


@pytest.mark.parametrize(("waits", "turns_min"), [(True, PARTITIONS), (False, PARTITIONS // STEPS)])
def test_others_run_after_each_step_that_waited_for_the_disk(waits: bool, turns_min: int) -> None:
    turns = 0
    steps = 0

    def apply(delta):
        nonlocal steps
        for _ in range(PARTITIONS):
            steps += 1
            yield waits

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        applier = MetadataApplier(SimpleNamespace(image=MetadataImage()), apply)
        applier._metadata.image = MetadataImage(offset=5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(applier.run)
            nursery.start_soon(other)
            with trio.fail_after(10):
                await applier.begin()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert steps == PARTITIONS
    assert turns >= turns_min
    assert waits or turns < PARTITIONS, "steps in memory are taken several at a time"
