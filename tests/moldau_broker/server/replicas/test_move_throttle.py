"""Goal: moves between log directories copy no more than the limit, which may change while they run, and wait for syncs.

Method: the throttle alone with times made by hand, then one broker on two virtual disks in virtual time.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_broker.log.values import run_work
from moldau_broker.server.replicas.replica_moves import LOOK_MS, RATE_KEY, CopyThrottle, _move
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import TWO, all_assigned, move, place, read_all
from support.log.cleaner_lab import Lab
from support.log.model import PARTITION

BROKER, SET = 4, 0
VALUES = [b"%d" % number * 1000 for number in range(100, 140)]
"""Each is a batch of some 3,000 bytes, together about 120,000."""


def test_a_debt_is_paid_off_by_time():
    throttle = CopyThrottle()
    assert throttle.wait_ms(0, 1000) == 0
    throttle.copied(500)
    assert throttle.wait_ms(0, 1000) == 500
    assert throttle.wait_ms(300, 1000) == 200
    assert throttle.wait_ms(500, 1000) == 0
    throttle.copied(5000)
    assert throttle.wait_ms(500, 1000) == LOOK_MS, "the rate may change meanwhile"
    assert throttle.wait_ms(1500, 8000) == 0
    throttle.copied(-100)
    assert throttle.wait_ms(1500, 1000) == 0, "a truncation gives nothing back"


def test_pieces_fit_the_rate():
    throttle = CopyThrottle()
    assert throttle.piece_bytes(10_000) == 1_000
    assert throttle.piece_bytes(2**62) == 1024 * 1024
    assert throttle.piece_bytes(1) == 1
    assert throttle.wait_ms(0, 0) == LOOK_MS, "0 halts the moves"
    throttle.copied(1024 * 1024)
    assert throttle.wait_ms(0, 2**62) == 0, "a wait that the clock cannot measure is none"


def test_a_move_keeps_to_the_rate_until_it_is_raised():
    async def limit(cluster, rate):
        client = cluster.client(1)
        change = AlterableConfig(name=RATE_KEY, config_operation=SET, value=str(rate))
        resource = AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[change])
        answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        assert answer.responses[0].error_code == ErrorCode.NONE
        client.close()
        await cluster.until(lambda: cluster.running[1].context.config.get_int(RATE_KEY) == rate)

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "t", 1))
        for value in VALUES:
            assert (await client.produce("t", batch(value))).error_code == ErrorCode.NONE
        client.close()
        target = "/d2" if place(cluster, 1, "t", 0) == "/d1" else "/d1"
        await limit(cluster, 10_000)
        begun_s = trio.current_time()
        assert await move(cluster, 1, "t", 0, target) == ErrorCode.NONE
        await trio.sleep(5)
        copied = cluster.running[1].context.logs.future_logs["t", 0].size_bytes
        assert 35_000 <= copied <= 55_000, "4 to 5 seconds of 10,000 bytes, and a batch"
        await limit(cluster, 1_000_000)
        await cluster.until(lambda: place(cluster, 1, "t", 0) == target)
        assert trio.current_time() - begun_s < 9, "12 seconds at the first rate"
        assert list(await read_all(cluster, "t", 0)) == VALUES

    run_cluster(scenario, **TWO)


def test_a_move_that_falls_behind_does_not_hold_up_the_others():
    """Producers write faster than the limit lets the first move copy; the second one was never begun."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "t", 2))
        for value in VALUES[:10]:
            for index in range(2):
                assert (await client.produce("t", batch(value), partition=index)).error_code == ErrorCode.NONE
        targets = ["/d2" if place(cluster, 1, "t", index) == "/d1" else "/d1" for index in range(2)]
        for index in range(2):
            assert await move(cluster, 1, "t", index, targets[index]) == ErrorCode.NONE
        begun_s, ends_s = trio.current_time(), []
        while trio.current_time() - begun_s < 60 and place(cluster, 1, "t", 0) != targets[0]:
            if not ends_s and place(cluster, 1, "t", 1) == targets[1]:
                ends_s.append(trio.current_time() - begun_s)
            if len(ends_s) == 0:
                assert (await client.produce("t", batch(VALUES[0]))).error_code == ErrorCode.NONE
            await trio.sleep(0.1)
        client.close()
        assert ends_s, "the second move did not end"
        assert place(cluster, 1, "t", 0) == targets[0], "the first move ends when the producer has ended"

    run_cluster(scenario, **TWO, replica_alter_log_dirs_io_max_bytes_per_second="10000")


def test_a_move_waits_for_a_sync_of_the_copy_that_is_under_way():
    """A bug synced the copy a second time beside the periodic flush, whose error one of the two would not have got."""

    async def scenario(cluster):
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "t", 1))
        for value in VALUES[:3]:
            assert (await client.produce("t", batch(value))).error_code == ErrorCode.NONE
        client.close()
        source = place(cluster, 1, "t", 0)
        target = "/d2" if source == "/d1" else "/d1"
        assert await move(cluster, 1, "t", 0, target) == ErrorCode.NONE
        context = cluster.running[1].context
        logs, key = context.logs, ("t", 0)
        logs.copy_to_future(key, context.environment.clock.wall_ms(), 1)
        work = logs.flush_work(logs.future_logs[key])
        assert work is not None
        await trio.sleep(5)
        assert logs.future_logs[key].log_end_offset == logs.logs[key].log_end_offset
        assert place(cluster, 1, "t", 0) == source
        run_work(work)
        await cluster.until(lambda: place(cluster, 1, "t", 0) == target)
        assert list(await read_all(cluster, "t", 0)) == VALUES[:3]

    run_cluster(scenario, **TWO)


def test_other_tasks_run_between_the_pieces_of_a_move() -> None:
    """A move without a limit copies as fast as the disk lets it, and the broker serves its clients meanwhile."""
    key: Any = "t-0"
    others, seen, pieces = 0, [], 6
    current = SimpleNamespace(log_end_offset=9, size_bytes=9_000)
    future = SimpleNamespace(log_end_offset=0, size_bytes=0, parent_directory="/d2")
    logs: Any = SimpleNamespace(
        logs={key: current}, future_logs={key: future}, room=SimpleNamespace(would_fill=lambda *_: False)
    )

    def copy_to_future(*_: object) -> bool:
        seen.append(others)
        future.size_bytes += 1_000
        if len(seen) == pieces:
            logs.future_logs.clear()
        return False

    logs.copy_to_future = copy_to_future
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: 0)
    context: Any = SimpleNamespace(
        logs=logs, environment=SimpleNamespace(clock=clock), config=SimpleNamespace(get_int=lambda _: 2**62)
    )
    unused: Any = None

    async def other() -> None:
        nonlocal others
        for _ in range(100):
            others += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            await _move(context, key, unused, unused, CopyThrottle(), unused)

    trio.run(main)
    assert len(seen) == pieces
    assert all(later > earlier for earlier, later in zip(seen, seen[2:], strict=False))


def test_a_log_is_not_replaced_while_batches_are_staged() -> None:
    """They have their offsets in the former log, and would be written into files that are deleted."""
    key: Any = "t-0"
    looks, replaced = 0, []

    class Current:
        log_end_offset, size_bytes = 9, 9_000

        @property
        def has_staged(self) -> bool:
            return looks < 3

    future: Any = SimpleNamespace(log_end_offset=9, size_bytes=9_000, parent_directory="/d2")
    logs: Any = SimpleNamespace(
        logs={key: Current()},
        future_logs={key: future},
        copy_to_future=lambda *_: True,
        is_flushing=lambda _: False,
        flush_work=lambda _: None,
        get=lambda _: None,
    )

    def replace(_: object) -> Any:
        replaced.append(looks)
        return future

    logs.replace_current_with_future = replace
    directories = SimpleNamespace(may_take_over=lambda _: True, move_changed=lambda _: None)
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: 0)
    context: Any = SimpleNamespace(
        logs=logs,
        directories=directories,
        replicas=SimpleNamespace(partitions={}),
        environment=SimpleNamespace(clock=clock),
        config=SimpleNamespace(get_int=lambda _: 2**62),
    )
    unused: Any = None

    async def turns() -> None:
        nonlocal looks
        for _ in range(10):
            looks += 1
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns)
            await _move(context, key, unused, unused, CopyThrottle(), SimpleNamespace(info=lambda *_, **__: None))

    trio.run(main)
    assert len(replaced) == 1
    assert replaced[0] >= 3


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_log_cut_behind_a_compaction_gap_is_not_polled(power_lost: bool) -> None:
    """It ends above its last record until the next one comes; its move ends before."""
    lab = Lab(directories=("/d1", "/d2"))
    for key in (b"kept", b"x", b"x", b"x"):
        lab.put(key, b"v")
    lab.fill()
    lab.clean()
    assert [row.offset for row in lab.rows()] == [0, 3]
    lab.log.truncate_to(3)
    lab.manager.alter_replica_log_dir(PARTITION, "/d2", lab.now)
    looks = []

    def copy_to_future(*given: Any) -> bool:
        looks.append(given)
        assert len(looks) < 100, "the move polls"
        return lab.manager.copy_to_future(*given)

    logs = SimpleNamespace(
        logs=lab.manager.logs,
        future_logs=lab.manager.future_logs,
        room=SimpleNamespace(would_fill=lambda *_: False),
        copy_to_future=copy_to_future,
        is_flushing=lambda _: False,
        flush_work=lambda _: None,
        get=lab.manager.get,
        replace_current_with_future=lab.manager.replace_current_with_future,
    )
    context: Any = SimpleNamespace(
        logs=logs,
        environment=SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: lab.now)),
        config=SimpleNamespace(get_int=lambda _: 2**62),
        directories=SimpleNamespace(may_take_over=lambda _: True, move_changed=lambda _: None),
        replicas=SimpleNamespace(partitions={}),
    )
    unused: Any = None
    logger: Any = SimpleNamespace(info=lambda *_, **__: None)

    async def main() -> None:
        await _move(context, PARTITION, unused, unused, CopyThrottle(), logger)

    trio.run(main)
    lab.log = lab.manager.logs[PARTITION]
    assert lab.log.parent_directory == "/d2"
    assert (lab.log.log_end_offset, lab.log.high_watermark) == (3, 3)
    assert lab.log.is_settled
    assert lab.put(b"next", b"v") == 3
    lab.log.flush()
    lab.restart(power_lost=power_lost)
    assert [row.offset for row in lab.rows()] == [0, 3]
