"""Records the actions and the state of each node for the timeline of a failed run.

A witness reads every node after every turn, as the observer does, and writes a line for each relevant change: the
leader that a controller follows and its epoch, the brokers and partitions that a broker knows, the partitions that it
leads or follows and from which offset, and truncations of logs. It changes and draws nothing, so a run with a witness
is the same run: a failed seed is run again with a witness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau_broker.replication.replica import Role
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.world.time.timeline import VirtualClock
    from moldau_quorum.log.port import Leadership
    from moldau_quorum.metadata.image import BrokerImage, MetadataImage, PartitionImage
    from moldau_quorum.node.server import ControllerNode

LINES_MAX = 50_000


class _Part(NamedTuple):
    """The state of a replica at its last observation."""

    partition: Partition
    role: Role
    leader_epoch: int
    log_end: int


class Witness:
    """Watches a cluster: ``turn_ended`` is for the watchers of the world's agenda."""

    def __init__(self, cluster: SimulatedCluster, clock: VirtualClock) -> None:
        """Starts without observations."""
        self._cluster = cluster
        self._clock = clock
        self._leaderships: dict[int, Leadership] = {}
        self._images: dict[int, MetadataImage] = {}
        self._parts: dict[tuple[int, tuple[str, int]], _Part] = {}
        self.lines: list[tuple[float, str, str]] = []
        """Virtual time, node, and what it did or learned."""

    def turn_ended(self) -> None:
        """Looks at what a turn of the event loop has changed."""
        for node_id, controller in self._cluster.controllers.items():
            leadership = controller.log.leadership
            if self._leaderships.get(node_id) != leadership:
                self._leaderships[node_id] = leadership
                self._say(node_id, _leadership_text(node_id, leadership))
        for node_id, broker in self._cluster.brokers.items():
            image = broker.metadata.image
            before = self._images.get(node_id)
            if image is not before:
                self._images[node_id] = image
                self._look_at_image(node_id, before, image)
            if broker.is_built:
                self._look_at_replicas(node_id, broker)

    def _say(self, node_id: int, text: str) -> None:
        if len(self.lines) < LINES_MAX:
            self.lines.append((self._clock.now, self._cluster.host(node_id), text))

    def _look_at_image(self, node_id: int, before: MetadataImage | None, image: MetadataImage) -> None:
        if before is not None and before.offset > image.offset:
            before = None  # another process, which starts over
        known = before.brokers if before is not None else {}
        for broker_id, broker in image.brokers.items():
            text = _broker_text(broker)
            if broker_id not in known or _broker_text(known[broker_id]) != text:
                self._say(node_id, f"learns: broker {broker_id} is {text} (metadata offset {image.offset})")
        for name, topic in image.topics_by_name.items():
            old = before.topics_by_name.get(name) if before is not None else None
            if old is topic:
                continue
            for number, partition in topic.partitions.items():
                if old is None or old.partitions.get(number) != partition:
                    text = _partition_text(partition)
                    self._say(node_id, f"learns: {name}-{number} {text} (metadata offset {image.offset})")

    def _look_at_replicas(self, node_id: int, broker: Broker) -> None:
        for key, partition in broker.context.replicas.partitions.items():
            replica = partition.replica
            now = _Part(partition, replica.role, replica.state.leader_epoch, replica.log_end_offset)
            before = self._parts.get((node_id, key))
            if now == before:
                continue
            self._parts[node_id, key] = now
            name = f"{key[0]}-{key[1]}"
            if before is None or before.partition is not partition or before[1:3] != now[1:3]:
                ends = f"log end {now.log_end}, high watermark {replica.high_watermark}"
                if replica.is_leader:
                    self._say(node_id, f"leads {name} in epoch {now.leader_epoch}: {ends}")
                elif replica.state.leader >= 0:
                    self._say(node_id, f"follows {replica.state.leader} in {name}, epoch {now.leader_epoch}: {ends}")
                else:
                    self._say(node_id, f"knows no leader of {name}: {ends}")
            if before is not None and before.partition is partition and now.log_end < before.log_end:
                self._say(node_id, f"cuts the log of {name} from {before.log_end} to {now.log_end}")

    def at_the_end(self) -> list[str]:
        """Returns lines with everything that each running node knows now."""
        lines: list[str] = []
        for node_id, controller in sorted(self._cluster.controllers.items()):
            lines.append(f"{self._cluster.host(node_id)}: {_controller_text(node_id, controller)}")
        for node_id, broker in sorted(self._cluster.brokers.items()):
            host = self._cluster.host(node_id)
            lines.append(f"{host}: metadata offset {broker.metadata.image.offset}")
            if not broker.is_built:
                continue
            for key, partition in sorted(broker.context.replicas.partitions.items()):
                replica = partition.replica
                state = replica.state
                lines.append(
                    f"{host}: {key[0]}-{key[1]} {replica.role.value}, leader {state.leader}, epoch "
                    f"{state.leader_epoch}, in sync {_ids(state.isr)}, log {partition.log.log_start_offset} to "
                    f"{replica.log_end_offset}, high watermark {replica.high_watermark}"
                )
        down = [self._cluster.host(node_id) for node_id in self._cluster.machines if not self._runs(node_id)]
        return [*lines, *(f"{host}: does not run" for host in down)]

    def _runs(self, node_id: int) -> bool:
        return node_id in self._cluster.brokers or node_id in self._cluster.controllers


def _ids(nodes: tuple[int, ...]) -> str:
    return " ".join(map(str, nodes)) or "none"


def _leadership_text(node_id: int, leadership: Leadership) -> str:
    if leadership.active:
        return f"is the active controller of epoch {leadership.epoch}"
    if leadership.leader_id == node_id:
        return f"leads the quorum in epoch {leadership.epoch}, not active yet"
    if leadership.leader_id < 0:
        return f"knows no leader of the quorum in epoch {leadership.epoch}"
    return f"follows controller {leadership.leader_id} in epoch {leadership.epoch}"


def _controller_text(node_id: int, controller: ControllerNode) -> str:
    log = controller.log
    return f"{_leadership_text(node_id, log.leadership)}, metadata committed up to {log.high_watermark}"


def _broker_text(broker: BrokerImage) -> str:
    state = "fenced" if broker.fenced else "shutting down" if broker.in_controlled_shutdown else "in service"
    return f"{state}, broker epoch {broker.broker_epoch}"


def _partition_text(partition: PartitionImage) -> str:
    leader = f"leader {partition.leader}" if partition.leader >= 0 else "no leader"
    text = f"has {leader}, epoch {partition.leader_epoch}, in sync {_ids(partition.isr)} of {_ids(partition.replicas)}"
    return text if not partition.elr else f"{text}, eligible {_ids(partition.elr)}"
