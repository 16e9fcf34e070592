"""The context that a decision gets besides the request and the image, and the result that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from moldau.protocol.errors import ErrorCode
from moldau.protocol.schema import Response
from moldau_quorum.metadata.delegation_tokens import token_secret
from moldau_quorum.metadata.image import RESOURCE_BROKER, MetadataImage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from moldau.runtime.config import Config
    from moldau.runtime.sasl.core.identity import Identity
    from moldau_quorum.metadata.records import MetadataRecord
    from moldau_quorum.quotas.mutations import MutationAllowance

R_co = TypeVar("R_co", bound=Response, covariant=True)

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
LEAST_MIN_INSYNC_REPLICAS: Final = 1
"""The value that controllers use when none is configured; no broker's file can set a lower one."""
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"

ELR_FEATURE: Final = "eligible.leader.replicas.version"

PRODUCER_ID_BLOCK: Final = 1_000
"""Number of producer ids in the block that one request allocates (KIP-730)."""


SLICE_RECORDS: Final = 250
"""Number of records in one slice of a large decision: some milliseconds of work to decide, encode and replay."""
SLICE_PARTITIONS: Final = 5_000
"""Number of partitions that one slice of a large decision examines."""


@dataclass(slots=True)
class DecisionView:
    """The state on which the slices of a large decision are decided.

    The shell replays each slice on its projection and sets ``image`` to the outcome before it asks for the next slice.
    """

    image: MetadataImage
    context: Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[R_co]):
    """A decision. It has no effect until its records are committed.

    A decision that may concern many partitions is a sequence of slices. Each slice becomes a command of its own and
    leaves a valid state, so that a controller which is deposed between two slices does no harm. The shell lets other
    tasks run between slices, but decides nothing else. ``response`` may be complete only after the last slice.
    """

    records: tuple[MetadataRecord, ...] = ()
    """Records of the first slice."""
    response: R_co
    steps: Callable[[DecisionView], Iterator[list[MetadataRecord]]] | None = None
    """Returns the slices that follow ``records``. A slice may be empty."""

    def slices(self, view: DecisionView) -> Iterator[list[MetadataRecord]]:
        """Yields the records of each slice; ``view.image`` must be current whenever the iteration goes on."""
        if self.records:
            yield list(self.records)
        if self.steps is not None:
            yield from self.steps(view)


class RefusedError(Exception):
    """The controller refuses a part of a request; carries the error code and message of the response."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Takes the error code and a message that names the wrong value and the accepted ones."""
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controller's static configuration.

    ``broker_config`` is the whole configuration; the other fields are the values that decisions read often.
    """

    broker_config: Config
    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int | None = None
    """None if the controller's file does not set it. Then the brokers' files apply until a cluster-wide default is
    set."""
    unclean_leader_election_enable: bool = False
    delete_topic_enable: bool = True
    broker_session_timeout_ms: float = 9_000.0
    broker_session_grace_ms: float = 250.0
    broker_session_unreachable_ms: float = 3_000.0
    """How long a silent broker whose host answers no connection stays unfenced; 0: for the whole session timeout."""
    broker_takeover_ms: float = 5_000.0
    """How long a new controller waits for the first heartbeat of a broker before it fences the broker. A broker learns
    of a new controller when its connection breaks, from the metadata that it follows, or, if the old controller's
    machine is silent, after a third of the session timeout."""
    leader_imbalance_check_interval_ms: float = 300_000.0
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    delegation_token_secret: bytes | None = field(default=None, repr=False)
    """None: there are no delegation tokens."""
    delegation_token_max_lifetime_ms: int = 604_800_000
    delegation_token_expiry_time_ms: int = 86_400_000
    delegation_token_expiry_check_interval_ms: int = 3_600_000
    partitions_per_request_max: int = 10_000
    """Number of new partitions that one request may ask for, as in Kafka."""

    @staticmethod
    def of(config: Config) -> Settings:
        """Reads the settings from a node's configuration."""
        return Settings(
            broker_config=config,
            num_partitions=config.get_int("num.partitions"),
            default_replication_factor=config.get_int("default.replication.factor"),
            min_insync_replicas=config.get_int(MIN_INSYNC_REPLICAS) if config.is_set(MIN_INSYNC_REPLICAS) else None,
            unclean_leader_election_enable=config.get_bool("unclean.leader.election.enable"),
            delete_topic_enable=config.get_bool("delete.topic.enable"),
            broker_session_timeout_ms=config.get_int("broker.session.timeout.ms"),
            broker_session_grace_ms=config.get_int("broker.session.grace.ms"),
            broker_session_unreachable_ms=config.get_int("broker.session.unreachable.ms"),
            broker_takeover_ms=min(
                config.get_int("broker.session.timeout.ms"),
                max(1_000, config.get_int("broker.session.timeout.ms") / 3)
                + config.get_int("broker.heartbeat.interval.ms"),
            ),
            leader_imbalance_check_interval_ms=config.get_int("leader.imbalance.check.interval.seconds") * 1000.0,
            auto_leader_rebalance_enable=config.get_bool("auto.leader.rebalance.enable"),
            delegation_token_secret=token_secret(config),
            delegation_token_max_lifetime_ms=config.get_int("delegation.token.max.lifetime.ms"),
            delegation_token_expiry_time_ms=config.get_int("delegation.token.expiry.time.ms"),
            delegation_token_expiry_check_interval_ms=config.get_int("delegation.token.expiry.check.interval.ms"),
            leader_imbalance_per_broker_percentage=config.get_int("leader.imbalance.per.broker.percentage"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The settings, the time and the drawn values of one decision."""

    settings: Settings
    now_ms: float
    """Monotonic."""
    new_uuid: Callable[[], UUID]
    """Draws a random UUID; never the reserved zero and one."""
    draw_below: Callable[[int], int]
    """Draws an integer from 0 to n-1."""
    wall_ms: int = 0
    """Milliseconds since the Unix epoch."""
    requester: Identity | None = None
    """The client that sent the request, where the decision depends on it."""
    usable: Callable[[int], bool] = field(default=lambda broker_id: True)
    """Soft state beyond the image: returns False for a broker whose session is about to end."""
    controller_features: Mapping[int, Mapping[str, tuple[int, int]] | None] = field(default_factory=dict)
    """Soft state: the lowest and highest feature levels that each other voter supports, None if a voter did not report
    them. The shell asks for them when a request changes levels."""
    is_forwarded: bool = False
    """Whether a broker forwarded the request, and so checked what only brokers know."""
    mutations: MutationAllowance | None = None
    """Soft state: how many partitions the sender may still create or delete; None if no quota limits it."""

    def charge_mutations(self, partitions: int) -> None:
        """Charges a change of partitions to the quota of its sender (KIP-599).

        Raises:
            RefusedError: THROTTLING_QUOTA_EXCEEDED.
        """
        if self.mutations is not None and not self.mutations.charge(partitions, self.now_ms):
            raise RefusedError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"controller_mutation_rate is used up; try again in {self.mutations.throttle_ms(self.now_ms)} ms",
            )


def effective_config(image: MetadataImage, context: Context, topic_name: str, key: str) -> str | None:
    """Returns a topic's own value, else the brokers' dynamic default; None if neither is set."""
    own = image.topic_config(topic_name).get(key)
    return own if own is not None else image.config(RESOURCE_BROKER, "").get(key)


def min_insync_replicas(image: MetadataImage, context: Context, topic_name: str) -> int:
    """Returns the lowest ``min.insync.replicas`` that a leader of the topic may apply.

    This value decides whether a replica that leaves the ISR becomes eligible, so it must not be above the value that
    any leader applies.
    """
    value = effective_config(image, context, topic_name, MIN_INSYNC_REPLICAS)
    return LEAST_MIN_INSYNC_REPLICAS if value is None else int(value)


def min_insync_command(value: int) -> str:
    """Returns the command that sets ``min.insync.replicas`` for all brokers, for messages to operators."""
    return f"moldau configs alter --entity-type brokers --entity-default --add-config {MIN_INSYNC_REPLICAS}={value}"


def elr_enabled(image: MetadataImage) -> bool:
    """Returns whether the feature ``eligible.leader.replicas.version`` is on (KIP-966)."""
    return image.features.get(ELR_FEATURE, 0) >= 1


def unclean_election_enabled(image: MetadataImage, context: Context, topic_name: str) -> bool:
    """Returns the topic's effective ``unclean.leader.election.enable``."""
    value = effective_config(image, context, topic_name, UNCLEAN_LEADER_ELECTION)
    return context.settings.unclean_leader_election_enable if value is None else value.strip().lower() == "true"
