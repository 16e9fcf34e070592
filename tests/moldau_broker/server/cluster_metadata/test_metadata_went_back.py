"""Goal: a broker whose controllers have lost metadata keeps its image and its logs, and says what is wrong.

Method: whole brokers and controllers in a simulated world. While a broker is down, or beside a running one, the disk of
its controller is replaced by an older copy, as if a backup had been restored.
"""

from __future__ import annotations

import copy
import errno
import logging
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.runtime.tasks.exceptions import leaves
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.files.names import APPLIED_METADATA
from moldau_broker.server import BrokerStartError, run_broker
from moldau_broker.server.cluster_metadata.applied_position import (
    PERIOD_MS,
    AppliedPosition,
    decode_position,
    encode_position,
)
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from support.cluster.broker_cluster import batch, run_cluster, values_of
from support.log.model import VirtualMachine

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT = f"/data/{APPLIED_METADATA}"


def kill_controller(cluster) -> None:
    cluster.world.node("c101").kill()


def saved(cluster):
    """Returns a copy of the controller's disk; the controller is down."""
    return copy.deepcopy(cluster.world.node("c101").disk.lookup("/data"))


def restore(cluster, data) -> None:
    root = cluster.world.node("c101").disk.lookup("/")
    root.names["data"] = copy.deepcopy(data)
    root.sync()


def names(cluster, path: str = "/data") -> list[str]:
    return NodeDisk(cluster.world.node("b1").disk).list_directory(path)


def kept_position(cluster) -> MetadataPosition:
    content = read_file(NodeDisk(cluster.world.node("b1").disk), CHECKPOINT)
    return decode_position(CHECKPOINT, content)[1]


async def start_fails(cluster, timeout_ms: int) -> BrokerStartError:
    """Starts the broker, which must give up in time; returns why."""
    config = cluster.broker_config(1, initial_broker_registration_timeout_ms=str(timeout_ms))
    ended: list[BaseException] = []

    async def main(environment) -> None:
        try:
            await run_broker(environment, config, shutdown=trio.Event())
        except* BrokerStartError as group:
            ended.extend(leaves(group))

    cluster.world.node("b1").start(main)
    with trio.fail_after(timeout_ms / 1000 + 10):
        await cluster.world.node("b1").wait_ended()
    (error,) = ended
    return error


async def story(cluster, end) -> tuple[object, object]:
    """Fills a topic that the older copy of the controller does not know; returns the older and the newest copy."""
    client = cluster.client(1)
    await client.create_topic("early")
    kill_controller(cluster)
    older = saved(cluster)
    cluster.start_controller(101)
    await client.create_topic("precious")
    await cluster.leader("precious")
    await client.produce("precious", batch(b"record"))
    for number in range(5):
        await client.create_topic(f"later-{number}")
    client.close()
    await end()
    kill_controller(cluster)
    newest = saved(cluster)
    restore(cluster, older)
    cluster.start_controller(101)
    return older, newest


async def read(cluster, topic: str) -> list[bytes]:
    await cluster.leader(topic)
    client = cluster.client(1)
    try:
        return values_of((await client.fetch(topic)).records)
    finally:
        client.close()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_broker_refuses_controllers_that_went_back(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    """It waits, deletes nothing, names the remedy, and serves once the controllers have their data again."""

    async def scenario(cluster) -> None:
        async def end() -> None:
            if ending == "stop":
                await cluster.stop(1)
            else:
                await trio.sleep(2 * PERIOD_MS / 1000)
                cluster.kill(1)

        _, newest = await story(cluster, end)
        error = await start_fails(cluster, 20_000)
        assert "older than those that this broker has applied" in str(error)
        assert APPLIED_METADATA in str(error)
        assert "precious-0" in names(cluster)
        assert not [name for name in names(cluster) if name.endswith(("-stray", "-delete"))]
        # The broker is waiting when the controllers get their data back.
        cluster.start_broker(1)
        await trio.sleep(5)
        assert 1 not in cluster.running
        kill_controller(cluster)
        restore(cluster, newest)
        cluster.start_controller(101)
        await cluster.until(lambda: 1 in cluster.running)
        assert await read(cluster, "precious") == [b"record"]

    with caplog.at_level(logging.WARNING):
        run_cluster(scenario)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("metadata-went-back ")]
    assert 1 <= len(lines) <= 6, "rarely"


def test_without_its_checkpoint_a_broker_follows() -> None:
    """The way out: the operator deletes the checkpoint, and the broker sets aside what the metadata lack."""

    async def scenario(cluster) -> None:
        await story(cluster, partial(cluster.stop, 1))
        NodeDisk(cluster.world.node("b1").disk).remove(CHECKPOINT)
        cluster.start_broker(1)
        await cluster.until(lambda: 1 in cluster.running)
        assert [
            name.partition(".")[0] for name in names(cluster) if name.endswith("-stray") and "later" not in name
        ] == ["precious-0"]

    run_cluster(scenario)


@pytest.mark.parametrize("elections", [4, 5, 6, 12])
def test_another_log_that_is_as_long_is_refused(elections: int) -> None:
    """A log that was written by other elections has another epoch at the applied offset, also below a snapshot."""

    async def scenario(cluster) -> None:
        await story(cluster, partial(cluster.stop, 1))
        position = kept_position(cluster)
        client = cluster.world.node("c101")
        for _ in range(elections):  # each start of the controller is an election, whose entries lengthen the log
            client.kill()
            cluster.start_controller(101)
            await trio.sleep(2)
        error = await start_fails(cluster, 10_000)
        assert f"offset {position.offset}" in str(error)
        assert "precious-0" in names(cluster)

    run_cluster(scenario)


@pytest.mark.parametrize("elections", [1, 6], ids=["same-epoch", "longer-log"])
def test_a_running_broker_refuses_a_restored_log(elections: int, caplog: pytest.LogCaptureFixture) -> None:
    """It keeps its image, also if the restored log has grown past its position, and follows the right log again.

    After one election the restored controller has the epoch again in which the broker's entries were written.
    """

    async def scenario(cluster) -> None:
        network = cluster.world.network

        async def part() -> None:
            await trio.sleep(2)
            network.cut("b1", "c101")

        _, newest = await story(cluster, part)
        before = cluster.image()
        for _ in range(elections - 1):  # each adds entries to the log
            await trio.sleep(2)
            kill_controller(cluster)
            cluster.start_controller(101)
        await trio.sleep(2)
        network.heal("b1", "c101")
        await trio.sleep(10)
        assert cluster.image() is before
        assert any(record.getMessage().startswith("metadata-went-back ") for record in caplog.records)
        kill_controller(cluster)
        restore(cluster, newest)
        cluster.start_controller(101)
        client = cluster.client(1)
        await client.create_topic("afterwards")
        await cluster.leader("afterwards")
        assert values_of((await client.fetch("precious")).records) == [b"record"]
        client.close()

    with caplog.at_level(logging.WARNING):
        run_cluster(scenario)


def test_an_overtaken_write_leaves_the_newer_position() -> None:
    """A deletion makes position 120 durable while a thread still writes the file with position 100."""
    disk = VirtualMachine(1).disk
    disk.make_directories("/d1")
    images = [SimpleNamespace(offset=offset, epoch=3, cluster_id="c") for offset in (100, 120)]
    logs: Any = SimpleNamespace(online_directories=["/d1"])

    async def run_in(directory: str, work: Callable[[], None]) -> None:
        await trio.lowlevel.checkpoint()
        work()
        if len(images) == 2:
            images.pop(0)
            kept.write()

    async def main(world: object) -> None:
        with trio.move_on_after(1.5 * PERIOD_MS / 1000):
            await kept.run()

    kept = AppliedPosition(disk, logs, lambda: images[0], run_in)  # type: ignore[arg-type, return-value]
    run_world(main, 1)
    path = f"/d1/{APPLIED_METADATA}"
    assert decode_position(path, read_file(disk, path)) == ("c", MetadataPosition(offset=120, epoch=3))


@pytest.mark.parametrize("by_deletion", [False, True])
def test_a_position_that_lacked_a_descriptor_is_written_later(
    monkeypatch: pytest.MonkeyPatch, by_deletion: bool
) -> None:
    """It counted as kept until the metadata changed again; the directory has not failed."""
    disk = VirtualMachine(1).disk
    disk.make_directories("/d1")
    image = SimpleNamespace(offset=100, epoch=3, cluster_id="c")
    logs: Any = SimpleNamespace(online_directories=["/d1"], fail_directory=lambda *_: None)

    async def run_in(directory: str, work: Callable[[], None]) -> None:
        await trio.lowlevel.checkpoint()
        work()

    def short(*arguments: object, **more: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main(world: object) -> None:
        with monkeypatch.context() as patch:
            for name in ("write_atomically", "write_temporary"):
                patch.setattr(f"moldau_broker.server.cluster_metadata.applied_position.{name}", short)
            await let_run()
        await let_run()

    async def let_run() -> None:
        if by_deletion:
            kept.write()
            return
        with trio.move_on_after(1.5 * PERIOD_MS / 1000):
            await kept.run()

    kept = AppliedPosition(disk, logs, lambda: image, run_in)  # type: ignore[arg-type, return-value]
    run_world(main, 1)
    path = f"/d1/{APPLIED_METADATA}"
    assert decode_position(path, read_file(disk, path)) == ("c", MetadataPosition(offset=100, epoch=3))


def test_the_position_is_durable_before_logs_are_deleted() -> None:
    """A power loss right after the deletion of a log finds the position of the metadata that demanded it."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("gone", partitions=2)
        await cluster.leader("gone")
        before = cluster.image().offset
        await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="gone")], timeout_ms=5000), 6)
        client.close()
        await cluster.until(lambda: any(name.endswith("-delete") for name in names(cluster)))
        cluster.running.pop(1, None)
        cluster.world.node("b1").lose_power()
        assert kept_position(cluster).offset > before

    run_cluster(scenario)


def test_positions_are_read_as_written_and_damage_is_named() -> None:
    position = MetadataPosition(offset=4711, epoch=12)
    assert decode_position("p", encode_position("cluster", position)) == ("cluster", position)
    for damaged in (b"", b"version=1\n", encode_position("c", position).replace(b"4711", b"x")):
        with pytest.raises(CorruptLogFileError):
            decode_position("p", damaged)
