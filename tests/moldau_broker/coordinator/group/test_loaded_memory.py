"""Goal: a coordinator that ends while it loads its partition leaves nothing in the count of the broker's memory.

Method: `GroupCoordinator` on virtual time over an in-memory log whose reads stop after a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.coordinator.group.coordinator import GroupCoordinator
from moldau_broker.coordinator.group.core.config import GroupConfig
from moldau_broker.coordinator.regexes import compile_regex
from support.coordinator.consumer_world import ConsumerClient
from support.coordinator.group_world import CoreDriver, MemoryLog, RefusingShareStates, Topics, World

if TYPE_CHECKING:
    from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from moldau.runtime.ports.environment import Environment


class StoppingLog(MemoryLog):
    """Reads the first batch, and then fails, yields damaged bytes or takes for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = ""

    async def read(self, partition: int, leader_epoch: int, offset: int, max_bytes: int) -> bytes:
        data = await super().read(partition, leader_epoch, offset, max_bytes)
        if not offset or not self.stops:
            return data
        if self.stops == "fails":
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.stops == "hangs":
            await trio.sleep_forever()
        return data[:-1] + bytes([data[-1] ^ 1])


def join(member_id: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerClient(CoreDriver(), member_id).request()


@pytest.mark.parametrize("stops", ["hangs", "fails", "is damaged"])
def test_an_interrupted_load_gives_the_memory_back(stops: str) -> None:
    """Leaders that change while partitions load would fill the count, until no member could join at this broker."""

    async def main() -> None:
        log = StoppingLog()
        coordinator = GroupCoordinator(
            environment=cast("Environment", World()),
            log=log,
            catalogue=Topics(),
            config=GroupConfig(load_bytes_max=1),
            partition_count=lambda: 1,
            share_states=RefusingShareStates(),
            compile_regex=compile_regex,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(coordinator.run)
            log.lead(0, 1)
            coordinator.become_leader(0, 1)
            await trio.testing.wait_all_tasks_blocked()
            for member_id in ("a", "b"):
                answer = await coordinator.handle(join(member_id), version=1, client_id="c", client_host="/h")
                assert answer.error_code == ErrorCode.NONE  # type: ignore[attr-defined]
            coordinator.resign(0, 1)
            assert coordinator._memory.used_bytes == 0
            log.stops = stops
            log.lead(0, 2)
            coordinator.become_leader(0, 2)
            await trio.testing.wait_all_tasks_blocked()
            coordinator.resign(0, 2)
            await trio.testing.wait_all_tasks_blocked()
            assert coordinator._memory.used_bytes == 0
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock())
