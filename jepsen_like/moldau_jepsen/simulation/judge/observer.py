"""Reads the state of the nodes of a simulated cluster after every step and reports it to the judge (``invariants``).

A step is one turn of the event loop. Only its own tasks change a node's memory, so the observer reads the nodes whose
tasks have run. Most steps change no relevant state, so it compares a few numbers per replica, and reads logs only if a
high watermark has moved or a leader begins. It reads the nodes' memory and disks; it changes nothing and draws no
random numbers.
"""

from __future__ import annotations

import zlib
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from moldau.records import iterate_batches
from moldau_broker.log.files.batches import CONTROL_BIT
from moldau_broker.replication.replica import Role
from moldau_jepsen.simulation.judge.invariants import BatchSeen, ClusterInvariants, PartitionKey, PartitionState
from moldau_jepsen.simulation.judge.rules.committed import read_log
from moldau_jepsen.simulation.judge.rules.durable_records import DurableRecords
from moldau_jepsen.simulation.judge.rules.producers import ProducerBatch
from moldau_jepsen.simulation.judge.rules.watcher import RuleWatcher, is_cleaned
from moldau_jepsen.simulation.judge.rules.watermarks import WatermarkRules

if TYPE_CHECKING:
    from moldau_broker.replication.replica import PartitionState as PartitionView
    from moldau_broker.replication.replica import Replica
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_quorum.metadata.image import MetadataImage, TopicImage
    from moldau_quorum.node.server import ControllerNode

METADATA_BYTES_PER_STEP = 1 << 20
LOOKS_PER_COMPARISON = 16
"""How many looks at a broker pass between two comparisons of all its logs with their replicas.

A log whose replica has changed is compared at once, so only a change of a log alone is seen that much later.
"""
_STATE_OF = attrgetter("role", "state", "high_watermark", "log_end_offset", "_proposal", "settled_end_offset")
"""The state of a replica that the judge follows, read without a call of Python code, property or not.

A replica cannot cut its log and reach the same end again in one turn: the second takes another answer.
"""
_Seen: TypeAlias = tuple["Role | None", "PartitionView | None", int, int, object, int]
_UNSEEN: _Seen = (None, None, -1, -1, None, -1)


class _ReplicaView:
    """The last observation of one replica of one process."""

    __slots__ = ("durable", "key", "leader_epoch", "led", "log_end", "partition", "seen", "verified")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key = PartitionKey(partition.key.topic, partition.key.partition, partition.topic_id.hex)
        self.seen = _UNSEEN
        self.durable = DurableRecords()
        self.leader_epoch = -2  # of the leadership that was last judged
        self.led = False  # at the last look
        self.verified = -1  # batches below this offset were given to the judge; -1: none
        self.log_end = 0


class _BrokerView:
    """The last observation of the replicas of one process; the lists have the order of the broker's partitions."""

    __slots__ = ("looks", "partitions", "replicas", "seen", "views")

    def __init__(self) -> None:
        self.looks = 0
        self.partitions: list[Partition] = []
        self.replicas: list[Replica] = []
        self.seen: list[_Seen] = []
        self.views: list[_ReplicaView] = []

    def follow(self, partitions: list[Partition]) -> list[_ReplicaView]:
        """Takes the partitions that the broker has now, and returns the views of those that are gone."""
        known = {view.partition: view for view in self.views}
        self.partitions = partitions
        self.replicas = [partition.replica for partition in partitions]
        self.views = [
            known.pop(partition) if partition in known else _ReplicaView(partition) for partition in partitions
        ]
        self.seen = [view.seen for view in self.views]
        return list(known.values())


class ClusterObserver:
    """Watches a cluster: ``turn_ended`` is for the watchers of the world's agenda."""

    def __init__(self, cluster: SimulatedCluster, judge: ClusterInvariants) -> None:
        """Observes one cluster.

        The rules assume that no broker loses records that it reported to its leader. So power losses must spare brokers
        that do not sync before they answer.
        """
        self._cluster = cluster
        self._judge = judge
        self._agenda = cluster.world.agenda
        self._node_ids = {machine.name: node_id for node_id, machine in cluster.machines.items()}
        self._replicas: dict[tuple[int, int], _BrokerView] = {}
        self._looked_at: dict[int, _BrokerView] = {}  # of the brokers that ran at the last step
        self._images: dict[int, MetadataImage] = {}
        self._topics: dict[int, dict[str, TopicImage]] = {}
        self._metadata_read: dict[tuple[int, int], int] = {}
        self._rules = RuleWatcher(cluster, judge, cluster.world.agenda.clock.current_time)
        self._watermarks = WatermarkRules(judge.violated)
        self.steps = 0

    def broker_heard(self, host: str) -> None:
        """A controller answers a heartbeat, or a registration, of the broker on that host."""
        self._rules.broker_heard(host)

    def turn_ended(self) -> None:
        """Looks at what a step has changed."""
        self.steps += 1
        brokers, controllers, node_ids = self._cluster.brokers, self._cluster.controllers, self._node_ids
        if not self._looked_at.keys() <= brokers.keys():
            for node_id in [node_id for node_id in self._looked_at if node_id not in brokers]:
                # A crash point may end a broker in the turn in which it advanced a high watermark and acknowledged.
                for each in self._looked_at.pop(node_id).views:
                    self._look_at_the_last_of(node_id, self._cluster.machines[node_id].incarnation, each)
        ran = [node_ids[name] for name in self._agenda.ran if name in node_ids]
        for node_id in ran:
            if node_id in brokers:
                self._look_at_broker(node_id, brokers[node_id])
            elif node_id in controllers:
                self._look_at_controller(node_id, controllers[node_id])
        self._rules.look(ran)

    # --- controllers

    def _look_at_controller(self, node_id: int, controller: ControllerNode) -> None:
        leadership = controller.log.leadership
        if leadership.active:
            self._judge.controller_active(node_id, leadership.epoch)
        log = controller.log
        slot = (node_id, self._cluster.machines[node_id].incarnation)
        position = self._metadata_read.get(slot, 1)
        if log.high_watermark >= position:
            position = max(position, log.log_start_index)
            found = log.read_committed(position, METADATA_BYTES_PER_STEP)
            for entry in found.entries:
                self._judge.metadata_committed(node_id, entry.index, entry.epoch, zlib.crc32(entry.data))
            self._metadata_read[slot] = found.next_index

    # --- brokers

    def _look_at_broker(self, node_id: int, broker: Broker) -> None:
        image = broker.metadata.image
        if self._images.get(node_id) is not image:
            self._images[node_id] = image
            self._look_at_image(node_id, image)
        if not broker.is_built:
            return
        incarnation = self._cluster.machines[node_id].incarnation
        slot = (node_id, incarnation)
        view = self._replicas.get(slot)
        if view is None:
            view = self._replicas[slot] = _BrokerView()
        self._looked_at[node_id] = view
        partitions = list(broker.context.replicas.partitions.values())
        if partitions != view.partitions:
            for gone in view.follow(partitions):
                self._look_at_the_last_of(node_id, incarnation, gone)
        before, now = view.seen, list(map(_STATE_OF, view.replicas))
        if now != before:
            view.seen = now
            for index, state in enumerate(now):
                if state != before[index]:
                    view.views[index].seen = state
                    self._look_at_replica(node_id, incarnation, view.views[index])
        view.looks += 1
        if not view.looks % LOOKS_PER_COMPARISON:
            for each in view.views:
                self._watermarks.compare(each.key, node_id, each.partition)

    def _look_at_the_last_of(self, node_id: int, incarnation: int, view: _ReplicaView) -> None:
        """A replica is gone; in the step in which it went it may have led, and acknowledged, once more."""
        role, state, watermark, *_ = view.seen
        last = view.partition.replica.high_watermark
        if role is Role.LEADER and state is not None and last > watermark:
            self._judge.leader_watermark(view.key, node_id, incarnation, state.leader_epoch, last)

    def _last_watermark(self, key: PartitionKey) -> int:
        """Returns the highest high watermark of all leaders, with the last states of those that are gone."""
        record = self._judge.partition(key)
        for broker in self._replicas.values():
            for view in broker.views:
                if view.key == key and (view.led or view.partition.replica.is_leader):
                    record.watermark = max(record.watermark, view.partition.replica.high_watermark)
        return record.watermark

    def _look_at_image(self, node_id: int, image: MetadataImage) -> None:
        judge = self._judge
        seen_by = f"broker {node_id}"
        seen = self._topics.setdefault(node_id, {})
        for topic in image.topics_by_name.values():
            if seen.get(topic.name) is topic:
                continue  # images share what has not changed
            seen[topic.name] = topic
            topic_id = topic.topic_id.hex
            for number, partition in topic.partitions.items():
                key = PartitionKey(topic.name, number, topic_id)
                state = PartitionState(
                    partition.leader, partition.leader_epoch, partition.isr, partition.replicas, partition.elr
                )
                judge.partition_state(key, partition.partition_epoch, state, seen_by)

    def _look_at_replica(self, node_id: int, incarnation: int, view: _ReplicaView) -> None:
        judge = self._judge
        role, state, watermark, log_end, *_ = view.seen
        assert state is not None
        is_leader = role is Role.LEADER
        leader_epoch = state.leader_epoch
        partition = view.partition
        self._rules.replica_changed(node_id, view.key, partition, view.log_end)
        view.log_end = log_end
        if is_leader and leader_epoch != view.leader_epoch:
            view.leader_epoch = leader_epoch
            judge.leader(view.key, leader_epoch, node_id)
            start = partition.log.local_log_start_offset  # ``remote_watch`` judges what is below it
            batches = batches_seen(partition, start, partition.log.log_end_offset)
            if is_cleaned(partition):
                judge.leader_ends(view.key, node_id, leader_epoch, partition.log.log_end_offset)
            elif batches is not None:
                found = {batch.base_offset: batch for batch in batches}
                judge.elected(view.key, node_id, leader_epoch, start, found)
        if is_leader:
            judge.leader_watermark(view.key, node_id, incarnation, leader_epoch, watermark)
        else:
            known = judge.partition(view.key).watermark
            self._watermarks.believed(view.key, node_id, watermark, known, lambda: self._last_watermark(view.key))
        view.led = is_leader
        lost = view.durable.look(partition.log, self._cluster.machines[node_id].disk)
        if lost is not None:
            point = partition.log.recovery_point
            judge.violated(
                "recovery-point-durable",
                f"{view.key}: broker {node_id} counts records below {point} as durable, and not durable is {lost}",
            )
        self._watermarks.compare(view.key, node_id, partition)
        view.verified = min(view.verified, log_end)
        first = max(view.verified, partition.log.local_log_start_offset)
        if watermark > first:
            batches = batches_seen(partition, first, min(watermark, partition.log.log_end_offset))
            if is_cleaned(partition):
                judge.committed_to(view.key, leader_epoch, watermark)
                view.verified = watermark
            elif batches is not None:
                judge.committed(view.key, node_id, leader_epoch, batches, first)
                view.verified = watermark
        if is_leader:
            self._look_at_followers(node_id, view, watermark)

    def _look_at_followers(self, leader_id: int, view: _ReplicaView, watermark: int) -> None:
        # Committed is what the metadata says, not what the leader believes.
        states = self._judge.partition(view.key).states
        committed = states.get(view.partition.replica.state.partition_epoch)
        if committed is None or committed.leader_epoch != view.partition.replica.state.leader_epoch:
            return
        newest = states[max(states)]
        for member in committed.isr:
            broker = self._cluster.brokers.get(member)
            if member == leader_id or broker is None or not broker.is_built:
                continue
            if member not in newest.isr:
                continue  # it has left since, maybe for good and with its log; the leader has yet to hear of it
            partition = broker.context.replicas.partitions.get(view.partition.key)
            if partition is not None and partition.topic_id == view.partition.topic_id:
                self._judge.isr_holds(view.key, leader_id, watermark, member, partition.log.log_end_offset)


def batches_seen(partition: Partition, start: int, end: int) -> list[BatchSeen] | None:
    """Returns the batches of a log from offset ``start`` to ``end`` (exclusive); None if the disk fails or rotted."""
    if partition.log.failed:
        return None
    found: list[BatchSeen] = []
    position = start
    try:
        while position < end:
            data = read_log(partition, position, end)
            if not data:
                break
            for _, header in iterate_batches(data):
                if header.next_offset > end:
                    return found
                producer = ProducerBatch(
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.last_sequence,
                    bool(header.attributes & CONTROL_BIT),
                )
                found.append(
                    BatchSeen(
                        header.base_offset, header.last_offset, header.partition_leader_epoch, header.crc, producer
                    )
                )
                position = header.next_offset
    except OSError:
        return None
    return found
