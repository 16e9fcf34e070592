"""Several log directories that fail one by one (KIP-112, KIP-858): whole brokers on virtual disks under load.

Each story fails a directory while producers with acks=all write to every partition, and then reads everything back:
acknowledged records exist, replicas in other directories were never interrupted, and the metadata is correct.
"""

from __future__ import annotations

import contextlib
import random

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from moldau.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_quorum.metadata.directory_ids import LOST
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.directory_stories import (
    TWO,
    all_assigned,
    directory_id,
    ended,
    log_dirs_of,
    move,
    place,
    prepared,
    profile,
    read_all,
)
from support.proof import proof_beyond


def test_new_replicas_are_spread_over_directories_and_reported() -> None:
    """New replicas are spread over the directories, and the controller records their directories."""

    async def scenario(cluster) -> None:
        await prepared(cluster, partitions=8)
        for broker_id in cluster.broker_ids:
            places = [place(cluster, broker_id, "t", index) for index in range(8)]
            assert sorted(places.count(path) for path in ("/d1", "/d2")) == [4, 4]
            registered = cluster.image().brokers[broker_id].log_dirs
            assert registered == tuple(directory_id(cluster, broker_id, path) for path in ("/d1", "/d2"))

    run_cluster(scenario, brokers=3, **TWO)


def test_with_one_directory_nothing_is_reported() -> None:
    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=2)
        partition = cluster.partition_image("t")
        assert [partition.directory(b) for b in partition.replicas] == [
            directory_id(cluster, broker_id, "/data") for broker_id in partition.replicas
        ]
        assert partition.partition_epoch == 0
        client.close()

    run_cluster(scenario, brokers=2)


@pytest.mark.parametrize(("seed", "kind"), proof_beyond(1, [(1, "EIO"), (1, "ENOSPC"), (2, "EIO"), (2, "ENOSPC")]))
def test_a_directory_fails_alone_and_returns_after_a_restart(seed: int, kind: str) -> None:
    """Under load a directory fails alone, and works again after a restart."""

    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        victim = 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(1)
            lost = [index for index in range(6) if place(cluster, victim, "t", index) == "/d1"]
            led = [index for index in range(6) if cluster.partition_image("t", index).leader == victim]
            epochs = {index: cluster.partition_image("t", index).leader_epoch for index in range(6)}
            assert [index for index in led if index in lost], "the story needs a leader in the directory that fails"
            assert [index for index in led if index not in lost], "and one outside"
            failed_at = trio.current_time()
            failed_id = directory_id(cluster, victim, "/d1")
            if kind == "EIO":
                profile(cluster, victim).failing_paths = ("/d1",)
            else:
                profile(cluster, victim).full_paths = ("/d1",)

            def moved() -> bool:
                return all(
                    victim not in cluster.partition_image("t", index).isr
                    and cluster.partition_image("t", index).leader not in (victim, -1)
                    for index in lost
                )

            await cluster.until(moved, timeout_ms=10_000)
            assert failed_id not in cluster.image().brokers[victim].log_dirs
            assert not cluster.image().brokers[victim].fenced
            await trio.sleep(2)
            for index in led:
                if index not in lost:
                    partition = cluster.partition_image("t", index)
                    assert (partition.leader, partition.leader_epoch) == (victim, epochs[index])
                    assert load.gap(index, failed_at, failed_at + 2) < 0.5, "another directory's partition stood still"
            for index in lost:
                assert load.gap(index, failed_at, failed_at + 2) < 1.0
            described = await log_dirs_of(cluster, victim)
            assert described["/d1"].error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert not described["/d1"].topics
            assert described["/d2"].error_code == ErrorCode.NONE
            assert sorted(
                p.partition_index for t in described["/d2"].topics if t.name == "t" for p in t.partitions
            ) == [index for index in range(6) if index not in lost]
            client = cluster.client(victim)
            answer = await client.fetch("t", partition=lost[0])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            answer = await client.produce("t", batch(b"x"), partition=lost[0])
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            metadata = await client.metadata("t")
            for reported in metadata.topics[0].partitions:
                assert (victim in reported.offline_replicas) == (reported.partition_index in lost)
            client.close()

            profile(cluster, victim).failing_paths = profile(cluster, victim).full_paths = ()
            await cluster.stop(victim)
            cluster.start_broker(victim)
            await cluster.until(lambda: victim in cluster.running)
            await cluster.until(
                lambda: all(victim in cluster.partition_image("t", index).isr for index in range(6)), timeout_ms=60_000
            )
            assert all(place(cluster, victim, "t", index) == "/d1" for index in lost)
            assert failed_id in cluster.image().brokers[victim].log_dirs
            load.stopped = True
        await load.check()
        assert all_assigned(cluster, "t", 6)
        described = await log_dirs_of(cluster, victim)
        assert described["/d1"].error_code == ErrorCode.NONE

    run_cluster(scenario, seed=seed, brokers=3, **TWO)


@pytest.mark.parametrize("asked", ["fetch", "offset by time"])
def test_an_unreadable_directory_fails_when_an_answer_needs_it(asked: str) -> None:
    """A directory that cannot be read goes offline when an answer needs it, even without writes.

    Its leader closed the connections of all readers, and stayed the leader.
    """

    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(1)
            load.stopped = True
        index = 0
        leader = await cluster.leader("t", index)
        directory = place(cluster, leader, "t", index)
        profile(cluster, leader).read_error_probability = 1.0
        client = cluster.client(leader)
        if asked == "fetch":
            with pytest.raises((OSError, EOFError)):
                await client.fetch("t", partition=index)
        else:
            wanted = ListOffsetsPartition(partition_index=index, timestamp=1)
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
            answer = await client.request(request)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        client.close()
        await cluster.until(lambda: cluster.partition_image("t", index).leader not in (leader, -1))
        assert cluster.running[leader].context.logs.offline_directories == [directory]
        profile(cluster, leader).read_error_probability = 0.0
        await load.check()

    run_cluster(scenario, brokers=3, **TWO)


def test_a_broker_without_a_working_directory_ends_and_says_why() -> None:
    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(0.5)
            profile(cluster, 3).failing_paths = ("/d2",)
            await cluster.until(lambda: len(cluster.image().brokers[3].log_dirs) == 1)
            profile(cluster, 3).failing_paths = ("/d1", "/d2")
            reason = await ended(cluster, 3)
            assert reason.startswith("all log directories have failed: /d1: ")
            assert "; /d2: " in reason
            await trio.sleep(1)
            cluster.start_broker(3)
            assert "no log directory works" in await ended(cluster, 3)
            profile(cluster, 3).failing_paths = ()
            cluster.start_broker(3)
            await cluster.until(
                lambda: all(3 in cluster.partition_image("t", index).isr for index in range(6)), timeout_ms=60_000
            )
            load.stopped = True
        await load.check()

    run_cluster(scenario, brokers=3, **TWO)


def test_a_broker_that_cannot_report_a_failure_ends() -> None:
    """A broker that cannot report a failed directory to the controller ends."""

    async def scenario(cluster) -> None:
        await prepared(cluster)
        cluster.world.node("c101").kill()
        await trio.sleep(0.1)
        client = cluster.client(2)
        profile(cluster, 2).failing_paths = ("/d1",)
        led = [
            index
            for index in range(6)
            if cluster.partition_image("t", index).leader == 2 and place(cluster, 2, "t", index) == "/d1"
        ]
        with contextlib.suppress(ConnectionError):  # the answer to the request that finds the failure
            await client.produce("t", batch(b"x"), partition=led[0])
        reason = await ended(cluster, 2)
        assert "did not record within 2000 ms" in reason

    run_cluster(scenario, brokers=3, log_dir_failure_timeout_ms="2000", **TWO)


def test_a_replica_whose_directory_is_away_is_not_recreated() -> None:
    """A replica whose directory stays away is not recreated in another one.

    With one replica, the failed directory holds the only copy.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=4, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "t", 4))
        for index in range(4):
            answer = await client.produce("t", batch(b"precious"), partition=index)
            assert answer.error_code == ErrorCode.NONE
        lost = [index for index in range(4) if place(cluster, 1, "t", index) == "/d1"]
        client.close()
        for how in ("stopped", "killed"):
            if how == "stopped":
                await cluster.stop(1)
            else:
                cluster.kill(1)
            profile(cluster, 1).failing_paths = ("/d1",)
            cluster.start_broker(1)
            await cluster.until(lambda: 1 in cluster.running)
            await trio.sleep(1)
            for index in range(4):
                partition = cluster.partition_image("t", index)
                assert partition.leader == (-1 if index in lost else 1), (how, index)
                assert (cluster.replica(1, "t", index) is None) == (index in lost)
            with pytest.raises(AssertionError, match="KAFKA_STORAGE_ERROR"):
                await read_all(cluster, "t", lost[0], 1)
            profile(cluster, 1).failing_paths = ()
            cluster.kill(1)
            cluster.start_broker(1)
            await cluster.until(lambda: 1 in cluster.running)
            for index in range(4):
                assert b"precious" in await read_all(cluster, "t", index)

    run_cluster(scenario, brokers=1, **TWO)


def test_a_replica_without_a_log_waits_for_the_missing_directory() -> None:
    """A replica that never had a log is created when the directory that might have held it is back.

    Its broker dies before it knows the topic, and restarts without a directory: the log could be in there.
    """

    async def scenario(cluster) -> None:
        cluster.world.network.cut("c101", "b2")
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=1)
        client.close()
        (index,) = [index for index in range(2) if cluster.partition_image("t", index).replicas == (2,)]
        assert cluster.replica(2, "t", index) is None, "the story needs a leader that has not heard of it"
        cluster.kill(2)
        cluster.world.network.heal("c101", "b2")
        profile(cluster, 2).failing_paths = ("/d1",)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running and cluster.partition_image("t", index).directory(2) == LOST)
        await trio.sleep(1)
        assert cluster.partition_image("t", index).leader == -1
        assert cluster.replica(2, "t", index) is None
        profile(cluster, 2).failing_paths = ()
        await cluster.stop(2)
        cluster.start_broker(2)
        assert await cluster.leader("t", index) == 2
        await cluster.until(lambda: all_assigned(cluster, "t", 2))
        client = cluster.client(2)
        answer = await client.produce("t", batch(b"first"), partition=index)
        assert answer.error_code == ErrorCode.NONE
        assert b"first" in await read_all(cluster, "t", index)
        client.close()

    run_cluster(scenario, brokers=2, **TWO)


def test_a_replica_in_an_unreported_directory_is_found_again() -> None:
    """A replica whose directory was not reported is found when the directory is back.

    The controller knows only that it is lost; the acknowledged records are in the directory that comes back.
    """

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=6, replicas=1)
        client.close()
        await cluster.until(lambda: all_assigned(cluster, "t", 6))
        index = next(
            index
            for index in range(6)
            if cluster.partition_image("t", index).replicas == (2,) and place(cluster, 2, "t", index) == "/d1"
        )
        client = cluster.client(2)
        answer = await client.produce("t", batch(b"precious"), partition=index)
        assert answer.error_code == ErrorCode.NONE
        client.close()
        cluster.kill(2)
        disk = NodeDisk(cluster.world.node("b2").disk)
        disk.rename(f"/d1/t-{index}", f"/d2/t-{index}")  # not the recorded directory, as if it had never been reported
        profile(cluster, 2).failing_paths = ("/d2",)
        cluster.start_broker(2)
        await cluster.until(lambda: 2 in cluster.running and cluster.partition_image("t", index).directory(2) == LOST)
        assert cluster.replica(2, "t", index) is None
        profile(cluster, 2).failing_paths = ()
        await cluster.stop(2)
        cluster.start_broker(2)
        assert await cluster.leader("t", index) == 2
        assert b"precious" in await read_all(cluster, "t", index)
        await cluster.until(lambda: all_assigned(cluster, "t", 6))

    run_cluster(scenario, brokers=2, **TWO)


def test_an_empty_new_disk_is_filled_unless_the_old_was_the_last() -> None:
    """A disk that is replaced by an empty one is filled from the others, unless it held the only copy."""

    async def scenario(cluster) -> None:
        load = await prepared(cluster)
        client = cluster.client(1)
        await client.create_topic("alone", partitions=6, replicas=1)
        await cluster.until(lambda: all_assigned(cluster, "alone", 6))
        alone = [
            index
            for index in range(6)
            if cluster.partition_image("alone", index).leader == 2 and place(cluster, 2, "alone", index) == "/d1"
        ]
        assert alone
        client.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(0.5)
            replaced = directory_id(cluster, 2, "/d1")
            await cluster.stop(2)
            disk = NodeDisk(cluster.world.node("b2").disk)
            disk.remove_tree("/d1")
            disk.sync_directory("/")
            cluster.start_broker(2)
            await cluster.until(
                lambda: all(2 in cluster.partition_image("t", index).isr for index in range(6)), timeout_ms=60_000
            )
            await cluster.until(lambda: all_assigned(cluster, "t", 6))
            assert directory_id(cluster, 2, "/d1") != replaced
            load.stopped = True
        await load.check()
        for index in alone:
            assert cluster.partition_image("alone", index).leader == -1
            assert cluster.partition_image("alone", index).directory(2) == replaced
            assert cluster.replica(2, "alone", index) is None

    run_cluster(scenario, brokers=3, **TWO)


def other(path: str) -> str:
    return {"/d1": "/d2", "/d2": "/d1"}[path]


def log_bytes(cluster, broker_id: int, topic: str, index: int) -> bytes:
    """Returns the content of all segments, in order."""
    disk = cluster.world.node(f"b{broker_id}").disk
    directory = cluster.running[broker_id].context.logs.logs[topic, index].directory
    return b"".join(bytes(disk.lookup(name).content) for name in disk.files(directory) if name.endswith(".log"))


@pytest.mark.parametrize("crash", ["none", "copying", "confirmed", "moved"])
@pytest.mark.parametrize("seed", proof_beyond(1, [1, 2]))
def test_a_move_between_directories_survives_load_and_crashes(seed: int, crash: str) -> None:
    """A replica moves between directories under load, and the move survives crashes.

    The broker is killed while it copies, between the controller's record and the replacement, or just after it.
    """

    async def scenario(cluster) -> None:
        load = await prepared(cluster, partitions=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(1)
            mover = cluster.partition_image("t").leader
            source = place(cluster, mover, "t", 0)
            target_id = directory_id(cluster, mover, other(source))
            assert await move(cluster, mover, "t", 0, other(source)) == ErrorCode.NONE
            logs = cluster.running[mover].context.logs
            if crash == "confirmed":
                await cluster.until(lambda: cluster.partition_image("t").directory(mover) == target_id)
            elif crash != "copying":
                await cluster.until(lambda: not logs.future_logs)
            if crash != "none":
                cluster.kill(mover)
                await trio.sleep(1)
                cluster.start_broker(mover)
                await cluster.until(lambda: mover in cluster.running)
            await cluster.until(
                lambda: (
                    place(cluster, mover, "t", 0) == other(source)
                    and not cluster.running[mover].context.logs.future_logs
                    and all(len(cluster.partition_image("t", index).isr) == 3 for index in range(2))
                ),
                timeout_ms=60_000,
            )
            await cluster.until(lambda: all_assigned(cluster, "t", 2))
            await trio.sleep(0.5)
            load.stopped = True
        await load.check()
        await trio.sleep(1)
        contents = [log_bytes(cluster, broker_id, "t", 0) for broker_id in cluster.broker_ids]
        assert len(contents[0]) > 1000
        assert contents[0] == contents[1] == contents[2]

    run_cluster(scenario, seed=seed, brokers=3, **TWO)


@pytest.mark.parametrize("failing", ["source", "target"])
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_directory_fails_while_a_replica_moves(failing: str, confirmed: bool) -> None:
    async def scenario(cluster) -> None:
        load = await prepared(cluster, partitions=2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            await trio.sleep(0.5)
            mover = cluster.partition_image("t").leader
            source = place(cluster, mover, "t", 0)
            target = other(source)
            target_id = directory_id(cluster, mover, target)
            assert await move(cluster, mover, "t", 0, target) == ErrorCode.NONE
            if confirmed:
                await cluster.until(lambda: cluster.partition_image("t").directory(mover) == target_id)
            assert cluster.running[mover].context.logs.future_logs
            failed = source if failing == "source" else target
            profile(cluster, mover).failing_paths = (failed,)
            failed_id = directory_id(cluster, mover, failed)
            await cluster.until(lambda: failed_id not in cluster.image().brokers[mover].log_dirs, timeout_ms=10_000)
            log = cluster.running[mover].context.logs.logs.get(("t", 0))  # gone if its source failed before the swap
            if confirmed and log is not None and str(log.parent_directory) == target:
                assert failing == "source", "a replica does not move into a failed directory"
                assert cluster.partition_image("t").leader == mover, "the move had ended before its source failed"
            elif failing == "source":
                await cluster.until(lambda: cluster.partition_image("t").leader not in (mover, -1))
            else:
                await cluster.until(lambda: mover in cluster.partition_image("t").isr)
                await cluster.until(
                    lambda: cluster.partition_image("t").directory(mover) == directory_id(cluster, mover, source)
                )
            await trio.sleep(1)
            profile(cluster, mover).failing_paths = ()
            cluster.kill(mover)
            cluster.start_broker(mover)
            await cluster.until(
                lambda: mover in cluster.running and len(cluster.partition_image("t").isr) == 3, timeout_ms=60_000
            )
            load.stopped = True
        await load.check()

    run_cluster(scenario, brokers=3, **TWO)


@pytest.mark.parametrize("seed", proof_beyond(1, range(1, 7)))
def test_nothing_acknowledged_is_lost_whatever_directories_fail(seed: int) -> None:
    """Random directories fail and brokers crash, one broker at a time; restarts heal all."""

    async def scenario(cluster) -> None:
        draw = random.Random(seed)
        load = await prepared(cluster, partitions=4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            for _ in range(4):
                await trio.sleep(draw.uniform(0.1, 0.5))
                victim = draw.choice(cluster.broker_ids)
                path = draw.choice(("/d1", "/d2"))
                if draw.random() < 0.5:
                    profile(cluster, victim).failing_paths = (path,)
                else:
                    profile(cluster, victim).full_paths = (path,)
                for index in range(4):
                    if draw.random() < 0.3 and cluster.replica(victim, "t", index) is not None:
                        await move(cluster, victim, "t", index, draw.choice(("/d1", "/d2")))
                await trio.sleep(draw.uniform(0.05, 1.5))
                healed = draw.random() < 0.5
                if healed:
                    profile(cluster, victim).failing_paths = profile(cluster, victim).full_paths = ()
                if draw.random() < 0.5:
                    await cluster.stop(victim)
                else:
                    cluster.kill(victim)
                if not healed and draw.random() < 0.5:
                    cluster.start_broker(victim)
                    await cluster.until(lambda victim=victim: victim in cluster.running)
                    await trio.sleep(draw.uniform(0.05, 1.0))
                    cluster.kill(victim)
                profile(cluster, victim).failing_paths = profile(cluster, victim).full_paths = ()
                cluster.start_broker(victim)
                await cluster.until(
                    lambda: all(len(cluster.partition_image("t", index).isr) == 3 for index in range(4)),
                    timeout_ms=60_000,
                )
            load.stopped = True
        await load.check()
        assert all_assigned(cluster, "t", 4)

    run_cluster(scenario, seed=seed, brokers=3, **TWO)


def test_a_new_topic_finds_a_directory_that_works() -> None:
    """The creation of a replica notices the failure; a new replica has no records, so another directory serves."""

    async def scenario(cluster) -> None:
        await prepared(cluster, partitions=2)
        profile(cluster, 2).failing_paths = ("/d1",)
        client = cluster.client(1)
        await client.create_topic("late", partitions=4, replicas=3)
        client.close()
        await cluster.until(lambda: all_assigned(cluster, "late", 4))
        assert {place(cluster, 2, "late", index) for index in range(4)} == {"/d2"}
        await cluster.until(lambda: all(len(cluster.partition_image("late", index).isr) == 3 for index in range(4)))
        assert {cluster.partition_image("t", index).directory(2) for index in range(2)} == {
            directory_id(cluster, 2, "/d1"),
            directory_id(cluster, 2, "/d2"),
        }

    run_cluster(scenario, brokers=3, **TWO)


def test_coordinators_move_away_from_a_directory_that_fails() -> None:
    """Committed offsets are kept when another broker coordinates the group."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=1, replicas=3)
        groups = [f"g{number}" for number in range(6)]
        for number, group in enumerate(groups):
            await commit(cluster, group, 10 + number)
        offsets_topic = "__consumer_offsets"
        victim = cluster.partition_image(offsets_topic, 0).leader
        failed = place(cluster, victim, offsets_topic, 0)
        profile(cluster, victim).failing_paths = (failed,)
        for number, group in enumerate(groups):
            assert await committed(cluster, group) == 10 + number
            await commit(cluster, group, 20 + number)
        await cluster.until(lambda: cluster.partition_image(offsets_topic, 0).leader not in (victim, -1))
        for number, group in enumerate(groups):
            assert await committed(cluster, group) == 20 + number
        assert victim in cluster.running
        client.close()

    run_cluster(scenario, brokers=3, **TWO)


async def coordinate(cluster, group: str, message, version: int, code_of):
    """Returns the answer of the group's coordinator, which may move."""
    with trio.fail_after(30):
        while True:
            asked = cluster.client(min(cluster.running))
            found = (await asked.request(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)).coordinators
            asked.close()
            if found[0].error_code == ErrorCode.NONE:
                client = cluster.client(found[0].node_id)
                with contextlib.suppress(ConnectionError):
                    answer = await client.request(message, version)
                    if code_of(answer) == ErrorCode.NONE:
                        client.close()
                        return answer
                client.close()
            await trio.sleep(0.05)


async def commit(cluster, group: str, offset: int) -> None:
    topic = OffsetCommitRequestTopic(
        name="t", partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)]
    )
    await coordinate(
        cluster,
        group,
        OffsetCommitRequest(group_id=group, topics=[topic]),
        8,
        lambda answer: answer.topics[0].partitions[0].error_code,
    )


async def committed(cluster, group: str) -> int:
    wanted = OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[0])])
    answer = await coordinate(
        cluster, group, OffsetFetchRequest(groups=[wanted]), 8, lambda answer: answer.groups[0].error_code
    )
    return answer.groups[0].topics[0].partitions[0].committed_offset
