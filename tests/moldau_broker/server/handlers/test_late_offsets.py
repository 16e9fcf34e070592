"""Goal: offsets of a transaction are written only while it is open, and are read only as stable as they are asked for;
only ordinary markers need no question.

Method: the handler and the checks alone, with a coordinator of the test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from moldau.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from moldau.values import BrokerId
from moldau_broker.coordinator.runtime.effects import Marker, TransactionalProducer
from moldau_broker.coordinator.transaction.core.state import EPOCH_MAX
from moldau_broker.server.coordination.marker_checks import MarkerChecks
from moldau_broker.server.coordination.transactions import TransactionMarkers
from moldau_broker.server.handlers.context import LongAnswer
from moldau_broker.server.handlers.groups.membership import GROUPS_PER_TURN, handle_offset_fetch
from moldau_broker.server.handlers.transactions import _offsets_refusal

NONE, GONE = ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE
KEY = ("__consumer_offsets", 3)


def refusal(version: int, answer: ErrorCode, *, ends: bool = False, moves: bool = False) -> ErrorCode:
    """Returns the verdict on offsets; while the coordinator is asked, a transaction ends or the leader changes."""
    producers = SimpleNamespace(has_ongoing_transaction=lambda *_: False)
    partition = SimpleNamespace(
        is_leader=True,
        key=SimpleNamespace(topic=KEY[0], partition=KEY[1]),
        ends_seen=(7, 1),
        log=SimpleNamespace(producer_state=producers),
    )

    async def ask(transactional_id: str, producer_id: int, epoch: int, keys: list[Any]) -> dict[Any, ErrorCode]:
        await trio.lowlevel.checkpoint()
        partition.ends_seen = (7 + moves, 1 + ends)
        return dict.fromkeys(keys, answer)

    context: Any = SimpleNamespace(
        config=SimpleNamespace(get_bool=lambda _: True),
        groups=SimpleNamespace(partition_of=lambda _: KEY[1]),
        replicas=SimpleNamespace(partitions={KEY: partition}),
        verifier=SimpleNamespace(add=ask, verify=ask),
    )
    return trio.run(_offsets_refusal, context, TxnOffsetCommitRequest(transactional_id="x", group_id="g"), version)


@pytest.mark.parametrize("change", ["ends", "moves"])
def test_offsets_whose_marker_passed_meanwhile_are_refused(change: str) -> None:
    """At level 1 the marker of this transaction has the epoch of the offsets: nothing would end them again."""
    assert refusal(4, NONE) is NONE
    assert refusal(4, NONE, **{change: True}) is GONE
    assert refusal(5, NONE, **{change: True}) is NONE, "at level 2 the epoch of such offsets is over"


@pytest.mark.parametrize(
    ("answer", "before_4", "at_4", "at_5"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, *[ErrorCode.TRANSACTION_ABORTABLE] * 2),
        (ErrorCode.CONCURRENT_TRANSACTIONS, GONE, GONE, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NETWORK_EXCEPTION, GONE, GONE, GONE),
        (ErrorCode.INVALID_PRODUCER_EPOCH, *[ErrorCode.INVALID_PRODUCER_EPOCH] * 3),
    ],
)
def test_answers_about_offsets_fit_the_version(answer, before_4, at_4, at_5) -> None:
    assert [refusal(version, answer) for version in (3, 4, 5)] == [before_4, at_4, at_5]


@pytest.mark.parametrize("known", [4, EPOCH_MAX - 1, EPOCH_MAX])
def test_a_marker_of_any_end_needs_no_question(known: int) -> None:
    """An end keeps the epoch, raises it by one, or by two for a new producer; all others are asked about."""
    here = SimpleNamespace(producer_epoch=known, coordinator_epoch=9, current_transaction_start_offset=5)
    state = SimpleNamespace(describe_producer=lambda _: here)
    partition = SimpleNamespace(is_leader=True, log=SimpleNamespace(producer_state=state))
    metadata: Any = SimpleNamespace(inter_broker_listener="b", image=SimpleNamespace(next_producer_id=100))
    replicas: Any = SimpleNamespace(partitions={KEY: partition})
    verifier: Any = SimpleNamespace(coordinator_epoch=lambda _: 9)
    checks = MarkerChecks(metadata, replicas, verifier)
    for raised in range(-1, 4):
        producer = TransactionalProducer(producer_id=1, producer_epoch=known + raised)
        marker = Marker(producer=producer, coordinator_epoch=9, commit=True)
        is_usual = 0 <= raised <= 2 and known + raised <= EPOCH_MAX
        assert checks.judge(marker, KEY, "b") is (NONE if is_usual else None), raised


def test_a_marker_counts_before_offsets_can_follow_it() -> None:
    """Offsets whose coordinator answers while the marker is written must find that it has passed them."""
    producers = SimpleNamespace(has_ongoing_transaction=lambda *_: False)
    partition = SimpleNamespace(marker_count=4, log=SimpleNamespace(producer_state=producers))
    unused: Any = None
    replicas: Any = SimpleNamespace(partitions={KEY: partition})
    markers = TransactionMarkers(BrokerId(1), unused, replicas, unused)
    counts: list[int] = []
    groups: Any = SimpleNamespace(complete_transaction=lambda *_: counts.append(partition.marker_count))
    markers.connect(groups)
    producer = TransactionalProducer(producer_id=1, producer_epoch=0)
    markers.begin(Marker(producer=producer, coordinator_epoch=9, commit=False), KEY)
    assert counts == [5]


def test_a_marker_that_an_answer_leaves_out_was_not_written() -> None:
    """Nor does a leader end the coordinator's work with an entry about another producer or another partition."""
    moved, fenced = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.TRANSACTION_COORDINATOR_FENCED
    entries = [(7, ("t", 0), moved), (7, ("t", 0), NONE), (8, ("t", 1), NONE), (7, ("t", 5), fenced)]
    answer = WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=producer,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic,
                        partitions=[WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)],
                    )
                ],
            )
            for producer, (topic, index), code in entries
        ]
    )

    async def request(*_: object) -> WriteTxnMarkersResponse:
        await trio.lowlevel.checkpoint()
        return answer

    unused: Any = None
    metadata: Any = SimpleNamespace(partition=lambda *_: SimpleNamespace(leader=2), image=SimpleNamespace(features={}))
    peers: Any = SimpleNamespace(request=request)
    markers = TransactionMarkers(BrokerId(1), metadata, unused, peers)
    marker = Marker(producer=TransactionalProducer(producer_id=7, producer_epoch=0), coordinator_epoch=9, commit=True)
    assert trio.run(markers.write_markers, marker, (("t", 0), ("t", 1))) == {
        ("t", 0): moved,
        ("t", 1): ErrorCode.UNKNOWN_SERVER_ERROR,
    }


def test_offsets_of_many_groups_are_as_stable_as_asked() -> None:
    """More groups than one turn reads are asked for in parts, each of which wants what the request wants."""
    asked: list[tuple[int, bool]] = []

    def submit(request: OffsetFetchRequest, **_: object) -> Any:
        asked.append((len(request.groups), request.require_stable))

        async def wait() -> OffsetFetchResponse:
            await trio.lowlevel.checkpoint()
            return OffsetFetchResponse()

        return SimpleNamespace(wait=wait)

    context: Any = SimpleNamespace(authorizer=None, groups=SimpleNamespace(submit=submit))
    call: Any = SimpleNamespace(version=8, client_id="c", client_host="h")
    groups = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(GROUPS_PER_TURN + 1)]
    for is_stable in (True, False):
        answer = handle_offset_fetch(context, OffsetFetchRequest(groups=groups, require_stable=is_stable), call)
        assert isinstance(answer, LongAnswer)
        trio.run(answer.finish)
    assert asked == [(GROUPS_PER_TURN, True), (1, True), (GROUPS_PER_TURN, False), (1, False)]


def test_all_entries_of_a_group_are_read_at_once() -> None:
    """The coordinator unites them: read in two parts, a group would be answered twice, each time in part."""
    asked: list[list[str]] = []

    def submit(request: OffsetFetchRequest, **_: object) -> Any:
        asked.append([group.group_id for group in request.groups])

        async def wait() -> OffsetFetchResponse:
            await trio.lowlevel.checkpoint()
            return OffsetFetchResponse()

        return SimpleNamespace(wait=wait)

    context: Any = SimpleNamespace(authorizer=None, groups=SimpleNamespace(submit=submit))
    call: Any = SimpleNamespace(version=8, client_id="c", client_host="h")
    names = [f"g{number % GROUPS_PER_TURN}" for number in range(2 * GROUPS_PER_TURN)]
    groups = [OffsetFetchRequestGroup(group_id=name, topics=[]) for name in names]
    answer = handle_offset_fetch(context, OffsetFetchRequest(groups=groups), call)
    assert isinstance(answer, LongAnswer)
    trio.run(answer.finish)
    assert sorted(name for part in asked for name in part) == sorted(names)
    assert sum(len(set(part)) for part in asked) == GROUPS_PER_TURN, "each group is in one part"
