"""In-sync sets, leaders and high watermarks over time, asked past the proxies at each node's own listener.

A client would wait for nodes that are paused or cut off, just when the answer is worth most. So every running broker is
asked with a short deadline, and for each partition the answer of the highest leader epoch counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.launcher import probe
from moldau_jepsen.launcher.process import ProcessState
from moldau_jepsen.reports.chaos import ClusterSample
from moldau_jepsen.reports.over_time import PartitionState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.protocol.messages.metadata import MetadataResponsePartition
    from moldau_jepsen.launcher import LocalCluster
    from moldau_jepsen.reports.gather import PartitionsOverTime

ANSWER_TIMEOUT_MS = 300.0

Key = tuple[str, int]


class ClusterSampler:
    """Samples the topics of a run. It blocks, and is not for use by several threads at once."""

    def __init__(self, cluster: LocalCluster, topics: Sequence[str], partitions: PartitionsOverTime) -> None:
        """Starts without observations. ``partitions`` takes the result of each one."""
        self._cluster = cluster
        self._topics = list(topics)
        self._high_watermark: dict[Key, int] = {}
        self._reported: dict[Key, int] = {}  # high watermarks of this look
        self._kept = partitions

    def sample(self, at_ms: float) -> ClusterSample | None:
        """Returns the latest sample; None if no broker answers. A missing high watermark keeps its last value."""
        partitions = self._partitions()
        if not partitions:
            return None
        led: dict[int, list[Key]] = {}
        self._reported.clear()
        for key, partition in partitions.items():
            if partition.leader_id >= 0:
                led.setdefault(partition.leader_id, []).append(key)
        for leader, keys in led.items():
            self._ask_high_watermarks(leader, keys)
        self._keep(at_ms / 1000, partitions)
        return ClusterSample(
            at_ms=at_ms,
            in_sync_min=min(len(partition.isr_nodes) for partition in partitions.values()),
            leaderless=sum(partition.leader_id < 0 for partition in partitions.values()),
            high_watermark_sum=sum(self._high_watermark.values()),
        )

    def _keep(self, at_s: float, partitions: Mapping[Key, MetadataResponsePartition]) -> None:
        for key, partition in partitions.items():
            name = f"{key[0]}-{key[1]}"
            isr = tuple(partition.isr_nodes)
            state = PartitionState(at_s, partition.leader_id, partition.leader_epoch, isr, len(partition.replica_nodes))
            self._kept.saw_state(name, state)
            self._kept.saw_high_watermark(name, at_s, self._reported.get(key))

    def _partitions(self) -> dict[Key, MetadataResponsePartition]:
        found: dict[Key, MetadataResponsePartition] = {}
        for node in self._cluster.brokers:
            if self._cluster.state(node.node_id) is not ProcessState.RUNNING:
                continue
            answer = probe.fetch_metadata(node.door, self._topics, ANSWER_TIMEOUT_MS)
            for topic in () if answer is None else answer.topics:
                for partition in topic.partitions:
                    key = (topic.name or "", partition.partition_index)
                    other = found.get(key)
                    if other is None or partition.leader_epoch > other.leader_epoch:
                        found[key] = partition
        return found

    def _ask_high_watermarks(self, leader: int, keys: Sequence[Key]) -> None:
        nodes = [node for node in self._cluster.brokers if node.node_id == leader]
        if not nodes or self._cluster.state(leader) is not ProcessState.RUNNING:
            return
        answer = probe.fetch_ends(nodes[0].door, dict.fromkeys(keys, probe.ANY_LEADER_EPOCH), ANSWER_TIMEOUT_MS)
        for topic_answer in () if answer is None else answer.topics:
            for partition_answer in topic_answer.partitions:
                if partition_answer.error_code == 0:
                    key = (topic_answer.name, partition_answer.partition_index)
                    self._reported[key] = partition_answer.offset
                    self._high_watermark[key] = max(partition_answer.offset, self._high_watermark.get(key, 0))
