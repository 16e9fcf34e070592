"""Runs that press on one rule. Campaigns do not draw them: to the real code they show nothing new."""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.campaign.later_profiles import COMPACTION
from moldau_jepsen.simulation.campaign.profile import PLAIN, Profile, workload
from moldau_jepsen.simulation.campaign.profiles import (
    DECISIONS,
    DIVERGENCE,
    ELECTIONS,
    GROUPS,
    IMPATIENT,
    OUTAGES,
    RECREATED_TOPICS,
    REPLICATION,
    TRANSACTIONS,
)
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.workloads.compacted import CompactedOptions
from moldau_jepsen.workloads.transactions import TransactionOptions

HOLDS_UNCLEAN = frozenset(
    {
        "one-leader",
        "partition-state",
        "watermark-monotone",
        "log-watermark",
        "watermark-known",
        "epochs-in-log",
        "wait-ends",
        "retention-keeps",
    }
)
"""Rules that hold where replicas that are not in sync may be elected, which loses acknowledged records.

``stuck`` is none of them, because readers are expected to reach all offsets that were acknowledged.
"""

TRANSFERS = replace(
    TRANSACTIONS,
    name="transfers",
    text="nothing but transactions, so that those that overlap read each other's records at once",
    options=replace(
        TRANSACTIONS.options,
        workload=replace(TRANSACTIONS.options.workload, senders=0, assigned_readers=0, group_readers=0),
        fault_seconds=40.0,
    ),
    strikes=(0, 2),
)

LONE_RECREATED_TOPICS = replace(
    RECREATED_TOPICS,
    name="lone-recreated-topics",
    text="as recreated-topics, with one broker: a directory returns after the topic was created again in the other one",
    options=replace(RECREATED_TOPICS.options, shape=ClusterShape(brokers=1)),
    kinds=(FaultKind.KILL,),
    strikes=(1, 3),
    lengths=(0.1, 0.5),
    story=((FaultKind.DIRECTORY, 0.0, 1.2), (FaultKind.RESTART, 1.4, 1.6)),
    story_seconds=4.0,
    stream="",
)
"""No follower has the records of the new topic, so its loss shows."""

SLOW_READERS = replace(
    GROUPS,
    name="slow-readers",
    text="members of a group take two records at a time, and crash with more fetched",
    options=replace(
        GROUPS.options,
        workload=replace(
            GROUPS.options.workload,
            senders=2,
            sends_per_second=60.0,
            consumer={**GROUPS.options.workload.consumer, "max.poll.records": 2},
        ),
        pipe=False,
    ),
    strikes=(4, 8),
)

HASTY_READERS = Profile(
    name="hasty-readers",
    text="readers seek again while the answers to their seeks are on their way, from nodes that are slow for a while",
    options=replace(
        PLAIN,
        workload=workload(senders=1, assigned_readers=3, group_readers=0, sends_per_second=20.0, crash_every_s=0.0),
        transactions=False,
        seeks=True,
        config_changes_per_second=0.2,
    ),
    kinds=(FaultKind.SLOW, FaultKind.SLOW, FaultKind.KILL_LEADER),
    strikes=(3, 6),
    lengths=(1.0, 4.0),
)

SHORT_TRANSACTIONS = replace(
    DECISIONS,
    name="short-transactions",
    stream="hasty-tellers",
    text="as decisions, and tellers crash so often that many do so while they wait for what a coordinator has decided",
    options=replace(DECISIONS.options, bank_options=replace(DECISIONS.options.bank_options, crash_every_s=1.0)),
)

PIPED = replace(
    REPLICATION,
    name="replication-piped",
    text="as replication, with a pipe",
    options=replace(REPLICATION.options, pipe=True),
)

_SMALL = {"linger.ms": 5, "batch.size": 64}

SMALL_BATCHES = replace(
    REPLICATION,
    name="small-batches",
    text="as replication, with transactions and a pipe, and batches of one record",
    options=replace(
        REPLICATION.options,
        workload=replace(REPLICATION.options.workload, producer=_SMALL),
        pipe=True,
        pipe_options=replace(PIPED.options.pipe_options, partitions=1, producer=_SMALL),
        transactions=True,
        transactional_producer=_SMALL,
    ),
)

QUOTAS = Profile(
    name="quotas",
    text="quotas of clients that use too much change while brokers and controllers come and go",
    options=replace(
        PLAIN,
        shape=ClusterShape(controllers=1, brokers=2),
        workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=2.0, crash_every_s=0.0),
        config_changes_per_second=1.0,
        transactions=False,
        quotas=True,
    ),
    kinds=(FaultKind.RESTART, FaultKind.CUT, FaultKind.LINK, FaultKind.PAUSE),
    strikes=(1, 3),
    lengths=(0.2, 1.5),
)

RIGHTS = replace(
    QUOTAS,
    name="rights",
    text="rights, passwords and tokens of clients change while brokers and controllers come and go",
    options=replace(QUOTAS.options, quotas=False, security=True),
)

TOMBSTONES = replace(
    COMPACTION,
    name="tombstones",
    text="as compaction, with tombstones that outlast the run",
    options=replace(COMPACTION.options, compacted_options=CompactedOptions(reads_per_second=2.0)),
)

ADMINISTRATION = Profile(
    name="administration",
    text="offsets of a group are reset and deleted while its members come and go, and coordinators move",
    options=replace(
        PLAIN,
        shape=ClusterShape(controllers=1, brokers=3),
        workload=workload(senders=0, assigned_readers=0, group_readers=0, crash_every_s=0.0),
        config_changes_per_second=0.2,
        transactions=False,
        administration=True,
    ),
    kinds=(FaultKind.KILL_LEADER, FaultKind.RESTART, FaultKind.LINK, FaultKind.PAUSE, FaultKind.CUT),
    strikes=(2, 5),
    lengths=(0.2, 2.0),
)

LATE_PACKETS = replace(
    TRANSACTIONS,
    name="late-packets",
    text="packets of transactional clients stay in the network until their next transactions, which are mostly open",
    options=replace(
        TRANSACTIONS.options,
        workload=replace(TRANSACTIONS.options.workload, senders=0, assigned_readers=1, group_readers=0),
        transactional_producer={"request.timeout.ms": 1_000, "delivery.timeout.ms": 4_000, "linger.ms": 0},
        transaction_options=TransactionOptions(transactions_per_second=20.0, poll_timeout_ms=300.0),
        fault_seconds=30.0,
    ),
    kinds=(FaultKind.HELD_BACK,),
    strikes=(12, 18),
    lengths=(0.2, 0.8),
)

POWER_CUTS = Profile(
    name="power-cuts",
    text="brokers with small segments lose power, mostly just after they have truncated a log",
    options=replace(
        TRANSACTIONS.options,
        shape=ClusterShape(
            settings={
                "log.segment.bytes": "2048",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
                "log.flush.offset.checkpoint.interval.ms": "500",
            }
        ),
        synced=True,
        fault_seconds=20.0,
    ),
    kinds=(
        FaultKind.POWER_TRUNCATED,
        FaultKind.POWER_TRUNCATED,
        FaultKind.KILL_LEADER,
        FaultKind.POWER,
        FaultKind.POWER_ALL,
        FaultKind.CUT,
        FaultKind.SLOW,
    ),
    strikes=(8, 14),
    lengths=(0.5, 2.5),
)

STARTED_OVER = Profile(
    name="started-over",
    text="records are deleted while replicas are away, so that their logs begin again at another offset",
    options=replace(
        COMPACTION.options,
        compacted_options=CompactedOptions(deletes=True, deletions_per_second=2.0, partitions=1, rounds_per_second=8.0),
    ),
    kinds=(FaultKind.KILL, FaultKind.CUT, FaultKind.KILL_LEADER, FaultKind.PAUSE),
    strikes=(4, 8),
    lengths=(2.0, 5.0),
)

NEAR_READERS = Profile(
    name="near-readers",
    text="consumers read from followers and pause partitions, while leaders come and go and replicas move",
    options=replace(
        REPLICATION.options,
        directories=2,
        racks=True,
        workload=workload(assigned_readers=2),
    ),
    kinds=(FaultKind.KILL_LEADER, FaultKind.LINK, FaultKind.CUT, FaultKind.MOVE_DIRECTORY, FaultKind.SLOW),
    strikes=(5, 10),
)

SHORT_SEQUENCES = replace(
    IMPATIENT,
    name="short-sequences",
    text="as impatient, with sequence numbers that begin again after 127",
    options=replace(
        IMPATIENT.options,
        short_sequences=True,
        workload=replace(IMPATIENT.options.workload, sends_per_second=120.0, crash_every_s=0.0, partitions=1),
    ),
)

ROLLED = replace(
    REPLICATION,
    name="rolled",
    text="as replication, and brokers mostly end in order while followers are behind",
    kinds=(FaultKind.RESTART, FaultKind.RESTART, FaultKind.ROLL, FaultKind.SLOW, FaultKind.LINK),
)

CORDONED = Profile(
    name="cordoned",
    text="log directories are cordoned while partitions move to other brokers and between directories",
    options=replace(REPLICATION.options, directories=2, fault_seconds=20.0),
    kinds=(FaultKind.CORDON, FaultKind.CORDON, FaultKind.REASSIGN, FaultKind.MOVE_DIRECTORY, FaultKind.KILL),
    strikes=(8, 14),
    lengths=(1.0, 6.0),
)

HANGING_DISKS = Profile(
    name="hanging-disks",
    text="one disk at a time answers no sync, for longer than its broker waits; writes must go on",
    options=replace(
        PLAIN,
        shape=ClusterShape(settings={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}),
        workload=workload(assigned_readers=1, group_readers=0, sends_per_second=15.0, crash_every_s=0.0),
        transactions=False,
        synced=True,
        directories=None,
        fault_scope=FaultScope.BROKERS,
        config_changes_per_second=0.5,
        fault_seconds=27.0,
        write_seconds_max=5.0,
    ),
    kinds=(FaultKind.DISK_HANGS,),
    strikes=(0, 0),
    story=((FaultKind.DISK_HANGS, 0.0, 8.0),),
    story_seconds=13.0,
)

SLOW_DISKS = replace(
    HANGING_DISKS,
    name="slow-disks",
    text="disks stall for seconds, and answer all the same",
    options=replace(HANGING_DISKS.options, fault_seconds=20.0, write_seconds_max=None),
    kinds=(FaultKind.DISK_SLOW,),
    strikes=(4, 8),
    lengths=(4.0, 8.0),
    story=(),
)

UNCLEAN = Profile(
    name="unclean",
    text="leaders that went on alone fall silent, and replicas that are not in sync take their place",
    options=replace(
        REPLICATION.options,
        shape=ClusterShape(
            brokers=2,
            settings={
                "replica.lag.time.max.ms": "600",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
                "min.insync.replicas": "1",
                "unclean.leader.election.enable": "true",
            },
        ),
        workload=replace(REPLICATION.options.workload, assigned_readers=1, crash_every_s=0.0),
        only=HOLDS_UNCLEAN,
    ),
    kinds=(FaultKind.LINK, FaultKind.PAUSE, FaultKind.BLIND, FaultKind.CUT),
    strikes=(12, 20),
    lengths=(1.0, 4.0),
)
"""Acknowledged records are lost here, as configured; so only rules that hold all the same convict."""

HELD_QUESTIONS = Profile(
    name="held-questions",
    text="single requests and answers are held while transactions of one epoch are given up and begun again",
    options=replace(
        TRANSACTIONS.options,
        workload=replace(TRANSACTIONS.options.workload, senders=0, assigned_readers=1, group_readers=0),
        transactional_producer={
            "request.timeout.ms": 1_000,
            "delivery.timeout.ms": 1_200,
            "retry.backoff.ms": 50,
            "linger.ms": 0,
        },
        transaction_options=TransactionOptions(clients=3, transactions_per_second=20.0, poll_share=0.0),
        transaction_level=1,
        config_changes_per_second=0.2,
        fault_seconds=30.0,
    ),
    kinds=(FaultKind.HELD_CALL,),
    strikes=(35, 45),
    lengths=(1.0, 3.0),
)

HELD_MEMBERSHIPS = replace(
    ADMINISTRATION,
    name="held-memberships",
    text="as administration, and single requests and answers are held while members come and go",
    options=replace(ADMINISTRATION.options, fault_seconds=25.0),
    kinds=(FaultKind.HELD_CALL,),
    strikes=(30, 40),
    lengths=(1.0, 3.0),
)

MOVED_MARKERS = replace(
    TRANSACTIONS,
    name="moved-markers",
    text="leaders change while coordinators lose sight of the controllers, and half of all transactions are aborted",
    options=replace(
        TRANSACTIONS.options,
        workload=replace(TRANSACTIONS.options.workload, senders=0, assigned_readers=1, group_readers=0),
        transaction_options=TransactionOptions(
            clients=3, transactions_per_second=20.0, poll_share=0.1, abort_share=0.5
        ),
        config_changes_per_second=0.2,
        fault_seconds=20.0,
    ),
    kinds=(
        FaultKind.BLIND,
        FaultKind.BLIND,
        FaultKind.ELECT,
        FaultKind.ELECT,
        FaultKind.KILL_LEADER,
        FaultKind.REASSIGN,
    ),
    strikes=(20, 30),
    lengths=(0.5, 2.5),
)

DIVERGED = replace(
    DIVERGENCE,
    name="diverged",
    text="as divergence, and again and again a leader dies just when one follower is behind the other",
    options=replace(
        DIVERGENCE.options,
        workload=replace(DIVERGENCE.options.workload, assigned_readers=0),
        fault_seconds=15.0,
    ),
    strikes=(4, 8),
    story=((FaultKind.SLOW, 0.0, 1.6), (FaultKind.LINK, 0.6, 1.3), (FaultKind.KILL_LEADER, 1.0, 1.9)),
    story_seconds=2.5,
)

SILENCES = replace(
    OUTAGES,
    name="silences",
    text="a broker stands still for long while its machine answers, so that only its session can end",
    kinds=(FaultKind.PAUSE, FaultKind.HANG),
    strikes=(3, 4),
    lengths=(5.0, 10.0),
)

LATE_SYNCS = replace(
    DIVERGENCE,
    name="late-syncs",
    text="leaders are cut off, and syncs of their logs return only after they have cut what only they have",
    options=replace(
        DIVERGENCE.options,
        workload=replace(DIVERGENCE.options.workload, senders=2, assigned_readers=0, sends_per_second=60.0),
        transactions=False,
        synced=False,
        timed_syncs=True,
        fault_seconds=16.0,
    ),
    kinds=(FaultKind.LATE_SYNC,),
    strikes=(4, 6),
    lengths=(2.5, 4.5),
)

LATE_QUORUM_SYNCS = replace(
    ELECTIONS,
    name="late-quorum-syncs",
    text="active controllers are cut off, and their writes are durable only after they have dropped the entries",
    kinds=(FaultKind.LATE_SYNC,),
    strikes=(10, 20),
    lengths=(0.6, 1.4),
)
