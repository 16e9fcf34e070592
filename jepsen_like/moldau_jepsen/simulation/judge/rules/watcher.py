"""Reads the facts that the rules judge off the nodes of a simulated cluster, after every step.

Most steps change nothing, so it compares identities first. It never changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.records import decode_records
from moldau.values import BrokerId
from moldau_broker.log.files.batches import CONTROL_BIT, TRANSACTIONAL_BIT
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_jepsen.simulation.judge.rules.committed import CommittedReader, committed_batches
from moldau_jepsen.simulation.judge.rules.cordons import CordonRules, CordonsSeen
from moldau_jepsen.simulation.judge.rules.disks import DiskRules
from moldau_jepsen.simulation.judge.rules.durable_entries import has_durable_entry
from moldau_jepsen.simulation.judge.rules.epochs import EpochRules
from moldau_jepsen.simulation.judge.rules.housekeeping import CompactionRules, RetentionRules, SessionRules
from moldau_jepsen.simulation.judge.rules.registrations import NO_EPOCH, JoinSeen, RegistrationRules
from moldau_jepsen.simulation.judge.rules.votes import CommitRules, VoteRules
from moldau_jepsen.simulation.judge.rules.waits import WaitRules
from moldau_quorum.log.raft.node import RaftNode
from moldau_quorum.log.raft.shell import RaftLog

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from uuid import UUID

    from moldau_broker.replication.replica import IsrProposal
    from moldau_broker.server.lifecycle.broker import Broker
    from moldau_broker.server.replicas.partition import Partition
    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
    from moldau_quorum.log.raft.core.raft_core import RaftCore
    from moldau_quorum.log.raft.core.types import HardState
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.node.server import ControllerNode

SMALL_SEGMENT_BYTES = 1 << 20
"""Larger segments do not fill in a simulated run, and what is in the active segment is not cleaned."""
SESSION_MS = 9_000.0
SYNC_TIMEOUT_MS = 3_000.0
STALL_SECONDS_MAX = 0.1
"""Disks that stall for longer may delay the guard of a broker itself, so they are not judged."""
SESSIONS_EVERY_SECONDS = 0.25
"""How often brokers' sessions are looked at while the metadata do not change."""


class _Voter:
    """The last observation of one process of a voter."""

    __slots__ = ("commit", "core", "durable", "hard_state", "image", "waiting")

    def __init__(self, core: RaftCore) -> None:
        self.core = core
        self.hard_state: HardState | None = None
        self.waiting: list[tuple[int, HardState]] = []  # (Ready that writes it, state), not durable yet
        self.commit = core.commit_index
        self.durable: int | None = None  # the index up to which it counts its log as durable
        self.image: MetadataImage | None = None


class RuleWatcher:
    """Watches one cluster for one judge."""

    def __init__(self, cluster: SimulatedCluster, judge: ClusterInvariants, now: Callable[[], float]) -> None:
        """``now`` returns the virtual time in seconds."""
        settings = cluster.shape.settings
        violated = judge.violated
        self._cluster = cluster
        self._gate = cluster.world.gate
        self._broker_ids = frozenset(cluster.broker_ids)
        self._machines = {node_id: machine.name for node_id, machine in cluster.machines.items()}
        self._node_ids = {name: node_id for node_id, name in self._machines.items()}
        self._judge = judge
        self._now = now
        self._votes = VoteRules(violated)
        self._commits = CommitRules(violated)
        default_min_isr = max(1, min(3, cluster.shape.brokers) - 1)
        self._registrations = RegistrationRules(
            violated,
            min_insync_replicas=int(settings.get("min.insync.replicas", default_min_isr)),
            unclean_election=settings.get("unclean.leader.election.enable") == "true",
        )
        self._epochs = EpochRules(violated)
        self._waits = WaitRules(violated)
        self._compaction = CompactionRules(violated)
        self._committed = CommittedReader(violated)
        self._retention = RetentionRules(violated)
        self._disks = DiskRules(violated, float(settings.get("log.dir.sync.timeout.ms", SYNC_TIMEOUT_MS)))
        self._cordons = CordonRules(violated)
        session_ms = float(settings.get("broker.session.timeout.ms", SESSION_MS))
        self._sessions = SessionRules(violated, session_ms / 1000)
        self._voters: dict[int, _Voter] = {}
        self._incarnations: dict[int, tuple[Broker, UUID]] = {}
        self._sessions_judged = 0.0
        self._images: dict[int, MetadataImage] = {}
        self._logs: dict[tuple[int, Partition], tuple[int, int]] = {}  # (generation, log start) last seen
        self._records_read: dict[PartitionKey, int] = {}
        self._open: dict[tuple[PartitionKey, int], list[tuple[int, bytes | None, bool]]] = {}
        self._proposals: dict[Partition, IsrProposal] = {}

    def look(self, ran: Sequence[int]) -> None:
        """Looks at what a step has changed in the nodes of which tasks ran; a node at rest stays as it is."""
        controllers = self._cluster.controllers
        if self._gate.holds_any:
            for node_id in controllers:
                if self._gate.is_paused(self._machines[node_id]):
                    self._sessions.controller_paused(self._now(), node_id)
        for node_id in ran:
            if node_id in self._broker_ids:
                self._look_at_broker(node_id)
            elif node_id in controllers:
                self._look_at_controller(node_id, controllers[node_id])

    # --- controllers

    def _look_at_controller(self, node_id: int, controller: ControllerNode) -> None:
        log = controller.log
        node = log.node if isinstance(log, RaftLog) else None
        if not isinstance(node, RaftNode):
            return  # another engine
        core = node.core
        voter = self._voters.get(node_id)
        if voter is None or voter.core is not core:
            if voter is not None and voter.core.directories.own != core.directories.own:
                self._votes.replaced(node_id)
            voter = self._voters[node_id] = _Voter(core)
            self._votes.started(node_id, core.hard_state.epoch, core.hard_state.voted_for)
            voter.hard_state = core.hard_state
        if voter.hard_state is not core.hard_state:
            voter.hard_state = core.hard_state
            voter.waiting.append((core.writes.hard_state_number, core.hard_state))
        while voter.waiting and voter.waiting[0][0] <= core.writes.synced_number:
            _, state = voter.waiting.pop(0)
            self._votes.promised(node_id, state.epoch, state.voted_for)
        if core.durable_index != voter.durable:
            voter.durable = core.durable_index
            self._look_at_durable(node_id, core, node._directory)
        if core.leader is not None and core.commit_index > voter.commit:
            self._look_at_commit(node_id, core, node._directory)
        voter.commit = core.commit_index
        image = controller.machine.image
        if image is not voter.image:
            voter.image = image
            self._registrations.image_seen(image)
            self._judge_sessions(node_id, controller)
        elif core.commit_index == core.log.last_index and self._now() >= self._sessions_judged + SESSIONS_EVERY_SECONDS:
            self._judge_sessions(node_id, controller)

    def _judge_sessions(self, node_id: int, controller: ControllerNode) -> None:
        leadership = controller.log.leadership
        if leadership.active:
            self._sessions_judged = now = self._now()
            unfenced = [each.broker_id for each in controller.machine.image.brokers.values() if not each.fenced]
            silent = self._silent_brokers(node_id)
            self._sessions.controller_gets_on(now, node_id, leadership.epoch, silent, unfenced)

    def broker_heard(self, host: str) -> None:
        """A controller answers a heartbeat, or a registration, of the broker on that host."""
        self._sessions.broker_heard(self._now(), self._node_ids[host])

    def _silent_brokers(self, controller_id: int) -> dict[int, str]:
        """Brokers that the controller cannot hear now, and why."""
        world, silent = self._cluster.world, {}
        controller = world.network.host(self._machines[controller_id])
        for node_id in self._cluster.broker_ids:
            name = self._machines[node_id]
            if not self._cluster.machines[node_id].is_running:
                silent[node_id] = "is down"
            elif world.gate.is_paused(name):
                silent[node_id] = "is paused"
            elif world.network.blocked(world.network.host(name), controller):
                silent[node_id] = "is cut off"
        return silent

    def _look_at_durable(self, node_id: int, core: RaftCore, directory: str) -> None:
        """Compares the last entry that a voter counts as durable with its disk."""
        index, log = core.durable_index, core.log
        self._commits.durable(node_id, index)
        if index <= log.base_index:
            return  # a snapshot holds it
        disk = self._cluster.machines[node_id].disk
        if index > log.last_index or not has_durable_entry(disk, directory, log.entry(index)):
            self._judge.violated(
                "counted-is-durable",
                f"voter {node_id} counts index {index} as durable, its log ends at {log.last_index}, and its disk "
                "lacks the entry",
            )

    def _look_at_commit(self, node_id: int, core: RaftCore, directory: str) -> None:
        """Compares the entries that voters believe durable with their disks.

        A leader commits entries of its own epoch, so no snapshot holds them yet. A voter that is down, or has
        not opened its log yet, counts with the last word of its process where a fault has lost its log since: it was
        true, and the leader may count it.
        """
        index = core.commit_index
        held: dict[int, int | None] = {}
        lost = [node for node in self._cluster.lost_logs if node not in self._cluster.controllers]
        for member in core.configuration.voters:
            other = self._cluster.controllers.get(member)
            if other is None or member not in self._voters or member in lost:
                held[member] = None
                continue
            theirs = self._voters[member].core
            self._commits.durable(member, theirs.durable_index)
            held[member] = theirs.log.epoch_at(index)
        without: list[int] = []
        if index > core.log.base_index:
            entry, machines = core.log.entry(index), self._cluster.machines
            looked_at = [member for member in held if member not in lost]
            without = [node for node in looked_at if not has_durable_entry(machines[node].disk, directory, entry)]
        self._commits.committed(node_id, index, core.log.epoch_at(index) or 0, held, without)

    # --- brokers

    def _look_at_broker(self, node_id: int) -> None:
        machine = self._cluster.machines[node_id]
        broker = self._cluster.brokers.get(node_id)
        known = self._incarnations.get(node_id)
        if known is not None and known[0] is not broker:
            del self._incarnations[node_id]
            if machine.ended_in_order:
                self._registrations.ended_in_order(known[1])
        if broker is None:
            return
        image = broker.metadata.image
        if self._images.get(node_id) is not image:
            self._images[node_id] = image
            self._registrations.image_seen(image)
        if broker.is_built:
            self._waits.look(node_id, broker.context.replicas.waits, self._now())
            self._look_at_disks(node_id, broker)
            self._look_at_cordons(node_id, broker)
        if broker.is_built and node_id not in self._incarnations:
            self._incarnations[node_id] = (broker, broker.context.incarnation_id)

    def _look_at_disks(self, node_id: int, broker: Broker) -> None:
        machine = self._cluster.machines[node_id]
        profile = machine.disk.profile
        if not profile.hanging_paths or profile.stall_max > STALL_SECONDS_MAX or self._cluster.is_stopping(node_id):
            self._disks.calm(node_id)
        else:
            partitions = broker.context.replicas.partitions.values()
            self._disks.look(node_id, machine.clock.monotonic_ms(), partitions, profile.is_hanging)

    def _look_at_cordons(self, node_id: int, broker: Broker) -> None:
        logs = broker.context.logs
        cordoned = logs.cordons.paths
        if not cordoned:
            self._cordons.calm(node_id)
            return
        image, own = broker.metadata.image, BrokerId(node_id)
        ids = {each.directory_id for each in logs.directories if each.path in cordoned}

        def is_recorded(replica: Hashable) -> bool:
            assert isinstance(replica, tuple)
            topic = image.topics_by_name.get(replica[0])
            partition = None if topic is None else topic.partitions.get(replica[1])
            return partition is not None and partition.directory(own) in ids

        self._cordons.look(
            node_id,
            CordonsSeen(
                process=broker,
                cordoned=cordoned,
                has_choice=any(path not in cordoned for path in logs.online_directories),
                held=frozenset(log.topic_partition for log in logs._table.all() if log.parent_directory in cordoned),
                is_recorded=is_recorded,
            ),
        )

    def replica_changed(self, node_id: int, key: PartitionKey, partition: Partition, log_end_before: int) -> None:
        """A replica's state, high watermark or log end is not what it was."""
        replica = partition.replica
        if not replica.is_leader:
            if replica.log_end_offset < log_end_before:
                self._truncated(node_id, key, log_end_before, replica.log_end_offset)
        else:
            proposal = replica.proposal
            if proposal is not None and self._proposals.get(partition) is not proposal:
                self._proposals[partition] = proposal
                self._proposed(key, proposal)
            self._committed.look(key, partition)
        if not partition.log.failed:
            self._look_at_log(node_id, key, partition)

    def _truncated(self, node_id: int, key: PartitionKey, before: int, after: int) -> None:
        record = self._judge.partition(key)
        if not record.states or after >= record.end:
            return
        newest = record.states[max(record.states)]
        if node_id in newest.isr:
            self._judge.violated(
                "truncation-keeps",
                f"{key}: broker {node_id}, in ISR {newest.isr}, cut its log from {before} to {after}, "
                f"committed is up to {record.end}",
            )

    def _proposed(self, key: PartitionKey, proposal: IsrProposal) -> None:
        if proposal.joining < 0:
            return
        epochs = dict(zip(proposal.isr, proposal.broker_epochs, strict=True))
        self._registrations.join_proposed(
            (key.topic, key.partition),
            proposal.partition_epoch,
            JoinSeen(isr=proposal.isr, joining=proposal.joining, broker_epoch=epochs.get(proposal.joining, NO_EPOCH)),
        )

    # --- logs

    def _look_at_log(self, node_id: int, key: PartitionKey, partition: Partition) -> None:
        log = partition.log
        config = log.config
        slot = (node_id, partition)
        before = self._logs.get(slot)
        now = (log.storage.segments.generation, log.log_start_offset)
        if before != now:
            self._logs[slot] = now
            epochs = [(entry.leader_epoch, entry.start_offset) for entry in log.epochs.entries]
            self._epochs.began(key, node_id, log.log_start_offset, log.log_end_offset, epochs)
            if before is not None and now[1] > before[1]:
                self._retention.deleted(
                    key,
                    node_id,
                    log_start=log.log_start_offset,
                    watermark=partition.replica.high_watermark,
                    # The size of a tiered log is judged by ``remote_watch``, which sees the object store.
                    size_bytes=-1 if log.is_remote else log.size_bytes,
                    # A follower's log begins where its leader's does, however far behind its end is.
                    retention_bytes=config.retention_bytes if config.delete and partition.replica.is_leader else -1,
                )
        if not is_cleaned(partition):
            return
        try:
            self._read_committed(key, partition)
            if before is not None and before[0] != now[0]:
                start, end = log.log_start_offset, log.log_end_offset
                offsets = [
                    record.offset
                    for header, data in committed_batches(partition, start, end)
                    if not header.attributes & CONTROL_BIT
                    for record in decode_records(data, 0, header)
                ]
                self._compaction.cleaned(key, node_id, start, end, offsets)
        except OSError:
            return  # its disk fails, which is a fault and no finding

    def _read_committed(self, key: PartitionKey, partition: Partition) -> None:
        """Reports to the judge the records that became committed; those of a transaction when it is."""
        position = max(self._records_read.get(key, 0), partition.log.log_start_offset)
        end = min(partition.replica.high_watermark, partition.log.log_end_offset)
        if position >= end:
            return
        for header, data in committed_batches(partition, position, end):
            slot = (key, header.producer_id)
            if header.attributes & CONTROL_BIT:
                marker = decode_marker(header, data)
                held = self._open.pop(slot, [])
                if marker is not None and marker.commit:
                    self._report(key, held)
                continue
            records = [(record.offset, record.key, record.value is None) for record in decode_records(data, 0, header)]
            if header.attributes & TRANSACTIONAL_BIT:
                self._open.setdefault(slot, []).extend(records)
            else:
                self._report(key, records)
        self._records_read[key] = end

    def _report(self, key: Hashable, records: list[tuple[int, bytes | None, bool]]) -> None:
        for offset, record_key, is_tombstone in records:
            self._compaction.committed(key, offset, record_key, is_tombstone=is_tombstone)


def is_cleaned(partition: Partition) -> bool:
    """Returns whether the cleaner works on the log, so that its replicas need not hold the same batches."""
    config = partition.log.config
    return config.compact and config.segment_bytes <= SMALL_SEGMENT_BYTES
