"""Goal: DeleteRecords promises only what a leader can, and waits no longer than the client.

Method: the handler alone, on virtual time, with partitions of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau_broker.server.handlers.logs import handle_delete_records

CALL: Any = SimpleNamespace(version=2)
TIMEOUT_MS = 1_000


class Replicas:
    """Partitions with ten committed records. ``follow`` runs while the handler waits for their followers."""

    def __init__(self, follow: Any) -> None:
        self.waits = self
        self.low = 0
        self.noted: list[Any] = []
        self.partitions = [self.partition() for _ in range(3)]
        self._follow = follow

    def partition(self) -> Any:
        config = SimpleNamespace(compact=False, delete=True)
        log = SimpleNamespace(config=config, delete_records=lambda offset: offset)
        replica = SimpleNamespace(high_watermark=10)
        return SimpleNamespace(is_leader=True, is_internal=False, log=log, replica=replica)

    def note_change(self, partition: Any) -> None:
        """The followers hear of the new log start."""
        self.noted.append(partition)

    async def wait_low_watermark(self, partition: Any, offset: int) -> None:
        assert any(each is partition for each in self.noted), (
            "an idle follower would hear of its log start with the next record only"
        )
        await self._follow(self, partition)

    def low_watermark(self, partition: Any) -> int:
        return self.low


def codes(follow: Any, replicas: Replicas | None = None) -> tuple[list[int], float]:
    """Deletes the first five records of each partition; returns the error codes, and how long that took."""
    replicas = Replicas(follow) if replicas is None else replicas
    request = DeleteRecordsRequest(
        timeout_ms=TIMEOUT_MS,
        topics=[
            DeleteRecordsTopic(
                name="t", partitions=[DeleteRecordsPartition(partition_index=number, offset=5) for number in range(3)]
            )
        ],
    )
    context: Any = SimpleNamespace(replicas=replicas, leader=lambda _, number: replicas.partitions[number])

    async def main() -> tuple[DeleteRecordsResponse, float]:
        begun = trio.current_time()
        response = await handle_delete_records(context, request, CALL)
        return response, trio.current_time() - begun

    response, took_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return [part.error_code for part in response.topics[0].partitions], took_s


def test_a_leader_that_left_meanwhile_promises_nothing() -> None:
    """All replicas that it still knows have followed, but its successor may have more of them, or other records."""

    async def follow(replicas: Replicas, partition: Any) -> None:
        await trio.lowlevel.checkpoint()
        replicas.low = 5
        replicas.partitions[1].is_leader = False

    assert codes(follow)[0] == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]


def test_one_time_limit_holds_for_all_partitions() -> None:
    """No follower follows."""

    async def follow(replicas: Replicas, partition: Any) -> None:
        await trio.sleep_forever()

    found, took_s = codes(follow)
    assert found == [ErrorCode.REQUEST_TIMED_OUT] * 3
    assert took_s == pytest.approx(TIMEOUT_MS / 1_000)


def test_records_of_internal_topics_stay() -> None:
    """The states of share groups lie in a topic without compaction; only its coordinators know what is redundant."""

    async def follow(replicas: Replicas, partition: Any) -> None:
        await trio.lowlevel.checkpoint()
        replicas.low = 5

    replicas = Replicas(follow)
    replicas.partitions[1].is_internal = True
    assert codes(follow, replicas)[0] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]


def test_followers_hear_of_all_log_starts_before_the_wait() -> None:
    """A fetch that waits at the leader would bring the new log start to the follower only when its time is over."""
    heard: list[bool] = []

    async def follow(replicas: Replicas, partition: Any) -> None:
        await trio.lowlevel.checkpoint()
        heard.append(replicas.noted == replicas.partitions)
        replicas.low = 5

    assert codes(follow)[0] == [ErrorCode.NONE] * 3
    assert heard == [True] * 3
