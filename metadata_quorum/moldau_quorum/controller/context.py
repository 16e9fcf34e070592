"""What a decision needs besides the request and the image, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from moldau.protocol.schema import Response
from moldau_quorum.image import RESOURCE_BROKER, MetadataImage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from moldau.protocol.errors import ErrorCode
    from moldau.runtime.config import Config
    from moldau_quorum.records import MetadataRecord

R_co = TypeVar("R_co", bound=Response, covariant=True)

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"

ELR_FEATURE: Final = "eligible.leader.replicas.version"

PRODUCER_ID_BLOCK: Final = 1_000
"""Producer ids that a broker gets at a time (KIP-730)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[R_co]):
    """A decision: nothing has happened until ``records`` are committed."""

    records: tuple[MetadataRecord, ...] = ()
    response: R_co


class RefusedError(Exception):
    """A part of a request is refused; carries the code and the text of the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """``message`` names what was wrong and what would be right."""
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controller's static configuration. ``broker_config`` is all of it; the fields are what decisions look at
    often."""

    broker_config: Config
    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    broker_session_timeout_ms: float = 9_000.0
    broker_session_grace_ms: float = 250.0
    broker_takeover_ms: float = 5_000.0
    """How long a new controller waits for the first heartbeat of a broker before it fences it. A broker hears of a new
    controller by its broken connection, by the metadata it follows, or, when the old one's machine went silent, after a
    third of the session timeout."""
    leader_imbalance_check_interval_ms: float = 300_000.0
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    partitions_per_topic_max: int = 40_000
    partitions_per_request_max: int = 40_000
    """New partitions that one request may ask for."""

    @staticmethod
    def of(config: Config) -> Settings:
        """Takes the settings from a node's configuration."""
        return Settings(
            broker_config=config,
            num_partitions=config.get_int("num.partitions"),
            default_replication_factor=config.get_int("default.replication.factor"),
            min_insync_replicas=config.get_int("min.insync.replicas"),
            unclean_leader_election_enable=config.get_bool("unclean.leader.election.enable"),
            broker_session_timeout_ms=config.get_int("broker.session.timeout.ms"),
            broker_session_grace_ms=config.get_int("broker.session.grace.ms"),
            broker_takeover_ms=min(
                config.get_int("broker.session.timeout.ms"),
                max(1_000, config.get_int("broker.session.timeout.ms") / 3)
                + config.get_int("broker.heartbeat.interval.ms"),
            ),
            leader_imbalance_check_interval_ms=config.get_int("leader.imbalance.check.interval.seconds") * 1000.0,
            auto_leader_rebalance_enable=config.get_bool("auto.leader.rebalance.enable"),
            leader_imbalance_per_broker_percentage=config.get_int("leader.imbalance.per.broker.percentage"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, time and drawn values of one decision."""

    settings: Settings
    now_ms: float
    """Monotonic."""
    new_uuid: Callable[[], UUID]
    """Draws a random UUID; never the reserved zero and one."""
    draw_below: Callable[[int], int]
    """Draws an integer from 0 to n-1."""
    usable: Callable[[int], bool] = field(default=lambda broker_id: True)
    """Soft knowledge beyond the image: False for a broker whose session is about to end."""
    controller_features: Mapping[int, Mapping[str, tuple[int, int]] | None] = field(default_factory=dict)
    """Soft knowledge: lowest and highest levels of features that each other voter supports, None if it did not say.
    Asked for when levels are to be changed."""


def effective_config(image: MetadataImage, context: Context, topic_name: str, key: str) -> str | None:
    """A topic's value: its own, or that of the brokers' dynamic default; None when neither is set."""
    own = image.topic_config(topic_name).get(key)
    return own if own is not None else image.config(RESOURCE_BROKER, "").get(key)


def min_insync_replicas(image: MetadataImage, context: Context, topic_name: str) -> int:
    """The topic's ``min.insync.replicas`` as it is in force."""
    value = effective_config(image, context, topic_name, MIN_INSYNC_REPLICAS)
    return context.settings.min_insync_replicas if value is None else int(value)


def elr_enabled(image: MetadataImage) -> bool:
    """Whether eligible leader replicas are kept (KIP-966): feature ``eligible.leader.replicas.version``."""
    return image.features.get(ELR_FEATURE, 0) >= 1


def unclean_election_enabled(image: MetadataImage, context: Context, topic_name: str) -> bool:
    """The topic's ``unclean.leader.election.enable`` as it is in force."""
    value = effective_config(image, context, topic_name, UNCLEAN_LEADER_ELECTION)
    return context.settings.unclean_leader_election_enable if value is None else value.strip().lower() == "true"
