"""Keys of groups (KIP-848, KIP-932, KIP-1071) and of subscriptions to clients' metrics (KIP-714).

The brokers' keys bound the values that groups may have of their own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import Synonym
from moldau.runtime.config.declare import HOUR_MS, MINUTE_MS, SECOND_MS, boolean, integer, names, string
from moldau.values import is_reset

if TYPE_CHECKING:
    from moldau.runtime.config.declaration import Config, ConfigKey

METRICS_INTERVAL: Final = "interval.ms"
METRICS_MATCH: Final = "match"
MATCH_FIELDS: Final = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
BOUNDED_KEYS: Final = (
    *(
        f"{kind}.{key}"
        for kind in ("consumer", "share", "streams")
        for key in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
    ),
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)
"""Keys of groups that brokers bound with keys of their own, ``group.KIND.min.KEY`` and ``group.KIND.max.KEY``."""
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
_QUEUE_NAME: Final = re.compile(r"(?!__|\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_NO_WARMUP: Final = "tasks move to another member without a warm-up copy"
NOT_SERVED: Final = {
    "streams.num.warmup.replicas": _NO_WARMUP,
    "streams.acceptable.recovery.lag": _NO_WARMUP,
    "streams.assignor.name": "the only assignor is sticky",
    "streams.rack.aware.assignment.tags": "standby copies are placed by the load of processes, not by tags",
}
"""Keys of Kafka's groups that are refused, with the reason."""


def _broker(name: str) -> tuple[Synonym, ...]:
    return (Synonym(name=f"group.{name}"),)


def _group_integer(
    name: str, default: int, bounds: tuple[int, int | None], doc: str, *, has_effect: bool = False
) -> ConfigKey:
    return integer(
        name=name,
        default=default,
        group=name.partition(".")[0].capitalize() + " groups",
        minimum=bounds[0],
        maximum=bounds[1],
        synonyms=_broker(name),
        has_effect=has_effect,
        doc=doc,
    )


def _group_boolean(name: str, doc: str) -> ConfigKey:
    group = name.partition(".")[0].capitalize() + " groups"
    return boolean(name=name, default=True, group=group, synonyms=_broker(name), has_effect=False, doc=doc)


def _common(kind: str) -> tuple[ConfigKey, ...]:
    """Returns the keys that consumer, share and streams groups have alike."""
    # The range of timeouts is a matter of the brokers' keys.
    return (
        _group_integer(
            f"{kind}.session.timeout.ms",
            45 * SECOND_MS,
            (1, None),
            "Silence after which a member counts as gone.",
            has_effect=True,
        ),
        _group_integer(
            f"{kind}.heartbeat.interval.ms",
            5 * SECOND_MS,
            (1, None),
            "Time between heartbeats of a member.",
            has_effect=True,
        ),
        _group_integer(
            f"{kind}.assignment.interval.ms",
            SECOND_MS,
            (0, None),
            "Shortest time between two assignments.",
            has_effect=True,
        ),
        _group_boolean(
            f"{kind}.assignor.offload.enable",
            "Accepted, without effect: assignments are computed by the event loop of the coordinator's process.",
        ),
    )


GROUP_CONFIG_KEYS = (
    *_common("consumer"),
    *_common("share"),
    _group_integer(
        "share.record.lock.duration.ms",
        30 * SECOND_MS,
        (SECOND_MS, None),
        "How long a record is kept for the member that acquired it.",
        has_effect=True,
    ),
    _group_integer(
        "share.delivery.count.limit",
        5,
        (2, None),
        "Deliveries of a record before it is given up.",
        has_effect=True,
    ),
    _group_integer(
        "share.partition.max.record.locks",
        2000,
        (100, None),
        "Records of a partition that are acquired at a time.",
        has_effect=True,
    ),
    string(
        name="share.auto.offset.reset",
        default="latest",
        group="Share groups",
        doc="Where a new share group begins: earliest, latest, or by_duration:<ISO 8601 duration>.",
    ),
    string(
        name="share.isolation.level",
        default="read_uncommitted",
        group="Share groups",
        choices=("read_committed", "read_uncommitted"),
        doc="Whether records of open and aborted transactions are delivered.",
    ),
    boolean(
        name="share.renew.acknowledge.enable",
        default=True,
        group="Share groups",
        doc="Whether members may prolong the lock of a record.",
    ),
    string(
        name=DEAD_LETTER_TOPIC,
        default="",
        group="Share groups",
        doc="Topic for the dead letters of records that were rejected or delivered too often; empty for none. The "
        "topic needs errors.deadletterqueue.group.enable, and the cluster share.version 2.",
    ),
    boolean(
        name="errors.deadletterqueue.copy.record.enable",
        default=False,
        group="Share groups",
        doc="Whether a dead letter has the key, the value and the headers of its record, beside the headers that name "
        "the record.",
    ),
    *_common("streams"),
    _group_integer(
        "streams.num.standby.replicas", 0, (0, None), "Standby copies of each task's state.", has_effect=True
    ),
    _group_integer(
        "streams.initial.rebalance.delay.ms",
        3 * SECOND_MS,
        (0, None),
        "Wait of a new group for further members.",
        has_effect=True,
    ),
    _group_integer(
        "streams.task.offset.interval.ms",
        MINUTE_MS,
        (1, None),
        "Time between reports of how far tasks' state has been restored, as answers tell it.",
        has_effect=True,
    ),
)

CLIENT_METRICS_KEYS = (
    names(
        name="metrics",
        default=(),
        group="Client metrics",
        doc="Beginnings of the names of the metrics that clients are to send; * for all.",
    ),
    integer(
        name=METRICS_INTERVAL,
        default=5 * MINUTE_MS,
        group="Client metrics",
        minimum=100,
        maximum=HOUR_MS,
        doc="Time between two sendings.",
    ),
    names(
        name=METRICS_MATCH,
        default=(),
        group="Client metrics",
        doc=f"Which clients are meant: FIELD=REGULAR EXPRESSION of {', '.join(MATCH_FIELDS)}; empty for all.",
    ),
)


def check_group(config: Config) -> list[str]:
    """Returns the settings of a group that contradict each other or have the wrong form."""
    problems: list[str] = []
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if config.get_int(session) <= config.get_int(heartbeat):
            problems.append(
                f"{session} = {config.get_int(session)}: must be above {heartbeat} = {config.get_int(heartbeat)}"
            )
    queue = config.get_str(DEAD_LETTER_TOPIC)
    if queue and not _QUEUE_NAME.fullmatch(queue):
        problems.append(f"{DEAD_LETTER_TOPIC} = {queue!r}: must be empty or a topic name that does not begin with __")
    reset = config.get_str("share.auto.offset.reset")
    if not is_reset(reset, "earliest", "latest"):
        problems.append(
            f"share.auto.offset.reset = {reset!r}: must be earliest, latest or by_duration:<ISO 8601 duration>"
        )
    return problems


def check_bounds(config: Config, broker: Config) -> list[str]:
    """Returns the settings of a group that the brokers' ``group.`` keys do not allow."""
    problems: list[str] = []
    for name in BOUNDED_KEYS:
        kind, _, key = name.partition(".")
        value = config.get_int(name)
        low, high = broker.get_int(f"group.{kind}.min.{key}"), broker.get_int(f"group.{kind}.max.{key}")
        if config.is_set(name) and not low <= value <= high:
            problems.append(
                f"{name} = {value}: must be from {low} to {high} (group.{kind}.min.{key} and group.{kind}.max.{key})"
            )
    replicas, interval = "streams.num.standby.replicas", "streams.task.offset.interval.ms"
    most, least = broker.get_int("group.streams.max.standby.replicas"), broker.get_int(f"group.{_least(interval)}")
    if config.is_set(replicas) and config.get_int(replicas) > most:
        problems.append(
            f"{replicas} = {config.get_int(replicas)}: must be at most {most} (group.streams.max.standby.replicas)"
        )
    if config.is_set(interval) and config.get_int(interval) < least:
        problems.append(f"{interval} = {config.get_int(interval)}: must be at least {least} (group.{_least(interval)})")
    return problems


def check_group_defaults(broker: Config) -> list[str]:
    """Returns the values of groups without settings of their own that the brokers' bounds do not allow, as in Kafka."""
    problems: list[str] = []
    for name in BOUNDED_KEYS:
        kind, _, key = name.partition(".")
        least, most = f"group.{kind}.min.{key}", f"group.{kind}.max.{key}"
        low, high, value = broker.get_int(least), broker.get_int(most), broker.get_int(f"group.{name}")
        if low > high:
            problems.append(f"{least} = {low}: must not be above {most} = {high}")
        elif not low <= value <= high:
            problems.append(f"group.{name} = {value}: must be from {low} to {high} ({least} and {most})")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"group.{kind}.session.timeout.ms", f"group.{kind}.heartbeat.interval.ms"
        if broker.get_int(session) <= broker.get_int(heartbeat):
            problems.append(
                f"{session} = {broker.get_int(session)}: must be above {heartbeat} = {broker.get_int(heartbeat)}"
            )
    replicas, most = "group.streams.num.standby.replicas", "group.streams.max.standby.replicas"
    if broker.get_int(replicas) > broker.get_int(most):
        problems.append(f"{replicas} = {broker.get_int(replicas)}: must be at most {broker.get_int(most)} ({most})")
    interval, shortest = "group.streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms"
    if broker.get_int(interval) < broker.get_int(shortest):
        problems.append(
            f"{interval} = {broker.get_int(interval)}: must be at least {broker.get_int(shortest)} ({shortest})"
        )
    return problems


def _least(name: str) -> str:
    """Returns the name of a broker's key, without ``group.``, for the least value that groups may have."""
    kind, _, rest = name.partition(".")
    return f"{kind}.min.{rest}"


def check_client_metrics(config: Config) -> list[str]:
    """Returns the entries of a subscription to clients' metrics that are not patterns."""
    problems: list[str] = []
    for pattern in config.get_list(METRICS_MATCH):
        name, equals, expression = pattern.partition("=")
        try:
            re.compile(expression.strip())
        except (re.error, OverflowError, RecursionError) as error:
            problems.append(f"{METRICS_MATCH} = {pattern!r}: no regular expression: {error}")
            continue
        if not equals or not expression.strip() or name.strip() not in MATCH_FIELDS:
            problems.append(f"{METRICS_MATCH} = {pattern!r}: must be FIELD=EXPRESSION of {', '.join(MATCH_FIELDS)}")
    return problems
