"""Defines the options and the result of a simulated run. The seed draws options that are left open."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.coverage.coverage import Coverage
from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.figures import QUANTILES, RunFigures
from moldau_jepsen.simulation.inject.faults import NEEDS_DIRECTORIES, NEEDS_STORE, FaultScope, plan_of_seed
from moldau_jepsen.workloads.acknowledgements.few_acks import FewAcksOptions
from moldau_jepsen.workloads.administered import AdministeredOptions
from moldau_jepsen.workloads.bank import BankOptions
from moldau_jepsen.workloads.compacted import CompactedOptions
from moldau_jepsen.workloads.members import MembersOptions
from moldau_jepsen.workloads.pipe import PipeOptions
from moldau_jepsen.workloads.queue import QueueOptions
from moldau_jepsen.workloads.share import ShareOptions
from moldau_jepsen.workloads.share_administration.workload import ShareAdministrationOptions
from moldau_jepsen.workloads.streams.workload import StreamsOptions
from moldau_jepsen.workloads.tiered.options import TieredOptions
from moldau_jepsen.workloads.transactions import TransactionOptions
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau_jepsen.checkers import Anomaly
    from moldau_jepsen.history import Operation
    from moldau_jepsen.reports.over_time import RunSeries

SEVERAL_DIRECTORIES_PROBABILITY = 0.3
LEVEL_1_PROBABILITY = 0.2
SECURITY_PROBABILITY = 0.2
QUOTAS_PROBABILITY = 0.2
COMPACTION_PROBABILITY = 0.25
SHARING_PROBABILITY = 0.2
SHARE_ADMINISTRATION_PROBABILITY = 0.1
STREAMS_PROBABILITY = 0.15
FEW_ACKS_PROBABILITY = 0.15
DELETES_SHARE = 0.3
ADMINISTRATION_PROBABILITY = 0.15
RACKS_PROBABILITY = 0.2
SHORT_SEQUENCES_PROBABILITY = 0.15
TIMED_SYNCS_PROBABILITY = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run. Times are virtual seconds."""

    shape: ClusterShape = field(default_factory=ClusterShape)
    workload: QueueOptions = field(
        default_factory=lambda: QueueOptions(
            partitions=3,
            senders=2,
            group_readers=2,
            sends_per_second=40.0,
            crash_every_s=10.0,
            consumer={"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500},
        )
    )
    transactions: bool | None = None
    """Whether a transactional client works beside the others; drawn if None."""
    transaction_options: TransactionOptions = field(default_factory=TransactionOptions)
    """How that client works; its topic, partitions and producer are set from the other options."""
    transactional_producer: Mapping[str, object] = field(default_factory=dict)
    """Configuration of its producer."""
    pipe: bool | None = None
    """Whether an exactly-once pipe works beside the others; drawn if None."""
    pipe_options: PipeOptions = field(
        default_factory=lambda: PipeOptions(
            records_per_second=12.0, consumer={"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500}
        )
    )
    topics: bool | None = False
    """Whether a client deletes and creates a topic beside the others; drawn if None, as campaigns have it."""
    bank: bool | None = False
    """Whether money is moved between accounts beside the others; drawn if None, as campaigns have it."""
    bank_options: BankOptions = field(default_factory=BankOptions)
    members: bool | None = False
    """Whether the members of a group change, and their protocols; drawn if None, as campaigns have it."""
    members_options: MembersOptions = field(default_factory=MembersOptions)
    seeks: bool | None = False
    """Whether readers seek now and then; drawn if None, as campaigns have it."""
    variety: bool | None = False
    """Whether records have keys and headers of all kinds; drawn if None, as campaigns have it."""
    core_first: bool | None = False
    """Whether a core of the nodes must get on by itself before the rest is healed; drawn if None, as campaigns have
    it."""
    transaction_level: int | None = 2
    """The cluster's level of ``transaction.version``, 1 or 2; drawn if None, as campaigns have it."""
    security: bool | None = False
    """Whether nodes have identities, clients need rights, and those change beside the others; drawn if None, as
    campaigns have it."""
    quotas: bool | None = False
    """Whether quotas of clients that use too much change beside the others; drawn if None, as campaigns have it."""
    compaction: bool | None = False
    """Whether a compacted topic is written, cleaned and read beside the others; drawn if None, as campaigns have
    it."""
    compacted_options: CompactedOptions | None = None
    """Options of that workload; drawn if None."""
    sharing: bool | None = False
    """Whether a share group works beside the others; drawn if None, as campaigns have it."""
    share_options: ShareOptions = field(
        default_factory=lambda: ShareOptions(
            slots=2, sends_per_second=8.0, life_s=5.0, lock_ms=3_000, session_ms=2_000, request_timeout_ms=1_000
        )
    )
    streams: bool | None = False
    """Whether a streams group works beside the others; drawn if None, as campaigns have it."""
    streams_options: StreamsOptions = field(default_factory=lambda: StreamsOptions(slots=2, life_s=6.0))
    administration: bool | None = False
    """Whether the offsets of a group are reset and deleted beside the others; drawn if None, as campaigns have it."""
    share_administration: bool | None = False
    """Whether an administrator changes share groups beside the others; drawn if None, as campaigns have it."""
    share_administration_options: ShareAdministrationOptions = field(default_factory=ShareAdministrationOptions)
    few_acks: bool | None = False
    """Whether producers with acks=0 and acks=1 work beside the others; drawn if None, as campaigns have it."""
    few_acks_options: FewAcksOptions = field(default_factory=FewAcksOptions)
    tiered: bool = False
    """Whether the cluster has an object store, and tiered topics are written, read and deleted beside the others."""
    tiered_options: TieredOptions = field(default_factory=TieredOptions)
    racks: bool | None = False
    """Whether each broker is a rack, and readers read from a follower and pause partitions; drawn if None, as campaigns
    have it."""
    short_sequences: bool | None = False
    """Whether sequence numbers of producers begin again after 127; drawn if None, as campaigns have it."""
    timed_syncs: bool | None = False
    """Whether logs are synced once a second (``log.flush.interval.ms``), so that syncs run that nothing waits for;
    drawn if None, as campaigns have it."""
    fault_seconds: float = 15.0
    forming_seconds: float = 60.0
    healing_seconds: float = 90.0
    reading_seconds: float = 60.0
    kinds: tuple[FaultKind, ...] = SIMULATED_KINDS
    faults: tuple[PlannedFault, ...] | None = None
    """Instead of the plan that the seed gives: for shrinking and for regressions."""
    synced: bool | None = None
    """Whether records are synced before they are acknowledged; drawn if None."""
    directories: int | None = 1
    """Log directories of each broker; drawn if None, as campaigns have it."""
    fault_scope: FaultScope | None = None
    """Which nodes faults strike; drawn if None."""
    config_changes_per_second: float = 5.0
    """Changes of the topic's configuration, one after the other: they keep the quorum busy."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    check: CheckOptions = field(default_factory=CheckOptions)
    write_seconds_max: float | None = None
    """Longest time that a write of the queue may take, for runs whose faults delay none for longer; None: any."""
    by_history: bool = False
    """Only what clients saw convicts: rules that are judged after each step do not end the run, nor does a cluster that
    serves no client. For negative controls, which put the checkers on trial."""
    only: frozenset[str] = frozenset()
    """The rules and checkers that may convict, by name; all if empty. It puts a single one on trial: whatever else goes
    wrong, down to a node that dies of a broken invariant, is passed over and the run goes on."""

    def may_convict(self, name: str) -> bool:
        """Returns whether a rule or checker is asked at all."""
        return not self.only or name in self.only


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one run."""

    seed: int
    trace_hash: str
    violations: tuple[str, ...]
    """Empty for a clean run."""
    timeline: tuple[str, ...]
    """Faults, elections and warnings, one line each, and the last events before the end of a failed run."""
    virtual_seconds: float
    wall_seconds: float
    steps: int
    events: int
    faults: int
    """Those that had a target."""
    acknowledged: int
    polled: int
    faults_by_kind: Mapping[str, int] = field(default_factory=dict)
    planned_by_kind: Mapping[str, int] = field(default_factory=dict)
    """Those that had their time: more than those that took effect, where no node could or may be affected."""
    outside: int | None = None
    """How many nodes stayed outside of the core that was healed first; None if there was no such core."""
    figures: RunFigures = field(default_factory=RunFigures)
    coverage: Coverage = field(default_factory=Coverage)
    anomalies: tuple[Anomaly, ...] = ()
    """The checkers' findings in the history; ``violations`` holds their text."""
    history: tuple[Operation, ...] = ()
    """Of a failed run: all that the clients did."""
    plan: tuple[PlannedFault, ...] = ()
    draws: Mapping[str, object] = field(default_factory=dict)
    """The values that the seed drew for the fields of ``RunOptions`` that can be set."""
    series: RunSeries | None = None
    """The run over time; None if it was not looked at."""
    mutant: str = ""
    """The planted bug, if there was one."""
    kind: str = ""
    """The kind of run that was chosen for it; empty if the seed drew it."""
    schedule: str = ""
    """The file with the run's faults, where they are not those that the seed draws."""

    @property
    def passed(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations

    @property
    def replay_command(self) -> str:
        """Returns the command that repeats the run."""
        if self.schedule:
            return f"moldau sim replay --schedule {self.schedule}"
        chosen = (("--mutant", self.mutant), ("--kind", self.kind))
        return " ".join([f"moldau sim run --seed {self.seed}", *(f"{name} {given}" for name, given in chosen if given)])

    def to_json(self) -> dict[str, object]:
        """Returns the result as JSON values, without history and coverage."""
        return {
            "seed": self.seed,
            "kind": self.kind,
            "trace_hash": self.trace_hash,
            "passed": self.passed,
            "violations": list(self.violations),
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "steps": self.steps,
            "events": self.events,
            "faults": self.faults,
            "faults_by_kind": dict(self.faults_by_kind),
            "planned_by_kind": dict(self.planned_by_kind),
            "outside": self.outside,
            "acknowledged": self.acknowledged,
            "polled": self.polled,
            "operations": dict(self.figures.operations),
            "latency_ms": {name: self.figures.latency.quantile_ms(share) for name, share in QUANTILES.items()},
            "realtime_lag_ms": {name: self.figures.lag.quantile_ms(share) for name, share in QUANTILES.items()},
            "consumed": [asdict(group) for group in self.figures.groups],
            "acknowledged_unread_by_groups": self.figures.unread,
            "unavailable_s": list(self.figures.dark_s),
            "replay": self.replay_command,
            "timeline": list(self.timeline),
        }


def planned_faults(seed: int, options: RunOptions) -> list[PlannedFault]:
    """Returns the faults that a seed draws."""
    unfit: tuple[FaultKind, ...] = () if drawn_directories(seed, options) > 1 else NEEDS_DIRECTORIES
    unfit += () if options.tiered else NEEDS_STORE
    kinds = [kind for kind in options.kinds if kind not in unfit]
    return plan_of_seed(seed, options.fault_seconds, kinds or options.kinds)


def plan_within(seed: int, options: RunOptions) -> list[PlannedFault]:
    """Returns the faults of a run that begin within its time for faults.

    Those of a plan for a longer run would disturb the healing and the final reads.
    """
    planned = planned_faults(seed, options) if options.faults is None else options.faults
    return [fault for fault in planned if fault.begin < options.fault_seconds]


def _happens(given: bool | None, seed: int, stream: str, probability: float) -> bool:
    """Returns the option's value; drawn if that is None, of a stream of its own, so that it shifts no other draw."""
    return derive_random(seed, stream).random() < probability if given is None else given


def drawn_directories(seed: int, options: RunOptions) -> int:
    """Returns the number of log directories of each broker; of a stream of its own, so that it shifts no other draw."""
    if options.directories is not None:
        return options.directories
    return 2 if derive_random(seed, "log directories").random() < SEVERAL_DIRECTORIES_PROBABILITY else 1


def drawn_transaction_level(seed: int, options: RunOptions) -> int:
    """Returns the level of ``transaction.version``; of a stream of its own, so that it shifts no other draw."""
    if options.transaction_level is not None:
        return options.transaction_level
    return 1 if derive_random(seed, "transaction level").random() < LEVEL_1_PROBABILITY else 2


def drawn_security(seed: int, options: RunOptions) -> bool:
    """Returns whether the cluster is secured."""
    return _happens(options.security, seed, "security", SECURITY_PROBABILITY)


def drawn_quotas(seed: int, options: RunOptions) -> bool:
    """Returns whether clients have quotas."""
    return _happens(options.quotas, seed, "quotas", QUOTAS_PROBABILITY)


def drawn_compaction(seed: int, options: RunOptions) -> CompactedOptions | None:
    """Returns the options of the compacted topic, None without one; of a stream of its own, as in ``_happens``."""
    draw = derive_random(seed, "compaction")
    works = draw.random() < COMPACTION_PROBABILITY
    works = works if options.compaction is None else options.compaction
    drawn = CompactedOptions(deletes=draw.random() < DELETES_SHARE, segment_bytes=draw.choice((1_024, 2_048)))
    return (options.compacted_options or drawn) if works else None


def drawn_sharing(seed: int, options: RunOptions) -> bool:
    """Returns whether a share group works."""
    return _happens(options.sharing, seed, "sharing", SHARING_PROBABILITY)


def drawn_share_administration(seed: int, options: RunOptions) -> bool:
    """Returns whether share groups are administered."""
    return _happens(options.share_administration, seed, "share administration", SHARE_ADMINISTRATION_PROBABILITY)


def drawn_streams(seed: int, options: RunOptions) -> bool:
    """Returns whether a streams group works."""
    return _happens(options.streams, seed, "streams group", STREAMS_PROBABILITY)


def drawn_administration(seed: int, options: RunOptions) -> AdministeredOptions | None:
    """Returns the options of the administered group, None without one; of a stream of its own, as in ``_happens``."""
    draw = derive_random(seed, "administration")
    works = draw.random() < ADMINISTRATION_PROBABILITY
    works = works if options.administration is None else options.administration
    return AdministeredOptions(protocol=draw.choice(("classic", "consumer"))) if works else None


def drawn_few_acks(seed: int, options: RunOptions) -> bool:
    """Returns whether producers ask for few acknowledgements."""
    return _happens(options.few_acks, seed, "few acks", FEW_ACKS_PROBABILITY)


def drawn_racks(seed: int, options: RunOptions) -> bool:
    """Returns whether brokers have racks."""
    return _happens(options.racks, seed, "racks", RACKS_PROBABILITY)


def drawn_short_sequences(seed: int, options: RunOptions) -> bool:
    """Returns whether sequence numbers end early."""
    return _happens(options.short_sequences, seed, "sequences", SHORT_SEQUENCES_PROBABILITY)


def drawn_timed_syncs(seed: int, options: RunOptions) -> bool:
    """Returns whether logs are synced by time."""
    return _happens(options.timed_syncs, seed, "timed syncs", TIMED_SYNCS_PROBABILITY)


def draw_settings(draw: random.Random) -> dict[str, str]:
    """Returns the times of a cluster: short ones let a run of some seconds see what takes minutes otherwise."""
    session_ms = draw.choice((1_500, 3_000, 9_000))
    return {
        "replica.lag.time.max.ms": str(draw.choice((600, 2_000, 10_000))),
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // draw.choice((3, 5))),
        "controller.quorum.election.timeout.ms": str(draw.choice((400, 1_000))),
        "replica.fetch.wait.max.ms": str(draw.choice((100, 500))),
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.session.timeout.ms": "500",
        "group.consumer.session.timeout.ms": "2000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.initial.rebalance.delay.ms": str(draw.choice((0, 500))),
        "log.segment.bytes": str(draw.choice((1 << 30, 16_384, 2_048))),
        "log.index.interval.bytes": str(draw.choice((4_096, 64))),
    }


def draw_network(seed: int) -> NetworkProfile:
    """Returns the network of a seed: near or far, smooth or rough."""
    draw = derive_random(seed, "network profile")
    return NetworkProfile(
        delay_min=draw.choice((0.000_05, 0.000_2, 0.002)),
        delay_jitter=draw.choice((0.000_1, 0.000_5, 0.005)),
        spike_probability=draw.choice((0.0, 0.001, 0.01)),
        fragment_probability=draw.choice((0.0, 0.05, 0.3)),
        window_bytes=draw.choice((8 * 1024, 64 * 1024, 256 * 1024)),
    )
