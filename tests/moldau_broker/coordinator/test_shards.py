"""Goal: a shard that loses its log accepts nothing more; one whose core fails goes on to serve.

Method: the shell around a coordinator's core alone, with a core and a log of the test.
"""

from __future__ import annotations

import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.records import encode_batch
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import LeaderEpoch, Offset
from moldau_broker.coordinator.group.shard import GroupShard
from moldau_broker.coordinator.runtime.effects import Answer, Append, RequestContext
from moldau_broker.coordinator.runtime.replicated import REPLAYED_PER_TURN, ReplicatedShard
from moldau_broker.coordinator.runtime.sharded import ShardedCoordinator


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


def test_a_leadership_that_ends_during_a_write_ends_the_shard() -> None:
    """The write finds it, within the effects of the core: those are performed first, because some are answers."""

    class Ending(Log):
        shard: Shard

        def append(self, *_: object) -> Offset:
            self.shard.resign(ErrorCode.NOT_COORDINATOR)
            assert not self.shard.resigned
            return Offset(1)

    async def main() -> None:
        log = Ending()
        shard = log.shard = shard_of(1, log)
        shard.may_end = trio.Event()
        shard.may_end.set()
        with trio.fail_after(5):
            await shard.run()
        assert shard.resigned

    trio.run(main)


class RequestCore(Core):
    """Answers requests, or fails as the test says."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        self.open: list[int] = []

    def start(self, moment: object) -> list[Any]:
        return []

    def handle(self, request_id: int, request: HeartbeatRequest, *_: object) -> list[Any]:
        self._fail_if("handle")
        if request.member_id == "waits":
            self.open.append(request_id)
            return []
        return [Answer(request_id=request_id, response=HeartbeatResponse())]

    def topics_deleted(self, *_: object) -> list[Any]:
        self._fail_if("topics_deleted")
        return []

    def on_timer(self, moment: object) -> list[Any]:
        self._fail_if("on_timer")
        return []

    def next_deadline_ms(self) -> Any:
        return 5_000 if "on_timer" in self.faults else None

    def resign(self, code: ErrorCode, moment: object) -> list[Any]:
        if "forgets" in self.faults:
            return []
        return [Answer(request_id=each, response=HeartbeatResponse(error_code=code)) for each in self.open]

    def _fail_if(self, fault: str) -> None:
        if fault in self.faults:
            self.faults.remove(fault)
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)


def group_shard(faults: list[str]) -> GroupShard:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1_000, wall_ms=lambda: 0)
    new_core: Any = lambda: RequestCore(faults)  # noqa: E731
    return GroupShard(
        partition=0,
        leader_epoch=LeaderEpoch(1),
        clock=clock,
        log=Log(),  # type: ignore[arg-type]
        new_core=new_core,
        load_bytes_max=1,
        logger=EventLogger("test"),
    )


def ask(shard: GroupShard, member_id: str = "m") -> Any:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    context = RequestContext(version=4, client_id="c", client_host="h", fresh_id="f")
    return shard.submit(request, context)


def test_an_error_about_a_request_answers_this_request() -> None:
    """A defect that one request finds costs no other request anything, now or when the leadership ends."""

    async def main() -> None:
        shard = group_shard(["handle"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.testing.wait_all_tasks_blocked()
            assert ask(shard).response().error_code == ErrorCode.UNKNOWN_MEMBER_ID
            assert shard.refusal is ErrorCode.NONE
            waiting = ask(shard, "waits")
            assert ask(shard).response().error_code == ErrorCode.NONE
            shard.resign(ErrorCode.NOT_COORDINATOR)
            assert waiting.response().error_code == ErrorCode.NOT_COORDINATOR

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("fault", ["on_timer", "topics_deleted"])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_failed_core_begins_again_from_the_log(fault: str, forgets: bool) -> None:
    """A defect in one group does not leave all groups of the partition without a coordinator."""

    async def main() -> None:
        faults = [fault, *(["forgets"] if forgets else [])]
        shard = group_shard(faults)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.testing.wait_all_tasks_blocked()
            first, waiting = shard.core, ask(shard, "waits")
            if fault == "topics_deleted":
                shard.topics_deleted(["t"])
                assert shard.refusal is ErrorCode.NOT_COORDINATOR, "its tasks end"
            await trio.sleep(5.5)
            assert waiting.response().error_code == ErrorCode.NOT_COORDINATOR
            await trio.sleep(1)
            assert not shard.resigned
            assert shard.refusal is ErrorCode.NONE
            assert shard.core is not first
            assert ask(shard).response().error_code == ErrorCode.NONE
            shard.resign(ErrorCode.NOT_COORDINATOR)
        assert shard.resigned

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_leadership_that_ends_during_the_pause_ends_the_shard() -> None:
    """The core has failed, and is not loaded yet."""

    async def main() -> None:
        shard = group_shard(["topics_deleted"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.testing.wait_all_tasks_blocked()
            shard.topics_deleted(["t"])
            await trio.sleep(0.5)
            assert shard.refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            shard.resign(ErrorCode.NOT_COORDINATOR)
        assert (shard.resigned, shard.core) == (True, None)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_write_of_a_failed_core_is_not_reported_to_the_next() -> None:
    """It is committed after the log was loaded again; the next core has a write of its own, and would mix them up."""
    faults, ids, committed = ["on_timer"], itertools.count(7), list[int]()

    class WritingCore(RequestCore):
        def start(self, moment: object) -> list[Any]:
            return [Append(append_id=next(ids))]

        def committed(self, append_id: int, moment: object) -> list[Any]:
            committed.append(append_id)
            return []

    class SlowLog(Log):
        async def wait_committed(self, partition: int, epoch: int, end_offset: Offset) -> None:
            if end_offset:
                await self.failed.wait()

    async def main() -> None:
        log = SlowLog()
        new_core: Any = lambda: WritingCore(faults)  # noqa: E731
        clock: Any = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1_000, wall_ms=lambda: 0)
        shard = Shard(
            partition=0,
            leader_epoch=LeaderEpoch(1),
            clock=clock,
            log=log,  # type: ignore[arg-type]
            new_core=new_core,
            load_bytes_max=1,
            logger=EventLogger("test"),
        )
        shard.may_end = trio.Event()
        shard.may_end.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.sleep(7)
            log.failed.set()
            await trio.testing.wait_all_tasks_blocked()
            shard.resign(ErrorCode.NOT_COORDINATOR)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert committed == [8]


class UnreadableLog(Log):
    """Holds ten records whose reads fail with the codes in turn; the last one fails all further reads."""

    def __init__(self, *codes: ErrorCode) -> None:
        super().__init__()
        self.codes = list(codes)
        self.reads: list[int] = []

    def log_start_offset(self, *_: object) -> Offset:
        return Offset(5 if self.reads else 0)

    def log_end_offset(self, *_: object) -> Offset:
        return Offset(10)

    async def wait_committed(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()

    async def read(self, partition: int, epoch: int, offset: int, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.reads.append(offset)
        assert self.codes, "it is read again"
        raise KafkaError(self.codes.pop(0))


@pytest.mark.parametrize(
    ("code", "is_damaged"), [(ErrorCode.NOT_LEADER_OR_FOLLOWER, False), (ErrorCode.CORRUPT_MESSAGE, True)]
)
def test_a_log_that_cannot_be_read_ends_the_shard(code: ErrorCode, is_damaged: bool) -> None:
    """The next leader loads the partition; only records that are deleted meanwhile are passed over."""

    async def main() -> None:
        log = UnreadableLog(ErrorCode.OFFSET_OUT_OF_RANGE, code)
        shard = shard_of(1, log)
        with trio.fail_after(5):
            await shard.run()
        assert log.reads == [0, 5]
        assert (shard.resigned, shard.corrupt, shard.core) == (not is_damaged, is_damaged, None)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_load_goes_on_after_a_shortage_of_descriptors() -> None:
    """The directory works and the broker still leads: no other broker would load the partition."""

    async def main() -> None:
        log = UnreadableLog(*[ErrorCode.KAFKA_STORAGE_ERROR] * 3, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        shard = shard_of(1, log)
        with trio.fail_after(5):
            await shard.run()
        assert log.reads == [0, 0, 0, 0]
        assert shard.resigned, "the leadership has ended"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_timer_that_is_always_due_leaves_other_tasks_a_turn() -> None:
    """A core with much to do keeps no other partition of the broker waiting."""
    turns, calls = 0, 0

    class BusyCore(RequestCore):
        def on_timer(self, moment: object) -> list[Any]:
            nonlocal calls
            calls += 1
            assert calls <= turns + 10, "nothing else runs"
            return []

        def next_deadline_ms(self) -> Any:
            return 0

    async def main() -> None:
        nonlocal turns
        shard = group_shard([])
        new_core: Any = lambda: BusyCore([])  # noqa: E731
        shard._new_core = new_core
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            for _ in range(50):
                await trio.lowlevel.checkpoint()
                turns += 1
            shard.resign(ErrorCode.NOT_COORDINATOR)
        assert calls > 20

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("count", [0, 3])
def test_records_that_were_passed_over_are_counted_in_the_log(count: int, caplog: pytest.LogCaptureFixture) -> None:
    """A state that is whole has no such line."""

    class OldCore(RequestCore):
        unreadable_records = count

    async def main() -> None:
        shard = group_shard([])
        new_core: Any = lambda: OldCore([])  # noqa: E731
        shard._new_core = new_core
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            await trio.testing.wait_all_tasks_blocked()
            shard.resign(ErrorCode.NOT_COORDINATOR)

    caplog.set_level(logging.INFO, "test")
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    lines = [each.getMessage() for each in caplog.records if "coordinator-skipped-records" in each.getMessage()]
    assert len(lines) == (1 if count else 0)
    assert all("count=3" in line for line in lines)


def test_a_leadership_that_is_reported_again_changes_nothing() -> None:
    """Only a newer epoch may have records of another leader; a shard that begins again answers nothing meanwhile."""
    made: list[tuple[int, int]] = []
    resigned: list[int] = []

    def new_shard(partition: int, epoch: int) -> Any:
        made.append((partition, epoch))
        return SimpleNamespace(leader_epoch=epoch, resign=lambda _: resigned.append(epoch))

    coordinator: ShardedCoordinator[Any] = ShardedCoordinator(lambda: 1, new_shard)
    for epoch in (3, 3, 2, 4, 3):
        coordinator.become_leader(0, LeaderEpoch(epoch))
    assert (made, resigned) == ([(0, 3), (0, 4)], [3])
    coordinator.resign(0, LeaderEpoch(3))
    assert resigned == [3], "an older epoch has ended"
    coordinator.resign(0, LeaderEpoch(5))
    assert resigned == [3, 4]


class LongLog(UnreadableLog):
    """Holds many records, which one read returns."""

    RECORDS = 5 * REPLAYED_PER_TURN + 1

    def log_start_offset(self, *_: object) -> Offset:
        return Offset(0)

    def log_end_offset(self, *_: object) -> Offset:
        return Offset(self.RECORDS)

    async def read(self, partition: int, epoch: int, offset: int, bytes_max: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(encode_batch([(0, b"key", b"value", ())] * self.RECORDS))


def test_others_have_their_turns_while_a_log_is_loaded() -> None:
    """A broker that takes over many partitions would stand still for seconds, and serve and replicate nothing."""
    replayed: list[int] = []

    class LoadedCore(Core):
        def start(self, moment: object) -> list[Any]:
            return []

        def replay(self, *_: object) -> None:
            replayed.append(1)

    async def main() -> None:
        shard = shard_of(1, LongLog())
        shard._new_core = LoadedCore
        shard.may_end = trio.Event()
        shard.may_end.set()
        turns = [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run)
            while shard.refusal is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
                turns.append(len(replayed))
            shard.resign(ErrorCode.NOT_COORDINATOR)
        assert len(replayed) == LongLog.RECORDS
        # The order of tasks differs from turn to turn, so the shard may run twice in between.
        assert max(after - before for before, after in itertools.pairwise(turns)) <= 2 * REPLAYED_PER_TURN

    trio.run(main)
