"""Lists the profiles: runs with faults that concentrate on one part of the cluster (``profile``).

Planted bugs are hunted with the
profile that their rule needs. One in four seeds of a campaign uses a profile, so that the rules that convict a mutant
also judge the real code under the same conditions.
"""

from __future__ import annotations

from dataclasses import replace

from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.campaign.later_profiles import COMPACTION, SEPARATE, SHARING
from moldau_jepsen.simulation.campaign.options import RunOptions
from moldau_jepsen.simulation.campaign.profile import PLAIN, Profile, workload
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.workloads.members import MembersOptions
from moldau_jepsen.workloads.pipe import PipeOptions
from moldau_jepsen.world.world import derive_random

PROFILE_PROBABILITY = 0.25
LATER_PROBABILITY = 0.06

ELECTIONS = Profile(
    name="elections",
    text="five controllers lose sight of each other and die, again and again, with short election timeouts",
    options=replace(
        PLAIN,
        shape=ClusterShape(controllers=5, brokers=1, settings={"controller.quorum.election.timeout.ms": "120"}),
        workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=2.0, crash_every_s=0.0),
        config_changes_per_second=25.0,
        fault_scope=FaultScope.CONTROLLERS,
        transactions=False,
        fault_seconds=10.0,
    ),
    kinds=(
        FaultKind.KILL_LEADER,
        FaultKind.KILL,
        FaultKind.KILL_MANY,
        FaultKind.POWER,
        FaultKind.POWER_ALL,
        FaultKind.CRASH_POINT,
        FaultKind.CUT,
        FaultKind.CUT_ONE_WAY,
        FaultKind.HALVES,
        FaultKind.BRIDGE,
        FaultKind.LINK,
        FaultKind.SLOW,
        FaultKind.DISK_SLOW,
    ),
    strikes=(15, 40),
    lengths=(0.05, 1.2),
)

LOST_VOTERS = Profile(
    name="lost-voters",
    text="controllers lose their metadata logs, one at a time, while they are down and others die",
    options=replace(
        PLAIN,
        shape=ClusterShape(brokers=1, settings={"controller.quorum.election.timeout.ms": "400"}),
        workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=2.0, crash_every_s=0.0),
        config_changes_per_second=25.0,
        fault_scope=FaultScope.CONTROLLERS,
        transactions=False,
        fault_seconds=20.0,
    ),
    kinds=(FaultKind.LOST_LOG, FaultKind.LOST_LOG, FaultKind.LOST_LOG, FaultKind.KILL, FaultKind.CUT, FaultKind.POWER),
    strikes=(6, 12),
    lengths=(1.0, 4.0),
)
"""Hunts its own planted bug. It is none of ``PROFILES``, so that it shifts no campaign; the swarm strikes logs too."""

REPLICATION = Profile(
    name="replication",
    text="leaders lose followers, or the controllers, for longer than either waits",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "600",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
            }
        ),
        workload=workload(group_readers=0, sends_per_second=60.0),
        fault_scope=FaultScope.BROKERS,
        transactions=False,
    ),
    kinds=(
        FaultKind.CUT,
        FaultKind.CUT_ONE_WAY,
        FaultKind.BLIND,
        FaultKind.BRIDGE,
        FaultKind.HALVES,
        FaultKind.LINK,
        FaultKind.SLOW,
        FaultKind.RESET,
        FaultKind.KILL_LEADER,
        FaultKind.RESTART,
    ),
)

LONE_LEADERS = replace(
    REPLICATION,
    name="lone-leaders",
    text="as replication, and a leader alone may acknowledge (min.insync.replicas=1)",
    options=replace(
        REPLICATION.options,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "600",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
                "min.insync.replicas": "1",
            }
        ),
    ),
)

DIVERGENCE = Profile(
    name="divergence",
    text="leaders die under load while one follower is ahead of the other",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "10000",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
            }
        ),
        workload=workload(
            senders=3,
            partitions=3,
            assigned_readers=1,
            group_readers=0,
            sends_per_second=100.0,
            in_flight_max=12,
            crash_every_s=0.0,
            producer={"linger.ms": 0, "batch.size": 64},
        ),
        fault_scope=FaultScope.BROKERS,
        config_changes_per_second=2.0,
        fault_seconds=10.0,
    ),
    kinds=(
        FaultKind.KILL_LEADER,
        FaultKind.KILL_LEADER,
        FaultKind.KILL_MANY,
        FaultKind.SLOW,
        FaultKind.SLOW,
        FaultKind.LINK,
        FaultKind.CUT,
        FaultKind.CUT_ONE_WAY,
    ),
    strikes=(10, 24),
    lengths=(0.1, 1.5),
)

CRASHES = Profile(
    name="crashes",
    text="several brokers die at once and come back at different times",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "2000",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
            }
        ),
        workload=workload(group_readers=0, sends_per_second=30.0),
        fault_scope=FaultScope.BROKERS,
        transactions=False,
    ),
    kinds=(FaultKind.KILL, FaultKind.KILL, FaultKind.KILL_MANY, FaultKind.KILL_LEADER, FaultKind.RESTART),
    strikes=(6, 14),
    lengths=(0.3, 4.0),
)

OUTAGES = Profile(
    name="outages",
    text="a machine loses power and stays away: its peers do not see the connections end",
    options=replace(
        PLAIN,
        shape=ClusterShape(settings={"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}),
        workload=workload(group_readers=0, sends_per_second=10.0),
        fault_scope=FaultScope.BROKERS,
        transactions=False,
        synced=True,
        config_changes_per_second=10.0,
        fault_seconds=16.0,
    ),
    kinds=(FaultKind.POWER,),
    strikes=(1, 2),
    lengths=(10.0, 14.0),
)

_LONG_SESSIONS = replace(
    PLAIN,
    shape=ClusterShape(
        settings={
            "replica.lag.time.max.ms": "600",
            "broker.session.timeout.ms": "9000",
            "broker.heartbeat.interval.ms": "1000",
        }
    ),
    workload=workload(group_readers=0, sends_per_second=60.0, crash_every_s=0.0),
    fault_scope=FaultScope.BROKERS,
    transactions=False,
)

REJOINS = Profile(
    name="rejoins",
    text="followers die and come back while their leader cannot reach the controllers",
    options=replace(
        _LONG_SESSIONS,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "500",
                "broker.session.timeout.ms": "9000",
                "broker.session.unreachable.ms": "9000",  # a blind leader must stay the leader,
                "broker.session.grace.ms": "9000",  # when its connections end, too
                "broker.heartbeat.interval.ms": "1000",
            }
        ),
        # A follower that hangs blocks senders; some of them must have written to a partition of another leader.
        workload=workload(senders=6, group_readers=0, sends_per_second=20.0, crash_every_s=0.0),
    ),
    kinds=(FaultKind.BLIND, FaultKind.KILL, FaultKind.RESTART, FaultKind.LINK, FaultKind.SLOW),
    strikes=(0, 1),
    lengths=(0.2, 1.5),
    story=(
        (FaultKind.HANG, 0.0, 1.9),  # a follower leaves the ISR, and stays registered
        (FaultKind.BLIND, 1.05, 4.5),  # its leader cannot report to the controllers that it has caught up
        # and when it can, the follower lives another life
    ),
)

HANDOVERS = Profile(
    name="handovers",
    text="leadership is handed over while the old leader cannot learn of it and has an ISR change under way",
    options=_LONG_SESSIONS,
    kinds=(
        FaultKind.BLIND,
        FaultKind.BLIND,
        FaultKind.PAUSE,
        FaultKind.ELECT,
        FaultKind.ELECT,
        FaultKind.REASSIGN,
        FaultKind.KILL_LEADER,
    ),
    strikes=(12, 24),
    lengths=(0.7, 3.5),
)

CLEANING = Profile(
    name="cleaning",
    text="offsets are committed often into small segments, which are cleaned at once",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "offsets.topic.segment.bytes": "1024",
                "offsets.topic.num.partitions": "1",
                "log.cleaner.backoff.ms": "200",
                "log.cleaner.min.cleanable.ratio": "0.01",
                "log.flush.offset.checkpoint.interval.ms": "300",
            }
        ),
        workload=workload(group_readers=3, assigned_readers=0, sends_per_second=60.0, crash_every_s=5.0),
        fault_scope=FaultScope.BROKERS,
        synced=True,
    ),
    kinds=(FaultKind.KILL, FaultKind.RESTART, FaultKind.CRASH_POINT, FaultKind.LINK),
    strikes=(1, 4),
)

RETENTION = Profile(
    name="retention",
    text="logs grow beyond retention.bytes and lose their oldest segments",
    options=replace(
        PLAIN,
        shape=ClusterShape(settings={"log.retention.check.interval.ms": "1000", "log.segment.bytes": "2048"}),
        workload=workload(
            partitions=2,
            assigned_readers=1,
            group_readers=0,
            sends_per_second=15.0,
            crash_every_s=0.0,
            padding_bytes=100,
        ),
        topic_settings={"retention.bytes": "12000"},
        check=CheckOptions(final_phase=False),
        fault_scope=FaultScope.BROKERS,
        transactions=False,
        fault_seconds=45.0,
        config_changes_per_second=0.5,
    ),
    kinds=(FaultKind.KILL, FaultKind.RESTART, FaultKind.LINK, FaultKind.SLOW),
    strikes=(1, 4),
)

TRANSACTIONS = Profile(
    name="transactions",
    text="transactions, a third of them aborted, while coordinators and leaders come and go",
    options=replace(
        PLAIN,
        workload=workload(senders=1, group_readers=1, sends_per_second=20.0),
        fault_scope=FaultScope.BROKERS,
        transactions=True,
    ),
    kinds=(
        FaultKind.KILL_LEADER,
        FaultKind.RESTART,
        FaultKind.LINK,
        FaultKind.RESET,
        FaultKind.SLOW,
        FaultKind.CUT,
    ),
    strikes=(4, 10),
)

PIPELINES = replace(
    TRANSACTIONS,
    name="pipelines",
    text="many small batches of a transaction are on their way to one partition at once, and some are refused",
    options=replace(
        TRANSACTIONS.options,
        workload=workload(
            partitions=1,
            senders=2,
            group_readers=0,
            sends_per_second=60.0,
            in_flight_max=12,
            crash_every_s=2.0,
            producer={"linger.ms": 0, "batch.size": 64},
        ),
        transactional_producer={"linger.ms": 0, "batch.size": 64},
    ),
    strikes=(8, 16),
    lengths=(0.2, 2.0),
)

IMPATIENT = replace(
    REPLICATION,
    name="impatient",
    text="as replication, with producers that soon give an answer up",
    options=replace(
        REPLICATION.options,
        workload=workload(
            group_readers=0, sends_per_second=60.0, producer={"request.timeout.ms": 1_000, "delivery.timeout.ms": 8_000}
        ),
    ),
)

GROUPS = Profile(
    name="groups",
    text="members of groups crash, fall silent and come back; what they commit decides what is read again",
    options=replace(
        PLAIN,
        workload=workload(
            senders=1,
            assigned_readers=0,
            group_readers=2,
            sends_per_second=20.0,
            crash_every_s=3.0,
            consumer={"session.timeout.ms": 1_000, "heartbeat.interval.ms": 300},
        ),
        transactions=False,
        pipe=True,
        pipe_options=PipeOptions(
            workers=3,
            crash_every_s=3.0,
            consumer={"session.timeout.ms": 1_000, "heartbeat.interval.ms": 300},
        ),
        fault_scope=FaultScope.ALL,
    ),
    kinds=(FaultKind.PAUSE, FaultKind.PAUSE, FaultKind.PAUSE, FaultKind.PAUSE, FaultKind.LINK, FaultKind.KILL_LEADER),
    strikes=(16, 24),
    lengths=(1.2, 2.5),
)

MEMBERS = Profile(
    name="members",
    text="members of a group come, go, fall silent and change their protocol while coordinators move",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={"group.consumer.session.timeout.ms": "800", "group.consumer.heartbeat.interval.ms": "200"}
        ),
        workload=workload(senders=1, assigned_readers=0, group_readers=1, sends_per_second=10.0),
        transactions=False,
        members=True,
        members_options=MembersOptions(
            crash_every_s=4.0, classic={"session.timeout.ms": 1_000, "heartbeat.interval.ms": 300}
        ),
        fault_scope=FaultScope.ALL,
    ),
    kinds=(
        FaultKind.PAUSE,
        FaultKind.PAUSE,
        FaultKind.PAUSE,
        FaultKind.PAUSE,
        FaultKind.LINK,
        FaultKind.KILL_LEADER,
        FaultKind.KILL,
    ),
    strikes=(10, 20),
    lengths=(1.5, 5.0),
)

RECREATED_TOPICS = Profile(
    name="recreated-topics",
    stream="made-again",
    text="a topic is deleted and recreated while log directories fail and brokers are restarted",
    options=replace(
        PLAIN,
        workload=workload(senders=1, assigned_readers=0, group_readers=0, sends_per_second=5.0, crash_every_s=0.0),
        directories=2,
        synced=True,
        topics=True,
        transactions=False,
        fault_scope=FaultScope.BROKERS,
    ),
    kinds=(FaultKind.DIRECTORY, FaultKind.DIRECTORY, FaultKind.RESTART, FaultKind.KILL, FaultKind.KILL_LEADER),
    strikes=(10, 18),
    lengths=(0.3, 2.5),
)

BANK = Profile(
    name="bank",
    text="money is moved in transactions while tellers and clerks pause and are usurped, and coordinators and leaders "
    "come and go",
    options=replace(
        PLAIN,
        workload=workload(senders=1, assigned_readers=1, group_readers=0, sends_per_second=10.0),
        fault_scope=FaultScope.ALL,
        transactions=False,
        bank=True,
        seeks=True,
        variety=True,
    ),
    kinds=(
        FaultKind.PAUSE,
        FaultKind.PAUSE,
        FaultKind.KILL_LEADER,
        FaultKind.RESTART,
        FaultKind.LINK,
        FaultKind.RESET,
        FaultKind.SLOW,
        FaultKind.CUT,
    ),
    strikes=(6, 14),
)

DECISIONS = Profile(
    name="decisions",
    text="coordinators die and hand over while brokers are so slow that decided transactions wait for their markers",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "replica.lag.time.max.ms": "600",
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
            }
        ),
        workload=workload(senders=1, assigned_readers=0, group_readers=1, sends_per_second=5.0),
        fault_scope=FaultScope.BROKERS,
        transactions=True,
        bank=True,
        config_changes_per_second=0.5,
        fault_seconds=25.0,
    ),
    kinds=(FaultKind.KILL_LEADER, FaultKind.KILL_LEADER, FaultKind.RESTART, FaultKind.SLOW),
    strikes=(2, 5),
    lengths=(0.3, 2.0),
    story=(
        (FaultKind.SLOW, 0.0, 3.5),  # a decision is durable, and answered, long before the last marker is
        (FaultKind.SLOW, 0.0, 3.5),
        (FaultKind.SLOW, 0.0, 3.5),
        (FaultKind.KILL_LEADER, 2.0, 2.8),  # the coordinator that loads the decision meanwhile has to carry it out
    ),
)

DISKS = Profile(
    name="disks",
    text="brokers lose page caches, cannot read, and hold what has rotted, one after the other and in small segments",
    options=replace(
        PLAIN,
        shape=ClusterShape(
            settings={
                "broker.session.timeout.ms": "1500",
                "broker.heartbeat.interval.ms": "300",
                "log.segment.bytes": "2048",
                "log.index.interval.bytes": "64",
            }
        ),
        workload=workload(group_readers=1, sends_per_second=30.0),
        fault_scope=FaultScope.BROKERS,
        transactions=True,
        synced=False,
    ),
    kinds=(
        FaultKind.POWER_UNSYNCED,
        FaultKind.POWER_UNSYNCED,
        FaultKind.POWER_UNSYNCED,
        FaultKind.READ_ERROR,
        FaultKind.BIT_ROT,
        FaultKind.RESTART,
        FaultKind.KILL_LEADER,
        FaultKind.LINK,
        FaultKind.LOSS,
    ),
    strikes=(6, 12),
    lengths=(0.5, 3.5),
)

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        ELECTIONS,
        REPLICATION,
        LONE_LEADERS,
        DIVERGENCE,
        CRASHES,
        OUTAGES,
        REJOINS,
        HANDOVERS,
        CLEANING,
        TRANSACTIONS,
        PIPELINES,
        IMPATIENT,
        GROUPS,
        MEMBERS,
        RECREATED_TOPICS,
        DISKS,
        BANK,
        DECISIONS,
    )
}
"""The profiles that a campaign draws from; retention is excluded, because its losses are wanted."""
DRAWN_FIRST = tuple(PROFILES)
LATER = {profile.name: profile for profile in (COMPACTION, SHARING)}
"""Profiles that were added later: they draw from a stream of their own, so that they shift few seeds."""
PROFILES |= LATER | {profile.name: profile for profile, _, _ in SEPARATE}


LEFT_OPEN = (
    "core_first",
    "seeks",
    "variety",
    "transaction_level",
    "security",
    "quotas",
    "streams",
    "administration",
    "racks",
    "short_sequences",
    "timed_syncs",
    "compaction",
    "few_acks",
)
"""Options that campaigns let the seed draw, unless a profile turns them on."""


def drawn_profile(seed: int) -> Profile | None:
    """Returns the profile that a campaign draws for a seed; None for the swarm of everything."""
    for profile, stream, probability in SEPARATE:
        if derive_random(seed, stream).random() < probability:
            return profile
    later = derive_random(seed, "which later profile")
    if later.random() < LATER_PROBABILITY:
        return LATER[later.choice(list(LATER))]
    draw = derive_random(seed, "which profile")
    if draw.random() >= PROFILE_PROBABILITY:
        return None
    return PROFILES[draw.choice(DRAWN_FIRST)]


def drawn_options(seed: int) -> RunOptions:
    """Returns what a campaign runs for a seed: the swarm of everything, or one of the profiles."""
    return options_in_campaign(drawn_profile(seed), seed)


def options_in_campaign(profile: Profile | None, seed: int) -> RunOptions:
    """Returns the run of a seed with a profile, or as the swarm of everything; the seed draws what that leaves open."""
    options = (
        RunOptions(directories=None, topics=None, bank=None, members=None, sharing=None, share_administration=None)
        if profile is None
        else profile.of_seed(seed)
    )
    # A profile's own workload always works.
    left_open = dict.fromkeys(name for name in LEFT_OPEN if getattr(options, name) is not True)
    return replace(options, **left_open)  # type: ignore[arg-type]
