"""Goal: an answer that took long is not one of a former leader, and a coordinator is not kept waiting for it.

Method: the handlers alone, with partitions of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

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
from moldau_broker.server.coordination.transactions import MARKERS_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from moldau_broker.server.handlers.groups import offsets
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
        key="t-0",
        log=SimpleNamespace(local_log_start_offset=0, log_start_offset=0),
        search_timestamp=search_timestamp,
        replica=SimpleNamespace(high_watermark=9),
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


@pytest.mark.parametrize(
    ("version", "code"), [(5, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
@pytest.mark.parametrize(("timestamp", "found"), [(-1, None), (17, None), (17, 8)])
def test_a_new_leader_says_nothing_about_the_end_of_its_log(
    version: int, code: ErrorCode, timestamp: int, found: int | None
) -> None:
    """Its high watermark is behind: no end, no "no record is that late", and no record above it (KIP-207)."""

    def search_timestamp(timestamp: int) -> Iterator[None]:
        yield from ()
        return None if found is None else SimpleNamespace(offset=found, timestamp_ms=timestamp, leader_epoch=1)

    partition = SimpleNamespace(
        key="t-0",
        log=SimpleNamespace(local_log_start_offset=0, log_start_offset=0, last_stable_offset=5),
        search_timestamp=search_timestamp,
        replica=SimpleNamespace(high_watermark=5, epoch_start_offset=9, state=SimpleNamespace(leader_epoch=3)),
    )
    context: Any = SimpleNamespace(leader=lambda *_: partition)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    call: Any = SimpleNamespace(version=version, listener_name="l")
    answer: Any = handle_list_offsets(context, request, call)
    (part,) = answer.topics[0].partitions
    assert (part.error_code, part.offset) == (code, -1)


def test_all_questions_to_the_object_store_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits for the whole answer, and partitions are asked about one after the other (KIP-1075)."""

    async def answer(*_: object) -> None:
        await trio.sleep(2)
        if len(answered) > 1:
            await trio.sleep_forever()
        answered.append(trio.current_time() - begin)

    answered: list[float] = []
    monkeypatch.setattr(offsets, "answer", answer)
    context: Any = SimpleNamespace(remote_reader=object(), config=SimpleNamespace(get_int=lambda _: 5_000))
    question: Any = None

    async def main() -> float:
        nonlocal begin
        begin = trio.current_time()
        request = ListOffsetsRequest(timeout_ms=9_000)
        for _ in range(2):
            await offsets._ask(context, request, question, begin)
        with pytest.raises(KafkaError) as raised:
            await offsets._ask(context, request, question, begin)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        return trio.current_time() - begin

    begin = 0.0
    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(5.0)
    assert answered == pytest.approx([2.0, 4.0])


def markers_of(partitions: range) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=True,
                coordinator_epoch=0,
                topics=[WritableTxnMarkerTopic(name="t", partition_indexes=list(partitions))],
            )
        ]
    )


def test_markers_beyond_the_time_limit_are_not_appended() -> None:
    """Their coordinator has given the request up, and sends them again: the log would hold them twice."""
    now_ms, begun = 0.0, []

    def judge(*_: object) -> ErrorCode:
        nonlocal now_ms
        now_ms += MARKERS_TIMEOUT_MS / 100
        return ErrorCode.NONE

    def begin(marker: Any, key: Any) -> ErrorCode:
        begun.append(key)
        return ErrorCode.NONE

    request = markers_of(range(200))
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


@pytest.mark.parametrize("seconds_asked", [0, 5])
def test_the_coordinator_gets_the_answer_before_it_gives_up(seconds_asked: float) -> None:
    """One partition has written its marker, another lacks in-sync replicas: the first one is not to be sent again."""
    verdict = None if seconds_asked else ErrorCode.NONE

    async def ask(unsure: Any) -> Any:
        await trio.sleep(seconds_asked)
        return {(marker, key): ErrorCode.NONE for marker, keys in unsure.items() for key in keys}

    async def committed() -> ErrorCode:
        return ErrorCode.NONE

    async def uncommitted() -> ErrorCode:
        await trio.sleep_forever()
        raise AssertionError

    context: Any = SimpleNamespace(
        metadata=SimpleNamespace(partition_count=lambda: 2),
        marker_checks=SimpleNamespace(judge=lambda *_: verdict, ask=ask),
        markers=SimpleNamespace(begin=lambda _, key: uncommitted if key[1] else committed),
        environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)),
    )

    async def main() -> tuple[list[int], float]:
        began = trio.current_time()
        answer: Any = await handle_write_txn_markers(context, markers_of(range(2)), CALL).wait()
        took_ms = (trio.current_time() - began) * 1000
        return [part.error_code for part in answer.markers[0].topics[0].partitions], took_ms

    codes, took_ms = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert codes == [ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT]
    assert took_ms <= 0.8 * REQUEST_TIMEOUT_MS


def test_an_answer_about_markers_counts_where_it_is_needed() -> None:
    """While coordinators are asked, the partition may learn what refuses a marker, or moves away."""
    moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
    verdicts: dict[int, ErrorCode | None] = {0: None, 1: ErrorCode.NONE, 2: None}

    async def ask(unsure: Any) -> Any:
        await trio.lowlevel.checkpoint()
        verdicts.update({0: moved, 1: moved})
        return {(marker, key): ErrorCode.NONE for marker, keys in unsure.items() for key in keys}

    async def committed() -> ErrorCode:
        return ErrorCode.NONE

    context: Any = SimpleNamespace(
        metadata=SimpleNamespace(partition_count=lambda: 3),
        marker_checks=SimpleNamespace(judge=lambda _, key, __: verdicts[key[1]], ask=ask),
        markers=SimpleNamespace(begin=lambda *_: committed),
        environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0)),
    )

    async def main() -> list[int]:
        answer: Any = await handle_write_txn_markers(context, markers_of(range(3)), CALL).wait()
        return [part.error_code for part in answer.markers[0].topics[0].partitions]

    assert trio.run(main) == [moved, moved, ErrorCode.NONE]
