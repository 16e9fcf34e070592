"""Goal: a position in the metadata log refuses the entries that a log with it cannot have, and no others.

Method: all short logs, beside the definition; then a follower whose floor is any position of a log, or is not.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, decode_fetch_request, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from moldau_quorum.metadata.records import Command, ControllerChangeRecord, encode_command

EPOCHS = (1, 2, 3)
LENGTH = 4

HISTORY = {0: 1, 1: None, 2: 1, 3: 2, 4: 2, 5: None, 6: 5, 7: 5}
"""The epoch of each command of a log by its offset; None for an entry of Raft itself."""


def logs() -> list[tuple[int | None, ...]]:
    """Returns all logs of a few entries: the epochs of commands, which never fall, and None for entries of Raft."""
    found = []
    for log in product((None, *EPOCHS), repeat=LENGTH):
        commands = [epoch for epoch in log if epoch is not None]
        if all(earlier <= later for earlier, later in pairwise(commands)):
            found.append(log)
    return found


def epoch_at(log: tuple[int | None, ...], offset: int) -> int | None:
    """Returns the epoch of the last command at or below an offset."""
    return next((epoch for epoch in reversed(log[: offset + 1]) if epoch is not None), None)


def test_a_position_refuses_what_no_log_with_it_has() -> None:
    every = logs()
    for offset, epoch in product(range(LENGTH), EPOCHS):
        position = MetadataPosition(offset=offset, epoch=epoch)
        possible = [log for log in every if epoch_at(log, offset) == epoch]
        for at, other in product(range(LENGTH), EPOCHS):
            is_possible = any(log[at] == other for log in possible)
            assert (position.refuses_entry(at, other) is None) == is_possible, (position, at, other)
        for other in EPOCHS:
            assert (position.refuses_content(other) is None) == (other == epoch)


class Controller:
    """A connection to a controller that has ``HISTORY``, and checks no position."""

    def __init__(self, per_answer: int) -> None:
        self.per_answer = per_answer

    async def connect(self, host: str, port: int) -> Controller:
        await trio.lowlevel.checkpoint()
        return self

    async def request_raw(self, key: int, version: int, body: bytes) -> bytes:
        await trio.sleep(0.01)
        first = decode_fetch_request(body).next_offset
        command = Command(controller_epoch=1, sequence=0, records=(ControllerChangeRecord(controller_id=101, epoch=1),))
        entries = tuple(
            (offset, epoch or 9, b"" if epoch is None else encode_command(command))
            for offset, epoch in HISTORY.items()
            if first <= offset < first + self.per_answer
        )
        return encode_fetch_response(MetadataFetchResponse(committed_offset=max(HISTORY), entries=entries))

    def close(self) -> None:
        """Has nothing to close."""


@pytest.mark.parametrize("per_answer", [1, 3, 100])
@pytest.mark.parametrize("offset", [*HISTORY, max(HISTORY) + 1])
def test_a_follower_takes_the_log_that_has_its_floor(offset: int, per_answer: int) -> None:
    """Any other one is refused, and listeners hear of none of its entries."""
    true_epoch = epoch_at(tuple(HISTORY.values()), offset) if offset in HISTORY else None

    async def main(world) -> None:
        for epoch in range(1, 7):
            reported: list[int] = []
            follower = MetadataFollower(
                world.node("b1").environment,
                {101: ("c101", 9093)},
                node_id=1,
                floor=MetadataPosition(offset=offset, epoch=epoch),
                on_delta=lambda delta, reported=reported: reported.append(delta.image.offset),
                connect=Controller(per_answer).connect,
            )
            with trio.move_on_after(2):
                await follower.run()
            if epoch == true_epoch:
                assert (follower.refusal, follower.caught_up) == ("", True)
                assert reported == sorted(reported)
                assert reported[0] >= offset
                assert reported[-1] == max(HISTORY)
            else:
                assert follower.refusal, (offset, epoch)
                assert (reported, follower.caught_up) == ([], False)

    run_world(main, 1)
