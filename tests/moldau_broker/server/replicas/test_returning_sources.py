"""Goal: a follower returns to its leader at once when it may, and does not ask in a loop when it may not.

Method: the tasks that fetch alone, with a leader that refuses connections, or gives the same offsets again and again.
"""

from __future__ import annotations

from itertools import pairwise, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.runtime.tasks.sync import Signal
from moldau.values import BrokerId
from moldau_broker.log.errors import DescriptorsShortError, LogError, LogStorageError
from moldau_broker.log.values import EARLIEST_TIMESTAMP, TopicPartition
from moldau_broker.replication.follower import Followed, FollowState, Step, StepKind
from moldau_broker.server.replicas.replica_fetcher import (
    EXTENSION_MS,
    SUSPICION_MS,
    FetcherSettings,
    ReplicaFetchers,
    SourceKey,
    _Source,
)
from moldau_jepsen.world.world import run_world
from support.cluster.fetchers import fetchers_of

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

KEY, TOPIC_ID, LEADER = TopicPartition("t", 0), UUID(int=7), BrokerId(2)
BACKOFF_MS = 60_000.0


def partition_of(*, settles: bool) -> Any:
    log = SimpleNamespace(
        config=SimpleNamespace(bounds_unsynced=settles),
        log_end_offset=9,
        latest_epoch=1,
        log_start_offset=4,
        is_settled=True,
    )
    state = SimpleNamespace(leader=LEADER, leader_epoch=1)
    return SimpleNamespace(key=KEY, topic_id=TOPIC_ID, replica=SimpleNamespace(state=state, is_leader=False), log=log)


def fetchers_for(world: World, partition: Any, connect: Any) -> ReplicaFetchers:
    replicas: Any = SimpleNamespace(settled=Signal(), partitions={KEY: partition})
    settings = FetcherSettings(broker_id=BrokerId(1), fetch_backoff_ms=BACKOFF_MS)
    return fetchers_of(world, replicas, settings=settings, connect=connect)


@pytest.mark.parametrize("settles", [False, True], ids=["plain", "synced"])
def test_a_leader_that_registers_again_is_asked_at_once(settles: bool) -> None:
    """Partitions with a flush policy have a task of their own, whose back-off is another one."""

    async def main(world: World) -> None:
        asked = 0

        async def connect(*_: object) -> Any:
            nonlocal asked
            asked += 1
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError

        fetchers = fetchers_for(world, partition_of(settles=settles), connect)
        async with trio.open_nursery() as nursery:
            await nursery.start(fetchers.run)
            fetchers.follow(partition_of(settles=settles))
            await trio.sleep(10 * BACKOFF_MS / 1000)
            before = asked
            fetchers.broker_changed(LEADER)
            await trio.sleep(0.01)
            assert asked == before + 1
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("leader", [-1, 0, 1, 2, 7])
def test_every_other_broker_that_leads_is_followed(leader: int) -> None:
    """Ids of brokers begin with 0; -1 is none, and broker 1 is this one."""

    async def main(world: World) -> list[Any]:
        asked: list[Any] = []

        async def connect(*address: object) -> Any:
            asked.append(address)
            await trio.sleep_forever()

        partition = partition_of(settles=False)
        partition.replica.state.leader = BrokerId(leader)
        fetchers = fetchers_for(world, partition, connect)
        async with trio.open_nursery() as nursery:
            await nursery.start(fetchers.run)
            fetchers.follow(partition)
            await trio.sleep(1)
            fetchers.unfollow(KEY)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        return asked

    assert len(run_world(main, 1)) == (leader not in (-1, 1))


@pytest.mark.parametrize("settles", [False, True])
def test_a_changed_flush_policy_moves_a_partition_at_once(settles: bool) -> None:
    """The task of the other policy fetches it; an unchanged policy changes nothing."""

    async def main(world: World) -> None:
        async def connect(*_: object) -> Any:
            await trio.sleep_forever()

        partition = partition_of(settles=settles)
        fetchers = fetchers_for(world, partition, connect)
        async with trio.open_nursery() as nursery:
            await nursery.start(fetchers.run)
            fetchers.follow(partition)
            for policy in (settles, not settles, not settles, settles):
                partition.log.config.bounds_unsynced = policy
                before = dict(fetchers._sources)
                fetchers.policy_changed(partition)
                assert list(fetchers._sources) == [SourceKey(LEADER, policy)]
                assert (fetchers._sources == before) is (list(before) == list(fetchers._sources))
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_closed_connection_is_replaced_without_a_pause() -> None:
    """The leader may close it while the follower syncs; that is no failure of a fetch."""

    async def main(world: World) -> float:
        opened = trio.Event()

        async def connect(*_: object) -> Any:
            opened.set()
            await trio.sleep_forever()

        partition = partition_of(settles=False)
        fetchers = fetchers_for(world, partition, connect)
        source = _Source(fetchers, LEADER)
        closed: Any = SimpleNamespace(is_open=False, close=lambda: None)
        source._connection = closed
        source.core.add(
            Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        )
        async with trio.open_nursery() as nursery:
            begun_s = trio.current_time()
            nursery.start_soon(source.run)
            await opened.wait()
            nursery.cancel_scope.cancel()
        return trio.current_time() - begun_s

    assert run_world(main, 1) == 0


def test_a_reset_that_changes_nothing_is_not_repeated_at_once() -> None:
    """The leader refuses an offset that is within its own bounds, as one that has just been elected may do."""

    class Connection:
        async def request_as(self, response_class: type, request: ListOffsetsRequest, *_: object, **__: object) -> Any:
            await trio.lowlevel.checkpoint()
            offset = 4 if request.topics[0].partitions[0].timestamp == EARLIEST_TIMESTAMP else 9
            found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])

    async def main(world: World) -> FollowState:
        source = _Source(fetchers_for(world, partition_of(settles=False), None), LEADER)
        followed = Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        source.core.add(followed)
        steps: Any = [SimpleNamespace(followed=followed)]
        connection: Any = Connection()
        await source._reset(connection, steps)
        return followed.state

    assert run_world(main, 1) is FollowState.DELAYED


def test_a_reset_that_moves_a_log_is_followed_by_a_fetch_at_once() -> None:
    """The leader has the new offset, so there is no reason to wait."""

    async def main(world: World) -> FollowState:
        partition = partition_of(settles=False)
        fetchers = fetchers_for(world, partition, None)
        replicas: Any = fetchers._replicas
        replicas.follower_truncated = lambda _, offset: setattr(partition.log, "log_end_offset", offset)
        source = _Source(fetchers, LEADER)
        followed = Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        source.core.add(followed)

        async def answer(_: type, request: ListOffsetsRequest, *__: object, **___: object) -> Any:
            await trio.lowlevel.checkpoint()
            offset = 4 if request.topics[0].partitions[0].timestamp == EARLIEST_TIMESTAMP else 7
            found = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])

        connection: Any = SimpleNamespace(request_as=answer)
        steps: Any = [SimpleNamespace(followed=followed)]
        await source._reset(connection, steps)
        assert followed.fetch_offset == 7
        return followed.state

    assert run_world(main, 1) is FollowState.FETCHING


def test_a_log_without_its_producers_is_restored_after_a_pause() -> None:
    """The store may be away for a moment; until then the log is not fetched."""

    async def main(world: World) -> tuple[list[float], FollowState]:
        partition = partition_of(settles=False)
        partition.traffic = SimpleNamespace(remote_start_requests=0, remote_start_errors=0)
        source = _Source(fetchers_for(world, partition, None), LEADER)
        followed = Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        source.core.add(followed)
        source.core.restoring(followed)
        asked: list[float] = []

        async def restore(*_: object) -> None:
            await trio.lowlevel.checkpoint()
            asked.append(trio.current_time())
            if len(asked) < 3:
                raise OSError

        starts: Any = SimpleNamespace(restore_producers=restore)
        await source.rebuild(starts, partition, followed)
        return asked, followed.state

    asked, state = run_world(main, 1)
    assert [round(after - before, 1) for before, after in pairwise(asked)] == [BACKOFF_MS / 1000] * 2
    assert state is FollowState.FETCHING


def test_a_suspicion_is_not_prolonged_by_further_refusals() -> None:
    """A broker that stays away would be suspected for ever, and each answer about its partitions would be delayed."""

    async def main(world: World) -> list[bool]:
        fetchers, seen = fetchers_for(world, partition_of(settles=False), None), []
        for _ in range(5):
            fetchers.suspect(LEADER)
            seen.append(fetchers.is_suspect(LEADER))
            await trio.sleep(0.6 * SUSPICION_MS / 1000)
        fetchers.trust(LEADER)
        fetchers.suspect(LEADER)
        return [*seen, fetchers.is_suspect(LEADER), fetchers.is_suspect(BrokerId(3))]

    assert run_world(main, 1) == [True, True, False, False, False, True, False]


def test_a_fetch_without_an_answer_in_time_leaves_its_connection() -> None:
    """The next fetch would wait behind the late answer, and its own answer would be taken for that of another one."""

    class Silent:
        is_open = True

        def submit_frame(self, *_: object) -> Silent:
            return self

        async def wait_without_deadline(self) -> None:
            await trio.sleep_forever()

        def close(self) -> None:
            self.is_open = False

    async def main(world: World) -> list[bool]:
        opened: list[Any] = []

        async def connect(*_: object) -> Any:
            opened.append(Silent())
            await trio.lowlevel.checkpoint()
            return opened[-1]

        fetchers = fetchers_for(world, partition_of(settles=False), connect)
        async with trio.open_nursery() as nursery:
            await nursery.start(fetchers.run)
            fetchers.follow(partition_of(settles=False))
            settings = fetchers._settings
            allowed_ms = settings.fetch_wait_max_ms + settings.socket_timeout_ms + EXTENSION_MS
            await trio.sleep(allowed_ms / 1000 + 1)
            nursery.cancel_scope.cancel()
        return [each.is_open for each in opened[:2]]

    assert run_world(main, 1) == [False, False], "the second one is closed with its task"


@pytest.mark.parametrize("is_short", [False, True])
def test_a_follower_without_room_takes_offsets_and_waits(is_short: bool) -> None:
    """It would fetch the same records again and again; the log start that came with them may free the disk."""
    appended: list[bytes] = []
    advanced: list[tuple[int, int]] = []

    async def main(world: World) -> tuple[FollowState, float]:
        partition = partition_of(settles=False)
        partition.follower_throttled = False
        partition.traffic = SimpleNamespace(replication_bytes_in=0)
        partition.log.append_as_follower = lambda records, **_: (
            appended.append(records) or SimpleNamespace(size_bytes=len(records))
        )
        fetchers = fetchers_for(world, partition, None)
        replicas: Any = fetchers._replicas
        replicas.is_short_of_room = lambda *_: is_short
        replicas.follower_advanced = lambda _, *offsets: advanced.append(offsets)
        source = _Source(fetchers, LEADER)
        followed = Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        source.core.add(followed)
        answer: Any = SimpleNamespace(records=b"records", high_watermark=9, log_start_offset=6)
        source._advance(partition, Step(StepKind.ADVANCE, followed, answer))
        return followed.state, followed.delayed_until_ms - world.node("b1").environment.clock.monotonic_ms()

    state, pause_ms = run_world(main, 1)
    assert (appended, advanced) == ([] if is_short else [b"records"], [(9, 6)])
    assert (state, pause_ms > 0) == ((FollowState.DELAYED, True) if is_short else (FollowState.FETCHING, False))


def test_a_throttled_partition_hides_no_other_one() -> None:
    """Each partition whose pause is over waits on while the rate is used up, wherever it is among the others."""

    async def main(world: World) -> None:
        clock = world.node("b1").environment.clock
        for late in product((False, True), repeat=3):
            fetchers = fetchers_for(world, partition_of(settles=False), None)
            replicas: Any = fetchers._replicas
            replicas.follower_throttle = SimpleNamespace(wait_ms=lambda _: 400.0)
            source = _Source(fetchers, LEADER)
            now_ms = clock.monotonic_ms()
            for number, is_late in enumerate(late):
                key = TopicPartition("t", number)
                numbers: Any = {"leader_epoch": 1, "fetch_offset": 9, "last_fetched_epoch": 1, "log_start_offset": 4}
                followed = Followed(key, TOPIC_ID, **numbers)
                source.core.add(followed)
                source.core.delay(followed, now_ms, 300.0 if is_late else 100.0)
                partition: Any = SimpleNamespace(follower_throttled=True)
                source._throttled[key] = followed, partition
            source._recheck_throttled(now_ms + 100.0)
            pauses = [each.delayed_until_ms - now_ms for each, _ in source._throttled.values()]
            assert pauses == [300.0 if is_late else 500.0 for is_late in late]

    run_world(main, 1)


@pytest.mark.parametrize("error", [LogError, DescriptorsShortError, LogStorageError])
def test_records_that_cannot_be_appended_are_fetched_again_later(error: type[LogError]) -> None:
    """The leader would send them again at once; a replica whose directory has failed is not fetched any more."""
    failed: list[Exception] = []

    def refuse(*_: object, **__: object) -> Any:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, "damaged") if error is LogError else error("/d1", "no room")

    async def main(world: World) -> FollowState:
        partition = partition_of(settles=False)
        partition.log.append_as_follower = refuse
        fetchers = fetchers_for(world, partition, None)
        replicas: Any = fetchers._replicas
        replicas.is_short_of_room, replicas.directory_failed = lambda *_: False, failed.append
        source = _Source(fetchers, LEADER)
        followed = Followed(KEY, TOPIC_ID, leader_epoch=1, fetch_offset=9, last_fetched_epoch=1, log_start_offset=4)
        source.core.add(followed)
        answer: Any = SimpleNamespace(records=b"records", high_watermark=9, log_start_offset=6)
        assert source._perform(
            Step(StepKind.ADVANCE, followed, answer), world.node("b1").environment.clock.monotonic_ms()
        )
        return followed.state

    state = run_world(main, 1)
    assert len(failed) == (error is not LogError)
    assert state is (FollowState.FETCHING if error is LogStorageError else FollowState.DELAYED)
