"""Goal: a position that an aborted transaction was to store is stored by the next one.

It may be where a new partition begins. A restart that finds no position applies ``auto.offset.reset`` again, and with
``latest`` it would leave out what was written meanwhile.

Method: the flow of an exactly-once mirror alone, with stand-ins for its clients.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio
import trio.testing

from moldau.cluster.metadata import TopicPartition
from moldau.mirror import flow as module
from moldau.mirror.core.formats import Position
from moldau.mirror.core.progress import Progress
from moldau.mirror.core.settings import parse_settings
from moldau.mirror.exactly_once import ExactlyOnce
from moldau.mirror.flow import SourceFlow
from moldau.mirror.sending import Sent
from moldau.mirror.statistics import SourceStatistics
from moldau.producer import ProducerFencedError, TransactionAbortedError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.exceptions import leaves
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PARTITION = TopicPartition("flights", 0)
BEGINNING = Position(40, UUID(int=7), 3)
SETTINGS = (
    'target = "h"\n[clusters.h]\n"bootstrap.servers" = "h:1"\n[clusters.e]\n"bootstrap.servers" = "e:1"\n'
    '[sources.e]\n"exactly.once.source.support" = "enabled"'
)


def answer_with(value: object) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        await trio.lowlevel.checkpoint()
        return value

    return answer


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


def flow_of(target: Any, progress: Progress, now_ms: Callable[[], float]) -> ExactlyOnce:
    reader: Any = SimpleNamespace(progress=progress, poll=poll)
    clock: Any = SimpleNamespace(monotonic_ms=now_ms)
    return ExactlyOnce(
        reader,
        target,
        target,
        target,
        target,
        target,
        clock=clock,
        boundary_ms=0,
        timeout_ms=60_000,
        bytes_max=1,
        flush_ms=0,
        statistics=SourceStatistics(alias="source"),
        logger=EventLogger("test"),
    )


def test_a_position_of_an_aborted_transaction_is_stored_later() -> None:
    progress, target = Progress(), Target()
    progress.begin(PARTITION, BEGINNING, is_news=True)
    flow = flow_of(target, progress, lambda: 0.0)

    async def main() -> None:
        for _ in range(3):
            await flow._step()

    trio.run(main)
    assert target.ends == ["abort", "commit"]
    assert target.sent == [{PARTITION: BEGINNING}, {PARTITION: BEGINNING}]


class Fencing(Target):
    """A target whose coordinator has fenced the producer before it aborts, ``after_ms`` after its transaction began."""

    def __init__(self, after_ms: float) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.after_ms = after_ms

    async def abort_transaction(self, timeout_ms: float) -> None:
        await trio.lowlevel.checkpoint()
        self.now_ms += self.after_ms
        raise ProducerFencedError(ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("after_ms", "code"), [(70_000.0, ErrorCode.REQUEST_TIMED_OUT), (10.0, ErrorCode.PRODUCER_FENCED)]
)
def test_an_abort_after_the_timeout_stops_no_mirror(after_ms: float, code: ErrorCode) -> None:
    """The coordinator has aborted a transaction that timed out; no other mirror has taken over."""
    progress, target = Progress(), Fencing(after_ms)
    progress.begin(PARTITION, BEGINNING, is_news=True)
    flow = flow_of(target, progress, lambda: target.now_ms)
    with pytest.raises(KafkaError) as failure:
        trio.run(flow._step)
    assert failure.value.code is code
    assert isinstance(failure.value, ProducerFencedError) == (code is ErrorCode.PRODUCER_FENCED)


@pytest.mark.parametrize(
    ("age_ms", "code"), [(70_000.0, ErrorCode.REQUEST_TIMED_OUT), (10.0, ErrorCode.PRODUCER_FENCED)]
)
def test_a_fence_is_judged_while_the_source_is_read(age_ms: float, code: ErrorCode) -> None:
    """The producer learns that it is fenced while the transaction waits for more records of the source."""
    target = Fencing(0.0)
    flow = flow_of(target, Progress(), lambda: target.now_ms)
    failed: Any = SimpleNamespace(failure=ProducerFencedError(ErrorCode.PRODUCER_FENCED))
    working: Any = SimpleNamespace(failure=None)

    async def wait(*arguments: object) -> list[object]:
        target.now_ms = age_ms
        await trio.sleep_forever()
        return []

    flow._reader = SimpleNamespace(poll=wait)  # type: ignore[assignment]
    flow._producer = failed

    async def main() -> None:
        settings: Any = SimpleNamespace(is_exactly_once=True, alias="source", target_alias="target")
        side: Any = SourceFlow(SimpleNamespace(), settings, trio.Event())  # type: ignore[arg-type]
        clients: Any = SimpleNamespace(producer=failed, side=working, syncs=working)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(side._watch_producers, clients)
            await flow.run(trio.Event())

    with pytest.raises(ExceptionGroup) as failure:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [error.code for error in leaves(failure.value)] == [code]


def test_batches_behind_one_that_is_too_large_shrink_nothing() -> None:
    """They fail because of it, and each would halve the limit of the partition again."""
    progress, target = Progress(), Target()
    progress.begin(PARTITION, BEGINNING)

    def refused() -> None:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)

    delivery: Any = SimpleNamespace(is_done=True, result=refused)
    sent: list[Sent] = []
    for end in (41, 42, 43):
        span = progress.sent(PARTITION, progress.generation(PARTITION), (), end, topic_id=UUID(int=7), leader_epoch=3)
        assert span is not None
        sent.append(Sent(span, delivery, end))
    shrunk: list[int] = []

    def shrinks(one: Sent, error: KafkaError) -> bool:
        shrunk.append(one.size_bytes)
        return True

    flow = flow_of(target, progress, lambda: 0.0)
    flow._reader = SimpleNamespace(progress=progress, back_to=lambda _: None)  # type: ignore[assignment]
    flow._sender = SimpleNamespace(shrinks=shrinks)  # type: ignore[assignment]
    trio.run(flow._abort, sent, {PARTITION: None}, TransactionAbortedError(ErrorCode.TRANSACTION_ABORTABLE))
    assert shrunk == [41]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_transaction_ends_with_the_log_that_it_copied(is_cut: bool) -> None:
    """The source's log is cut below records that are in the transaction already; others take their place."""
    progress, target, again = Progress(), Target(), []
    target.sent, target.ends = [{}], ["commit"]
    progress.begin(PARTITION, BEGINNING)
    now_ms = 0.0
    part: Any = SimpleNamespace(partition=PARTITION, batches=SimpleNamespace(batches=["a batch"]))

    async def poll(*arguments: object, may_assign: bool = True) -> list[object]:
        nonlocal now_ms
        await trio.lowlevel.checkpoint()
        if may_assign:
            return [part]
        now_ms += 10
        if is_cut:
            progress.begin(PARTITION, Position(45, UUID(int=7), 4), is_news=True)
        return []

    async def send(part: object, sent: list[Sent]) -> None:
        await trio.lowlevel.checkpoint()
        span = progress.sent(PARTITION, progress.generation(PARTITION), (), 50, topic_id=UUID(int=7), leader_epoch=3)
        assert span is not None
        sent.append(Sent(span, None, 0))

    flow = flow_of(target, progress, lambda: now_ms)
    flow._boundary_ms = 10
    flow._reader = SimpleNamespace(progress=progress, poll=poll, back_to=again.append, acknowledged=lambda _: None)  # type: ignore[assignment]
    flow._sender = SimpleNamespace(send=send)  # type: ignore[assignment]
    trio.run(flow._step)
    if is_cut:
        assert (target.ends[1:], target.sent[1:], again) == (["abort"], [], [PARTITION])
        assert progress.take_moved()[PARTITION].offset == 45
    else:
        assert (target.ends[1:], again) == (["commit"], [])
        assert target.sent[1][PARTITION].offset == 50


def test_a_start_that_is_found_during_a_transaction_is_stored() -> None:
    """A leader names the first offset of another partition while the transaction waits for more records."""
    progress, target, other = Progress(), Target(), TopicPartition("other", 0)
    target.sent, target.ends = [{}], ["commit"]
    progress.begin(PARTITION, BEGINNING, is_news=True)
    now_ms = 0.0

    async def poll(*arguments: object, may_assign: bool = True) -> list[object]:
        nonlocal now_ms
        await trio.lowlevel.checkpoint()
        if not may_assign:
            now_ms += 10
            progress.begin(other, BEGINNING, is_news=True)
        return [SimpleNamespace(partition=PARTITION, batches=SimpleNamespace(batches=["a batch"]))]

    async def send(part: object, sent: list[Sent]) -> None:
        await trio.lowlevel.checkpoint()

    flow = flow_of(target, progress, lambda: now_ms)
    flow._boundary_ms = 10
    flow._reader = SimpleNamespace(progress=progress, poll=poll)  # type: ignore[assignment]
    flow._sender = SimpleNamespace(send=send)  # type: ignore[assignment]
    trio.run(flow._step)
    assert target.sent[1:] == [{PARTITION: BEGINNING, other: BEGINNING}]


def test_positions_are_read_after_the_former_producer_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror of the same name commits until then: from earlier positions its last records would be copied again."""
    done: list[str] = []

    class Store:
        def __init__(self, *arguments: object) -> None:
            pass

        async def read(self) -> dict[TopicPartition, Position]:
            await trio.lowlevel.checkpoint()
            done.append("read")
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)  # ends the run

    async def init_transactions() -> None:
        await trio.lowlevel.checkpoint()
        done.append("fence")

    producer: Any = SimpleNamespace(init_transactions=init_transactions)

    async def answer(*arguments: object) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(producer=producer, consumer=None)

    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    flow: Any = SourceFlow(SimpleNamespace(), settings, trio.Event())  # type: ignore[arg-type]
    flow._open, flow._check_clusters, flow._create_internal = answer, answer, answer
    monkeypatch.setattr(module, "PositionStore", Store)
    with pytest.raises(KafkaError):
        trio.run(flow._run_once)
    assert done == ["fence", "read"]


def test_positions_outlive_a_run_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target need not have stored them, and ``latest`` would begin the next run behind other records."""

    async def answer(*arguments: object) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(
            producer=SimpleNamespace(init_transactions=answer), source=None, target=None, consumer=None
        )

    async def copy(clients: object, reader: Any, *arguments: object) -> None:
        await trio.lowlevel.checkpoint()
        reader.progress.begin(PARTITION, BEGINNING)
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION)

    (settings,) = parse_settings(SETTINGS, "mirror.toml").sources
    flow: Any = SourceFlow(SimpleNamespace(), settings, trio.Event())  # type: ignore[arg-type]
    flow._open, flow._check_clusters, flow._create_internal = answer, answer, answer
    flow._start_side_tasks, flow._copy = lambda *_: None, copy
    monkeypatch.setattr(module, "PositionStore", lambda *_: SimpleNamespace(read=answer_with({})))
    topics = SimpleNamespace(refresh=answer, topics=SimpleNamespace(known={}))
    monkeypatch.setattr(module, "TopicSync", lambda *_: topics)
    with pytest.raises(ExceptionGroup):
        trio.run(flow._run_once)
    assert flow._memory.positions == {PARTITION: BEGINNING}


@pytest.mark.parametrize("is_running", [False, True])
def test_a_mirror_that_is_stopped_waits_for_outcomes(is_running: bool) -> None:
    """Until it copies there are none, and a cluster that is down would hold it up."""

    async def main() -> float:
        stop = trio.Event()
        settings: Any = SimpleNamespace(alias="source", target_alias="target")
        flow = SourceFlow(SimpleNamespace(), settings, stop)  # type: ignore[arg-type]
        flow.statistics.is_running = is_running
        begun = trio.current_time()
        stop.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flow._end_at_stop, nursery.cancel_scope)
            await trio.sleep_forever()
        assert flow.statistics.ended_early == is_running
        return trio.current_time() - begun

    waited_s = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert waited_s == (module.STOP_MS / 1_000 if is_running else 0)


@pytest.mark.parametrize("failed", ["producer", "side", "syncs"])
def test_each_producer_that_has_failed_ends_the_run(failed: str) -> None:
    """Only a new one takes records again: without offset syncs no position of a group is translated any more."""
    failure = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    settings: Any = SimpleNamespace(is_exactly_once=False, alias="source", target_alias="target")
    side: Any = SourceFlow(SimpleNamespace(), settings, trio.Event())  # type: ignore[arg-type]
    producers = {
        name: SimpleNamespace(failure=failure if name == failed else None) for name in ("producer", "side", "syncs")
    }

    async def main() -> None:
        with trio.fail_after(60):
            await side._watch_producers(SimpleNamespace(**producers))

    with pytest.raises(KafkaError) as found:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert found.value is failure


def test_a_fence_of_a_young_transaction_stops_an_old_mirror() -> None:
    """The mirror has copied for longer than a transaction may last; another one has taken over just now."""
    progress, target = Progress(), Fencing(10.0)
    progress.begin(PARTITION, BEGINNING, is_news=True)
    flow = flow_of(target, progress, lambda: target.now_ms)
    target.now_ms = 70_000.0
    with pytest.raises(ProducerFencedError):
        trio.run(flow._step)
