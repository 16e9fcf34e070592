"""Goal: a position that an aborted transaction was to store is stored by the next one.

It may be where a new partition begins. A restart that finds no position applies ``auto.offset.reset`` again, and with
``latest`` it would leave out what was written meanwhile.

Method: the flow of an exactly-once mirror alone, with stand-ins for its clients.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio

from moldau.cluster.metadata import TopicPartition
from moldau.mirror.core.formats import Position
from moldau.mirror.core.progress import Progress
from moldau.mirror.exactly_once import ExactlyOnce
from moldau.mirror.statistics import SourceStatistics
from moldau.producer import TransactionAbortedError
from moldau.protocol.errors import ErrorCode
from moldau.runtime.telemetry.log import EventLogger

PARTITION = TopicPartition("flights", 0)
BEGINNING = Position(40, UUID(int=7), 3)


class Target:
    """A target that refuses the first commit."""

    def __init__(self) -> None:
        self.sent: list[dict[TopicPartition, Position]] = []
        self.ends: list[str] = []

    def begin_transaction(self) -> None:
        assert len(self.ends) == len(self.sent), "one transaction at a time"

    async def send(self, producer: object, positions: dict[TopicPartition, Position]) -> None:
        await trio.lowlevel.checkpoint()
        self.sent.append(positions)

    async def commit_transaction(self, timeout_ms: float) -> None:
        await trio.lowlevel.checkpoint()
        if not self.ends:
            raise TransactionAbortedError(ErrorCode.TRANSACTION_ABORTABLE)
        self.ends.append("commit")

    async def abort_transaction(self, timeout_ms: float) -> None:
        await trio.lowlevel.checkpoint()
        self.ends.append("abort")


async def poll(*arguments: object, **options: object) -> list[object]:
    await trio.lowlevel.checkpoint()
    return []


def test_a_position_of_an_aborted_transaction_is_stored_later() -> None:
    progress, target = Progress(), Target()
    progress.begin(PARTITION, BEGINNING, is_news=True)
    parts: Any = SimpleNamespace(progress=progress, poll=poll)
    stand_in: Any = target
    flow = ExactlyOnce(
        parts,
        stand_in,
        stand_in,
        stand_in,
        stand_in,
        stand_in,
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        boundary_ms=0,
        timeout_ms=60_000,
        bytes_max=1,
        flush_ms=0,
        statistics=SourceStatistics(alias="source"),
        logger=EventLogger("test"),
    )

    async def main() -> None:
        for _ in range(3):
            await flow._step()

    trio.run(main)
    assert target.ends == ["abort", "commit"]
    assert target.sent == [{PARTITION: BEGINNING}, {PARTITION: BEGINNING}]
