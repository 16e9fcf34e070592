"""Goal: an answer that took long is not one of a former leader, and a coordinator is not kept waiting for it.

Method: the handlers alone, with partitions of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from moldau_broker.server.coordination.transactions import REQUEST_TIMEOUT_MS
from moldau_broker.server.handlers.groups.offsets import handle_list_offsets
from moldau_broker.server.handlers.transactions import handle_write_txn_markers

if TYPE_CHECKING:
    from collections.abc import Iterator

CALL: Any = SimpleNamespace(version=7, listener_name="l")


def test_a_search_that_outlives_the_leadership_finds_nothing() -> None:
    """The next leader may have truncated what a former one has found meanwhile."""
    leads = True

    def search_timestamp(timestamp: int) -> Iterator[None]:
        nonlocal leads
        yield None
        leads = False
        return SimpleNamespace(offset=4, timestamp_ms=timestamp, leader_epoch=1)

    partition = SimpleNamespace(
        key="t-0", log=SimpleNamespace(search_timestamp=search_timestamp), replica=SimpleNamespace(high_watermark=9)
    )

    def leader(topic: str, index: int, epoch: int) -> Any:
        if not leads:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    wanted = ListOffsetsPartition(partition_index=0, timestamp=17)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    context: Any = SimpleNamespace(leader=leader)

    async def main() -> Any:
        later: Any = handle_list_offsets(context, request, CALL)
        return await later.finish()

    answer = trio.run(main).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_markers_beyond_the_time_limit_are_not_appended() -> None:
    """Their coordinator has given the request up, and sends them again: the log would hold them twice."""
    now_ms, begun = 0.0, []

    def judge(*_: object) -> ErrorCode:
        nonlocal now_ms
        now_ms += REQUEST_TIMEOUT_MS / 100
        return ErrorCode.NONE

    def begin(marker: Any, key: Any) -> ErrorCode:
        begun.append(key)
        return ErrorCode.NONE

    request = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=True,
                coordinator_epoch=0,
                topics=[WritableTxnMarkerTopic(name="t", partition_indexes=list(range(200)))],
            )
        ]
    )
    context: Any = SimpleNamespace(
        metadata=SimpleNamespace(partition_count=lambda: 200),
        marker_checks=SimpleNamespace(judge=judge),
        markers=SimpleNamespace(begin=begin),
        environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: now_ms)),
    )

    async def main() -> Any:
        return await handle_write_txn_markers(context, request, CALL).wait()

    partitions = trio.run(main).markers[0].topics[0].partitions
    codes = [part.error_code for part in partitions]
    assert codes == [ErrorCode.NONE] * len(begun) + [ErrorCode.REQUEST_TIMED_OUT] * (200 - len(begun))
    assert 95 < len(begun) < 105
