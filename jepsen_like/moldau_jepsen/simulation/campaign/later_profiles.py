"""Profiles that campaigns draw from a stream of their own, because they were added after the others."""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.campaign.profile import PLAIN, Profile, workload
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.workloads.acknowledgements.few_acks import FewAcksOptions
from moldau_jepsen.workloads.compacted import CompactedOptions
from moldau_jepsen.workloads.share import ShareOptions
from moldau_jepsen.workloads.streams.workload import StreamsOptions
from moldau_jepsen.workloads.tiered.options import TieredOptions

COMPACTION = Profile(
    name="compaction",
    text="tombstones and markers are soon cleaned away, while brokers are away for much shorter",
    options=replace(
        PLAIN,
        shape=ClusterShape(settings={"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}),
        workload=workload(senders=0, assigned_readers=0, group_readers=0, sends_per_second=1.0, crash_every_s=0.0),
        fault_scope=FaultScope.BROKERS,
        transactions=False,
        compaction=True,
        compacted_options=CompactedOptions(delete_retention_ms=3_000, reads_per_second=2.0, keys=20),
        config_changes_per_second=0.2,
        fault_seconds=20.0,
    ),
    kinds=(FaultKind.RESTART, FaultKind.KILL, FaultKind.KILL_LEADER, FaultKind.ELECT),
    strikes=(1, 4),
    lengths=(0.2, 0.8),
)
"""A replica that is away for longer than ``delete.retention.ms`` may miss a tombstone and keep an older value: Kafka
does not promise more. So the faults of this profile are short. Elsewhere tombstones outlast the run."""

AROUND_A_GROUP = replace(
    PLAIN,
    workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=2.0, crash_every_s=0.0),
    transactions=False,
    config_changes_per_second=0.2,
    fault_scope=FaultScope.ALL,
)
"""Options under which a group has the cluster nearly to itself."""

AGAINST_COORDINATORS = (
    FaultKind.PAUSE,
    FaultKind.PAUSE,
    FaultKind.LINK,
    FaultKind.KILL_LEADER,
    FaultKind.KILL_LEADER,
    FaultKind.KILL,
    FaultKind.RESTART,
)

SHARING = Profile(
    name="sharing",
    text="members of a share group crash and fall silent while the leaders of its partitions and of its state die",
    options=replace(
        AROUND_A_GROUP,
        sharing=True,
        share_options=ShareOptions(
            slots=3,
            sends_per_second=20.0,
            life_s=6.0,
            lock_ms=3_000,
            session_ms=2_000,
            dawdle_share=0.3,
            request_timeout_ms=600,
        ),
        fault_seconds=20.0,
    ),
    kinds=AGAINST_COORDINATORS,
    strikes=(5, 12),
    lengths=(0.3, 3.0),
)

SHARE_ADMINISTRATION = Profile(
    name="share-administration",
    text="offsets of share groups are set and deleted, groups deleted, and topics recreated, while coordinators die",
    options=replace(
        AROUND_A_GROUP,
        share_administration=True,
        fault_seconds=20.0,
    ),
    kinds=AGAINST_COORDINATORS,
    strikes=(3, 8),
    lengths=(0.3, 2.5),
)

STREAMING = Profile(
    name="streaming",
    text="members of a streams group crash, hang and fall silent while the group's coordinator dies",
    options=replace(
        AROUND_A_GROUP,
        streams=True,
        streams_options=StreamsOptions(slots=3, life_s=6.0),
        fault_seconds=25.0,
    ),
    kinds=AGAINST_COORDINATORS,
    strikes=(4, 10),
    lengths=(0.3, 3.0),
)

FEW_ACKS = Profile(
    name="few-acks",
    text="producers with acks=0 and acks=1 crash and retry while leaders die, hang and are cut off",
    options=replace(
        PLAIN,
        workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=5.0, crash_every_s=0.0),
        transactions=False,
        config_changes_per_second=0.2,
        few_acks=True,
        few_acks_options=FewAcksOptions(producers=4),
        fault_seconds=20.0,
    ),
    kinds=(
        FaultKind.KILL_LEADER,
        FaultKind.KILL_LEADER,
        FaultKind.KILL,
        FaultKind.RESTART,
        FaultKind.PAUSE,
        FaultKind.LINK,
        FaultKind.ELECT,
    ),
    strikes=(4, 10),
    lengths=(0.3, 3.0),
)

TIERED = Profile(
    name="tiered",
    text="small segments are copied to an object store and leave the disks, while the store, brokers and disks fail",
    options=replace(
        PLAIN,
        shape=ClusterShape(controllers=1, racks=True, settings={"log.segment.bytes": "1024"}),
        workload=workload(
            partitions=2,
            senders=1,
            assigned_readers=1,
            group_readers=1,
            sends_per_second=8.0,
            crash_every_s=6.0,
            padding_bytes=60,
        ),
        topic_settings=TieredOptions().topic_settings,
        transactions=True,
        tiered=True,
        racks=True,
        directories=None,
        config_changes_per_second=0.5,
        fault_seconds=14.0,
    ),
    kinds=(
        FaultKind.STORE_AWAY,
        FaultKind.STORE_AWAY,
        FaultKind.STORE_SLOW,
        FaultKind.STORE_ERROR,
        FaultKind.STORE_ERROR,
        FaultKind.STORE_LATE,
        FaultKind.STORE_LATE,
        FaultKind.REASSIGN,
        FaultKind.REASSIGN,
        FaultKind.REASSIGN,
        FaultKind.KILL,
        FaultKind.KILL_LEADER,
        FaultKind.KILL_LEADER,
        FaultKind.RESTART,
        FaultKind.CRASH_POINT,
        FaultKind.POWER,
        FaultKind.POWER_UNSYNCED,
        FaultKind.CUT,
        FaultKind.BLIND,
        FaultKind.LINK,
        FaultKind.PAUSE,
        FaultKind.CLOCK_JUMP,
        FaultKind.CLOCK_RATE,
        FaultKind.DISK_ERROR,
        FaultKind.READ_ERROR,
        FaultKind.DISK_SLOW,
        FaultKind.DIRECTORY,
        FaultKind.MOVE_DIRECTORY,
        FaultKind.MOVE_DIRECTORY,
        FaultKind.ELECT,
    ),
    strikes=(5, 10),
    lengths=(0.3, 4.0),
)

SEPARATE = (
    (SHARE_ADMINISTRATION, "share administration profile", 0.03),
    (STREAMING, "streaming profile", 0.04),
    (FEW_ACKS, "few acks profile", 0.03),
    (TIERED, "tiered profile", 0.04),
)
"""Profiles with streams of their own, by which a seed draws them, and their probabilities; the first one that is drawn
counts. A later one shifts only its own seeds."""
