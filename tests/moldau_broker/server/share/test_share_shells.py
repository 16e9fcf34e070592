"""Goal: what a member acknowledges, and when it leaves, is seen for each share-partition by itself.

Method: the shells of share groups and of their requests alone, with stand-ins for the replicas; virtual time.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.handlers.groups.share_delivery import _Work, handle_share_acknowledge
from moldau_broker.server.share.core.sessions import ShareSessions
from moldau_broker.server.share.core.values import AcquireMode, ShareLimits
from moldau_broker.server.share.led_partition import LedPartition, Pending
from moldau_broker.server.share.persister import ShareKey
from moldau_broker.server.share.settings import ShareGroupSettings
from moldau_broker.server.share.share_partition_manager import IDLE_MS, SWEEP_MS, SharePartitionManager
from moldau_jepsen.world.world import run_world
from support.share.memory_persister import MemoryPersister

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

TOPIC = UUID(int=1)
SETTINGS = ShareGroupSettings(
    limits=ShareLimits(delivery_count_max=5, record_locks_max=100, lock_duration_ms=30_000),
    reads_committed=False,
    renew_allowed=False,
    reset="earliest",
)
NO_LETTERS: Any = SimpleNamespace(write=None)
"""For groups without a dead letter queue."""


def partition_of(topic: UUID = TOPIC) -> Any:
    state = SimpleNamespace(leader_epoch=3)
    replica = SimpleNamespace(state=state, high_watermark=9, epoch_start_offset=0)
    log = SimpleNamespace(log_start_offset=0, local_log_start_offset=0, log_end_offset=9)
    return SimpleNamespace(
        topic_id=topic,
        key=SimpleNamespace(topic="t", partition=0),
        replica=replica,
        log=log,
        check_access=lambda *_, **__: ErrorCode.NONE,
    )


def groups_of(
    world: World, replicas: Any, memory: MemoryPersister, settings: ShareGroupSettings = SETTINGS
) -> SharePartitionManager:
    return SharePartitionManager(
        world.node("n").environment,
        replicas,
        memory,
        lambda _: settings,
        NO_LETTERS,
        is_enabled=lambda: True,
        sessions_max=10,
        logger=EventLogger("test"),
    )


def acquire_next(groups: SharePartitionManager, led: LedPartition, member: str, now_ms: float) -> list[tuple[int, int]]:
    """Gives the next record to a member, as a fetch does."""
    assert led.core is not None
    offset = led.core.next_fetch_offset
    found = led.core.acquire(
        member,
        [(offset, offset + 1)],
        fetch_offset=offset,
        records_max=10,
        batch_size=1,
        mode=AcquireMode.BATCH_OPTIMIZED,
        now_ms=now_ms,
        aborted=(),
    )
    groups._arm(led)
    return [(each.first, each.last) for each in found]


def groups_that_read(world: World) -> SharePartitionManager:
    """Groups whose states are read for 100 ms."""
    memory = MemoryPersister()
    memory.delay_ms = 100.0
    replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
    return groups_of(world, replicas, memory)


def test_a_group_that_left_while_its_state_was_read_is_forgotten() -> None:
    """Its offsets may be altered then, and only a state that is read again shows that (as in F310)."""

    async def main(world: World) -> None:
        groups = groups_that_read(world)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            key = (TOPIC, 0)
            groups.sessions.fetch(("stays", "m"), 0, [key], (), acknowledges=False, owner="c")
            for group in ("left", "stays"):
                groups.open(group, partition_of())
            await trio.sleep(1)
            assert groups.find("left", key) is None
            stays = groups.find("stays", key)
            assert stays is not None
            assert stays.core is not None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("members", [1, 2])
def test_the_last_member_leaves_no_state_behind(members: int) -> None:
    """No record is acquired then, so no write ends the share-partition; its offsets may be altered from now on."""

    async def main(world: World) -> None:
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, MemoryPersister())
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            key = (TOPIC, 0)
            for number in range(members):
                groups.sessions.fetch(("g", f"m{number}"), 0, [key], (), acknowledges=False, owner=number)
            groups.open("g", partition_of())
            await trio.sleep(1)
            for number in range(members):
                assert groups.find("g", key) is not None
                groups.connection_closed(number)
            assert groups.find("g", key) is None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize(
    ("leads", "leader_epoch", "is_same", "stays"),
    [(True, 3, True, True), (False, 3, True, False), (True, 5, True, False), (True, 3, False, False)],
)
def test_a_state_lasts_for_one_leader_epoch(
    leads: bool, leader_epoch: int, is_same: bool, stays: bool, is_read: bool
) -> None:
    """Another leader may have stored acknowledgements between two epochs of this one, which would deliver them again.

    A broker that is behind takes over both changes of the leader as one, and leads before and after it.
    """

    async def main(world: World) -> None:
        groups = groups_that_read(world)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            key = (TOPIC, 0)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="c")
            partition = partition_of()
            led = groups.open("g", partition)
            await trio.sleep(1 if is_read else 0.05)
            assert (led.core is not None) is is_read
            changed = partition if is_same else partition_of()
            changed.replica.state.leader_epoch = leader_epoch
            groups.leadership_changed(changed, leads)
            await trio.sleep(1)
            assert (groups.find("g", key) is led) is stays
            assert led.error is (ErrorCode.NONE if stays else ErrorCode.NOT_LEADER_OR_FOLLOWER)
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("refusals", [[], [ErrorCode.COORDINATOR_NOT_AVAILABLE]])
def test_fetches_that_wait_for_a_state_go_on_with_it(refusals: list[ErrorCode]) -> None:
    """Else the first fetch of a group would wait for its deadline, though records are there, or the state is not."""

    async def main(world: World) -> None:
        memory, woken = MemoryPersister(), []
        memory.delay_ms, memory.refusals = 100.0, refusals
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=woken.append))
        groups = groups_of(world, replicas, memory)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [(TOPIC, 0)], (), acknowledges=False, owner="c")
            led = groups.open("g", partition_of())
            assert not woken
            await trio.sleep(1)
            assert led.watch in woken
            assert led.is_acquirable(SETTINGS), "there are records, or an error"
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_group_that_was_set_back_begins_in_its_epoch() -> None:
    """The first write of a state names its epoch, or the share coordinator refuses it and the group reads nothing."""

    async def main(world: World) -> None:
        memory, key = MemoryPersister(), ShareKey("g", TOPIC, 0)
        memory.state_epochs[key] = 4
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [(TOPIC, 0)], (), acknowledges=False, owner="c")
            led = groups.open("g", partition_of())
            await trio.sleep(1)
            assert led.error is ErrorCode.NONE
            assert memory.start_offsets[key] == 0
            limits = replace(SETTINGS.limits, record_locks_max=7)
            groups.settings = lambda _: replace(SETTINGS, limits=limits)
            assert groups.open("g", partition_of()) is led
            assert led.core is not None
            assert led.core.limits is limits, "those of the next fetch are the present ones"
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_an_unknown_topic_hides_no_other_acknowledgement() -> None:
    known, gone = UUID(int=1), UUID(int=2)
    image = SimpleNamespace(topics_by_id={known: SimpleNamespace(name="t", partitions={0: None})}, brokers={})
    sessions = ShareSessions(sessions_max=1)
    sessions.fetch(("g", "m"), 0, [(gone, 0), (known, 0)], (), acknowledges=False, owner="c")
    taken: list[UUID] = []

    def acknowledge(led: Any, member: str, batches: Any) -> tuple[ErrorCode, None]:
        taken.append(led.topic_id)
        return ErrorCode.NONE, None

    shares = SimpleNamespace(
        is_enabled=lambda: True,
        sessions=sessions,
        settings=lambda _: SETTINGS,
        open=lambda _, partition: partition,
        acknowledge=acknowledge,
    )
    context: Any = SimpleNamespace(
        share_partitions=shares,
        metadata=SimpleNamespace(image=image),
        replicas=SimpleNamespace(by_raw_id={(known.bytes, 0): partition_of()}),
        authorizer=None,
        broker_id=1,
    )
    batches = [AcknowledgementBatch(first_offset=0, last_offset=1, acknowledge_types=(1,))]
    request = ShareAcknowledgeRequest(
        group_id="g",
        member_id="m",
        share_session_epoch=1,
        topics=[
            AcknowledgeTopic(
                topic_id=topic, partitions=[AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)]
            )
            for topic in (gone, known)
        ],
    )
    call: Any = SimpleNamespace(version=1, listener_name="l", identity=None)
    response = trio.run(handle_share_acknowledge, context, request, call)
    codes = {topic.topic_id: topic.partitions[0].error_code for topic in response.responses}
    assert codes == {gone: ErrorCode.UNKNOWN_TOPIC_ID, known: ErrorCode.NONE}
    assert taken == [known]


def test_a_right_taken_away_ends_a_delivery_that_waits() -> None:
    """A fetch may wait for minutes, and looks its partitions up again at each record."""
    rights = {"t": True}
    authorizer = SimpleNamespace(decide=lambda *question: SimpleNamespace(is_allowed=rights[question[-1]]))
    topic = SimpleNamespace(name="t", partitions={0: None})
    image = SimpleNamespace(topics_by_id={TOPIC: topic}, acls=object())
    partition = partition_of()
    context: Any = SimpleNamespace(
        authorizer=authorizer,
        metadata=SimpleNamespace(image=image),
        replicas=SimpleNamespace(by_raw_id={(TOPIC.bytes, 0): partition}),
    )
    call: Any = SimpleNamespace(identity=None)
    work = _Work(context, call, ShareAcknowledgeRequest(group_id="g", member_id="m"))
    assert work.lookup((TOPIC, 0)) is partition
    rights["t"], image.acls = False, object()
    assert work.lookup((TOPIC, 0)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    rights["t"], image.acls = True, object()
    assert work.lookup((TOPIC, 0)) is partition


def test_an_archived_record_is_not_forgotten_unstored() -> None:
    """The last member left after the write had failed: the record was delivered again, beyond its limit."""

    async def main(world: World) -> None:
        memory = MemoryPersister()
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        once = replace(SETTINGS, limits=replace(SETTINGS.limits, delivery_count_max=1))
        groups = groups_of(world, replicas, memory, once)
        clock = world.node("n").environment.clock
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            key, partition = (TOPIC, 0), partition_of()

            async def acquire(member: str) -> list[tuple[int, int]]:
                groups.sessions.fetch(("g", member), 0, [key], (), acknowledges=False, owner=member)
                led = groups.open("g", partition)
                await trio.sleep(1)
                return acquire_next(groups, led, member, clock.monotonic_ms())

            assert await acquire("m") == [(0, 0)]
            memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            await trio.sleep(35)
            groups.connection_closed("m")
            assert await acquire("m2") == [(1, 1)]
            memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
            await trio.sleep(35)
            groups.connection_closed("m2")
            assert groups.find("g", key) is not None
            await trio.sleep(3 * SWEEP_MS / 1000)
            assert memory.start_offsets[ShareKey("g", *key)] == 2, "the write is repeated"
            assert groups.find("g", key) is None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.FENCED_STATE_EPOCH, ErrorCode.FENCED_STATE_EPOCH),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_members_get_codes_that_they_know(refusal: ErrorCode, code: ErrorCode) -> None:
    """A share coordinator's codes are those between brokers; a member looks for the next leader by those of leaders."""

    async def main(world: World) -> None:
        memory, key = MemoryPersister(), (TOPIC, 0)
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="m")
            led = groups.open("g", partition_of())
            await trio.sleep(0.5)
            acquire_next(groups, led, "m", world.node("n").environment.clock.monotonic_ms())
            memory.refusals = [refusal]
            batches: Any = [SimpleNamespace(first=0, last=0, types=(1,))]
            pending = groups.acknowledge(led, "m", batches)
            assert isinstance(pending, Pending)
            assert await pending.wait() is code
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_lock_goes_on_after_a_write_that_failed() -> None:
    """The acknowledgement does not hold, and its sender may never come again; the record is for others then."""

    async def main(world: World) -> None:
        memory, key = MemoryPersister(), (TOPIC, 0)
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory)
        clock = world.node("n").environment.clock
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="m")
            led = groups.open("g", partition_of())
            await trio.sleep(0.5)
            assert acquire_next(groups, led, "m", clock.monotonic_ms()) == [(0, 0)]
            memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            batches: Any = [SimpleNamespace(first=0, last=0, types=(1,))]
            pending = groups.acknowledge(led, "m", batches)
            assert isinstance(pending, Pending)
            assert await pending.wait() is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert led.core is not None
            assert led.core.next_fetch_offset == 1
            await trio.sleep(SETTINGS.limits.lock_duration_ms / 1000)
            assert led.core.next_fetch_offset == 0
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("fails", [True, False])
def test_a_sweep_during_a_write_forgets_nothing(fails: bool) -> None:
    """A lock may last for an hour, so a share-partition may count as idle while the end of its lock is written."""
    lock_ms = IDLE_MS + SWEEP_MS - 2_000
    limits = replace(SETTINGS.limits, delivery_count_max=1, lock_duration_ms=int(lock_ms))

    async def main(world: World) -> None:
        memory, key, partition = MemoryPersister(), (TOPIC, 0), partition_of()
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory, replace(SETTINGS, limits=limits))
        clock = world.node("n").environment.clock
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="m")
            led = groups.open("g", partition)
            await trio.sleep(0.5)
            assert acquire_next(groups, led, "m", clock.monotonic_ms()) == [(0, 0)]
            before = memory.writes
            memory.delay_ms = 10_000
            memory.refusals = [ErrorCode.COORDINATOR_NOT_AVAILABLE] if fails else []
            await trio.sleep(lock_ms / 1000 + 3)
            assert memory.writes == before, "the write is under way"
            await trio.sleep(3 * SWEEP_MS / 1000)
            assert memory.start_offsets[ShareKey("g", *key)] == 1, "it was delivered as often as it may be"
            assert groups.find("g", key) is None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("refusals", [[], [ErrorCode.COORDINATOR_NOT_AVAILABLE]], ids=["being read", "not read"])
def test_a_state_that_is_not_here_takes_no_acknowledgements(refusals: list[ErrorCode]) -> None:
    """No record of it was delivered by this leader."""

    async def main(world: World) -> None:
        memory = MemoryPersister()
        memory.delay_ms, memory.refusals = 100.0, refusals
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            led = groups.open("g", partition_of())
            if refusals:
                await trio.sleep(1)
            batches: Any = [SimpleNamespace(first=0, last=0, types=(1,))]
            answer = groups.acknowledge(led, "m", batches)
            assert isinstance(answer, tuple)
            assert answer[0] is ErrorCode.INVALID_RECORD_STATE
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_broker_that_stops_begins_no_delivery() -> None:
    """Connections close after the share groups; a fetch among their last requests looks for another leader."""

    async def main(world: World) -> None:
        groups = groups_that_read(world)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            before = groups.open("g", partition_of())
            nursery.cancel_scope.cancel()
        for group in ("g", "other"):
            led = groups.open(group, partition_of())
            assert led is not before
            assert led.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert groups.find(group, (TOPIC, 0)) is None
        assert before.error is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_world(main, 1)


def test_an_idle_state_is_kept_until_its_writes_have_ended() -> None:
    """A share coordinator that takes very long ends no acknowledgement; then nothing is left, and the state goes."""

    async def main(world: World) -> None:
        memory = MemoryPersister()
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, memory)
        key, idle_s = (TOPIC, 0), (IDLE_MS + 2 * SWEEP_MS) / 1000
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="c")
            led = groups.open("g", partition_of())
            await trio.sleep(1)
            assert led.core is not None
            led.core.acquire(
                "m",
                [(0, 1)],
                fetch_offset=0,
                records_max=10,
                batch_size=1,
                mode=AcquireMode.BATCH_OPTIMIZED,
                now_ms=world.node("n").environment.clock.monotonic_ms(),
            )
            groups._arm(led)
            memory.delay_ms = 2_000 * idle_s
            batches: Any = [SimpleNamespace(first=0, last=0, types=(1,))]
            pending = groups.acknowledge(led, "m", batches)
            assert isinstance(pending, Pending)
            assert led.deadline_ms is None, "no lock can expire any more"
            await trio.sleep(idle_s)
            assert groups.find("g", key) is led
            assert await pending.wait() is ErrorCode.NONE
            assert memory.start_offsets[ShareKey("g", *key)] == 1
            await trio.sleep(idle_s)
            assert groups.find("g", key) is None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize(("found", "first"), [(None, 9), (-1, 9), (0, 0), (5, 5), (9, 9), (12, 9)], ids=str)
def test_a_group_begins_at_the_first_record_of_its_time(found: int | None, first: int) -> None:
    """The search may be long: other tasks run between its steps. Records above the high watermark are not committed."""
    settings = replace(SETTINGS, reset="by_duration:PT1H")
    others, seen = 0, []

    def search(_: int) -> Any:
        for _ in range(5):
            seen.append(others)
            yield None
        yield SimpleNamespace(run=lambda: None)
        return None if found is None else SimpleNamespace(offset=found)

    async def main(world: World) -> int:
        async def wait_committed(*_: object) -> None:
            await trio.lowlevel.checkpoint()

        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wait_committed=wait_committed))
        groups = groups_of(world, replicas, MemoryPersister(), settings)
        partition = partition_of()
        partition.search_timestamp = search
        led = LedPartition(ShareKey("g", TOPIC, 0), partition, 3)

        async def other() -> None:
            nonlocal others
            for _ in range(100):  # virtual time stands still meanwhile
                others += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            offset = await groups._first_offset(led, settings)
            nursery.cancel_scope.cancel()
        return offset

    assert run_world(main, 1) == first
    assert all(later > earlier for earlier, later in zip(seen, seen[2:], strict=False)), "other tasks run meanwhile"


def test_a_state_that_is_asked_for_is_not_idle() -> None:
    """A member may find nothing for hours; the state would be read again and again meanwhile."""

    async def main(world: World) -> None:
        replicas: Any = SimpleNamespace(waits=SimpleNamespace(wake_fetches=lambda _: None))
        groups = groups_of(world, replicas, MemoryPersister())
        key, partition = (TOPIC, 0), partition_of()
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [key], (), acknowledges=False, owner="c")
            led = groups.open("g", partition)
            for _ in range(20):
                await trio.sleep(0.9 * SWEEP_MS / 1000)
                assert groups.open("g", partition) is led
            await trio.sleep((IDLE_MS + 2 * SWEEP_MS) / 1000)
            assert groups.find("g", key) is None
            nursery.cancel_scope.cancel()

    run_world(main, 1)


def test_a_member_may_leave_while_states_are_read() -> None:
    """One of them is here already; the connection of the member closes before the other one is."""

    async def main(world: World) -> tuple[int, int, int]:
        groups = groups_that_read(world)
        other = UUID(int=2)
        async with trio.open_nursery() as nursery:
            await nursery.start(groups.run)
            groups.sessions.fetch(("g", "m"), 0, [(TOPIC, 0), (other, 0)], (), acknowledges=False, owner="c")
            here = groups.open("g", partition_of())
            await trio.sleep(1)
            assert here.core is not None
            here.core.acquire(
                "m",
                [(0, 3)],
                fetch_offset=0,
                records_max=10,
                batch_size=1,
                mode=AcquireMode.BATCH_OPTIMIZED,
                now_ms=world.node("n").environment.clock.monotonic_ms(),
            )
            groups.open("g", partition_of(other))
            before = groups.statistics()
            groups.connection_closed("c")
            await trio.sleep(1)
            assert groups.statistics() == (0, 0, 0)
            nursery.cancel_scope.cancel()
        return before

    assert run_world(main, 1) == (1, 2, 3), "sessions, states (one is being read), and records in flight"
