"""The active controller's work in one turn is bounded, however many partitions a decision concerns.

While a task works, the same process can neither send nor receive messages of the metadata log, and voters elect another
leader if that lasts too long. The tests count decided, encoded and replayed records in each turn of any task of the
active controller; they do not measure time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau.protocol.messages.unregister_broker import UnregisterBrokerRequest
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.context import SLICE_RECORDS
from moldau_quorum.controller.partition_change import PartitionChange
from moldau_quorum.metadata.image import ImageEditor
from support.quorum.cluster import TestCluster, eventually, topic
from support.quorum.memory_log import MemoryLog

TOPICS, PARTITIONS = 12, 125
"""Topics, and partitions of each."""
TURN_MAX = 2 * (SLICE_RECORDS + PARTITIONS + 2)
"""One slice is replayed and the next one decided in the same turn; a slice ends with a whole topic or partition."""


class TurnCounter(trio.abc.Instrument):
    """Counts partition changes that are decided and records that are replayed, and keeps the largest turn."""

    def __init__(self, monkeypatch) -> None:
        self.work = self.largest = self.total = 0
        build, replay_all = PartitionChange.build, ImageEditor.replay_all

        def counting_build(change):
            self.work += 1
            return build(change)

        def counting_replay(editor, records):
            records = tuple(records)
            self.work += len(records)
            replay_all(editor, records)

        monkeypatch.setattr(PartitionChange, "build", counting_build)
        monkeypatch.setattr(ImageEditor, "replay_all", counting_replay)

    def before_task_step(self, task) -> None:
        self.work = 0

    def after_task_step(self, task) -> None:
        if "MetadataFollower" not in task.name:  # brokers are other processes; here they share the loop
            self.total += self.work
            self.largest = max(self.largest, self.work)

    def start(self) -> None:
        self.largest = self.total = 0


class Scene:
    """A controller that has just created many partitions on three brokers."""

    def __init__(self, cluster, active, counter) -> None:
        self.cluster = cluster
        self.active = active
        self.counter = counter

    @property
    def image(self):
        return self.active.running.machine.image

    async def ask(self, request):
        active = self.active.running.active
        return await active.answer(active.submit(request, None))

    def partitions(self):
        return [part for each in self.image.topics_by_name.values() for part in each.partitions.values()]


async def broker_dies(scene) -> None:
    scene.cluster.brokers[2].node.kill()
    await eventually(lambda: scene.image.brokers[2].fenced, timeout_ms=20_000)
    assert all(2 not in part.isr and part.leader != 2 for part in scene.partitions())


async def all_die_and_one_comes_back(scene) -> None:
    for broker_id in (1, 2, 3):
        scene.cluster.brokers[broker_id].node.kill()
    await eventually(lambda: all(broker.fenced for broker in scene.image.brokers.values()), timeout_ms=20_000)
    assert all(part.leader == -1 for part in scene.partitions())
    name = next(iter(scene.image.topics_by_name))
    config = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[config])
    answer = await scene.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == 0, name
    for broker_id in (1, 2, 3):
        scene.cluster.brokers[broker_id].start()
    await eventually(lambda: all(part.leader >= 0 for part in scene.partitions()), timeout_ms=60_000)


async def broker_stops_in_order(scene) -> None:
    broker = scene.image.brokers[1]
    request = BrokerHeartbeatRequest(
        broker_id=1, broker_epoch=broker.broker_epoch, current_metadata_offset=scene.image.offset, want_shut_down=True
    )
    assert (await scene.ask(request)).error_code == 0
    assert scene.image.brokers[1].in_controlled_shutdown
    assert all(part.leader != 1 for part in scene.partitions())


async def broker_is_unregistered(scene) -> None:
    assert (await scene.ask(UnregisterBrokerRequest(broker_id=3))).error_code == 0
    assert 3 not in scene.image.brokers
    assert all(3 not in part.isr for part in scene.partitions())


async def everything_is_moved(scene) -> None:
    topics = [
        ReassignableTopic(
            name=name,
            partitions=[ReassignablePartition(partition_index=number, replicas=[1]) for number in range(PARTITIONS)],
        )
        for name in sorted(scene.image.topics_by_name)
    ]
    answer = await scene.ask(AlterPartitionReassignmentsRequest(topics=topics))
    assert sum(len(each.partitions) for each in answer.responses) == TOPICS * PARTITIONS
    assert all(part.error_code == 0 for each in answer.responses for part in each.partitions)
    assert all(part.leader == 1 for part in scene.partitions())


async def leaders_are_elected(scene) -> None:
    answer = await scene.ask(ElectLeadersRequest(election_type=0, topic_partitions=None))
    assert answer.error_code == 0


async def topics_are_deleted(scene) -> None:
    topics = [DeleteTopicState(name=name) for name in scene.image.topics_by_name]
    answer = await scene.ask(DeleteTopicsRequest(topics=topics))
    assert [each.error_code for each in answer.responses] == [0] * TOPICS
    assert not scene.image.topics_by_name


@pytest.mark.parametrize(
    "happens",
    [
        broker_dies,
        all_die_and_one_comes_back,
        broker_stops_in_order,
        broker_is_unregistered,
        everything_is_moved,
        leaders_are_elected,
        topics_are_deleted,
    ],
)
def test_no_turn_does_too_much(monkeypatch, happens) -> None:
    """Counts the work of each turn while many partitions are created, and while something happens to all of them."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        active = await cluster.wait_active()
        counter = TurnCounter(monkeypatch)
        trio.lowlevel.add_instrument(counter)
        scene = Scene(cluster, active, counter)
        request = topic("t0", partitions=PARTITIONS, factor=3)
        (first,) = request.topics
        request.topics = [
            type(first)(name=f"t{number}", num_partitions=PARTITIONS, replication_factor=3) for number in range(TOPICS)
        ]
        answer = await scene.ask(request)
        assert [each.error_code for each in answer.topics] == [0] * TOPICS
        assert counter.total >= TOPICS * PARTITIONS
        assert counter.largest <= TURN_MAX
        counter.start()
        await happens(scene)
        assert counter.largest <= TURN_MAX
        assert not world.failures

    run_world(main, 11)
