"""Goal: a shard that loses its log accepts nothing more, also while its last tasks end.

Method: the shell around a coordinator's core alone, with a core and a log of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import LeaderEpoch, Offset
from moldau_broker.coordinator.runtime.effects import Append
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard


class Core:
    """Writes once when it starts."""

    unreadable_records = 0

    def start(self, moment: object) -> list[Any]:
        return [Append(append_id=0)]

    def resign(self, code: ErrorCode, moment: object) -> list[Any]:
        return []

    def next_deadline_ms(self) -> None:
        return None


class Log:
    """Takes the write, and fails before it is committed."""

    def __init__(self) -> None:
        self.failed = trio.Event()

    def log_start_offset(self, *_: object) -> Offset:
        return Offset(0)

    log_end_offset = log_start_offset

    def append(self, *_: object) -> Offset:
        return Offset(1)

    async def wait_committed(self, partition: int, epoch: int, end_offset: Offset) -> None:
        if end_offset:
            await self.failed.wait()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)


class Shard(ReplicatedShard[Any]):
    """Has a task that ends some time after its cancellation, as one that waits for a disk."""

    def _batch(self, effect: Append) -> bytes:
        return b""

    def begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self.linger)

    async def linger(self) -> None:
        with trio.CancelScope(shield=True):
            await self.may_end.wait()

    may_end: trio.Event


def shard_of(epoch: int, log: Any) -> Shard:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: 0)
    return Shard(
        partition=0,
        leader_epoch=LeaderEpoch(epoch),
        clock=clock,
        log=log,
        new_core=Core,
        load_bytes_max=1,
        logger=EventLogger("test"),
    )


def test_a_shard_that_ends_accepts_no_request() -> None:
    """Its nursery takes no more tasks, so a request that starts one would end the broker."""

    async def main() -> None:
        log = Log()
        shard = shard_of(1, log)
        shard.may_end = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.testing.wait_all_tasks_blocked()
            serving = shard.refusal
            log.failed.set()
            await trio.testing.wait_all_tasks_blocked()
            ending, has_resigned = shard.refusal, shard.resigned
            shard.may_end.set()
        assert (serving, ending) == (ErrorCode.NONE, ErrorCode.NOT_COORDINATOR)
        assert not has_resigned, "the task still runs"
        assert shard.resigned

    trio.run(main)
