"""The options of the source, read and checked before anything is connected.

Names and meaning are those of Spark's Kafka source, so that only the ``format`` of a query needs to change. Options
that Spark's source refuses are refused for the same reasons. Unknown names are refused too, because an error costs less
than a misspelt option that is silently ignored.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST: Final = -2
LATEST: Final = -1

TopicOffsets = dict[str, dict[int, int]]
"""Topic to partition to offset (or timestamp)."""

DEFAULT_API_TIMEOUT_MS = 60_000
REQUEST_TIMEOUT_MS = 30_000
PARTITION_FETCH_BYTES = 4 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 256 * 1024 * 1024

_KNOWN = {
    name.lower(): name
    for name in (
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "maxOffsetsPerTrigger",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "includeHeaders",
        "groupIdPrefix",
    )
}

_REFUSED = {
    "kafka.auto.offset.reset": "use the option startingOffsets: the position is the checkpoint's, not the group's",
    "kafka.key.deserializer": "keys are binary; use Spark functions to decode them",
    "kafka.value.deserializer": "values are binary; use Spark functions to decode them",
    "kafka.enable.auto.commit": "the source commits no offsets; they are in the checkpoint",
    "kafka.interceptor.classes": "interceptors may change records behind Spark's back",
}

_CLIENT = {
    "kafka.bootstrap.servers",
    "kafka.client.id",
    "kafka.client.rack",
    "kafka.default.api.timeout.ms",
    "kafka.group.id",
    "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
    "kafka.request.timeout.ms",
    "kafka.security.protocol",
}


class OptionError(ValueError):
    """An option is missing, misspelt, refused, or has a bad value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The partitions to read; exactly one field is set."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignment: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The start or the end of reading.

    It is one of ``EARLIEST``, ``LATEST`` or a timestamp for all partitions, or an offset or a timestamp for each.
    ``offsets`` and ``timestamps`` (milliseconds) name each partition; in ``offsets``, -2 is earliest and -1 latest.
    """

    everywhere: int | None = None
    timestamp_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] | None = None
    timestamps: Mapping[str, Mapping[int, int]] | None = None
    latest_if_no_match: bool = False  # a timestamp beyond the last record means latest, instead of an error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options of connections to brokers. Instances are picklable, because Spark sends them to the tasks."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "pyspark-moldau"
    rack: str = ""
    read_committed: bool = False
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    api_timeout_ms: int = DEFAULT_API_TIMEOUT_MS
    partition_fetch_bytes: int = PARTITION_FETCH_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options, checked."""

    client: ClientOptions
    subscription: Subscription
    starting: Position
    ending: Position
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool


def wants_headers(options: Mapping[str, str]) -> bool:
    """Returns whether rows have headers; the schema depends on no other option."""
    return _boolean(_lowered(options), "includeHeaders", default=False)


def check_names(options: Mapping[str, str]) -> None:
    """Checks names, servers and subscription, before it is known whether the query is a streaming one.

    Raises:
        OptionError: an option is wrong.
    """
    given = _lowered(options)
    _refuse(given)
    _client(given)
    _subscription(given)


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Checks the options of one query.

    Raises:
        OptionError: with the option, its value and the accepted values.
    """
    given = _lowered(options)
    _refuse(given)
    _refuse_kind(given, streaming=streaming)
    starting = _position(
        given,
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsets",
        default=LATEST if streaming else EARLIEST,
    )
    ending = _position(given, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", default=LATEST)
    if not streaming and _mentions(starting, LATEST):
        raise OptionError("startingOffsets: a batch query cannot start at latest; use earliest or offsets")
    if _mentions(ending, EARLIEST):
        raise OptionError("endingOffsets: a query cannot end at earliest; use latest or offsets")
    return SourceOptions(
        client=_client(given),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=_positive(given, "maxOffsetsPerTrigger"),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        include_headers=_boolean(given, "includeHeaders", default=False),
    )


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {str(key).lower(): str(value).strip() for key, value in options.items()}


def _refuse(given: Mapping[str, str]) -> None:
    for key in sorted(given):
        if key in _REFUSED:
            raise OptionError(f"{key} is not supported: {_REFUSED[key]}")
        if key not in _KNOWN and key not in _CLIENT:
            near = difflib.get_close_matches(key, [*_KNOWN, *_CLIENT], n=1)
            hint = f"; did you mean {_KNOWN.get(near[0], near[0])}?" if near else ""
            raise OptionError(f"unknown option {key}{hint}")


def _refuse_kind(given: Mapping[str, str], *, streaming: bool) -> None:
    batch_only = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    for name in batch_only if streaming else ("maxOffsetsPerTrigger",):
        if name.lower() in given:
            kind = "batch" if streaming else "streaming"
            raise OptionError(f"{name} is for {kind} queries")


def _subscription(given: Mapping[str, str]) -> Subscription:
    named = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(named) != 1:
        found = ", ".join(named) or "none"
        raise OptionError(f"exactly one of assign, subscribe, subscribePattern must be given; found {found}")
    value = given[named[0].lower()]
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise OptionError("subscribe: expected topic names separated by commas, got an empty value")
        return Subscription(topics=topics)
    if named[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise OptionError(f"subscribePattern: {value!r} is not a regular expression: {error}") from error
        if not value:
            raise OptionError("subscribePattern: the pattern is empty")
        return Subscription(pattern=value)
    return Subscription(assignment=_assignment(value))


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    expected = 'assign: expected {"topic": [0, 1]}'
    document = _json_object(value, expected)
    result = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(type(one) is int and one >= 0 for one in partitions):
            raise OptionError(f"{expected}, got {value!r}")
        result[topic] = tuple(sorted(dict.fromkeys(partitions)))
    if not any(result.values()):
        raise OptionError("assign: no partition is named")
    return result


def _json_object(value: str, expected: str) -> dict[str, object]:
    try:
        document = json.loads(value)
    except ValueError as error:
        raise OptionError(f"{expected}, got {value!r}") from error
    if not isinstance(document, dict):
        raise OptionError(f"{expected}, got {value!r}")
    return document


def parse_topic_offsets(value: str, name: str, *, lowest: int) -> TopicOffsets:
    """Parses the value of option ``name``, which must have the form ``{"topic": {"0": 23}}``.

    Raises:
        OptionError: the value has another form, or a number is below ``lowest``.
    """
    expected = f'{name}: expected {{"topic": {{"0": 23}}}}'
    result: TopicOffsets = {}
    for topic, partitions in _json_object(value, expected).items():
        if not isinstance(partitions, dict):
            raise OptionError(f"{expected}, got {value!r}")
        result[topic] = {}
        for partition, offset in partitions.items():
            if not re.fullmatch(r"\d{1,9}", partition) or type(offset) is not int or offset < lowest:
                raise OptionError(f"{expected}, got partition {partition!r} at {offset!r}")
            result[topic][int(partition)] = offset
    return result


def _position(given: Mapping[str, str], single: str, by_timestamp: str, by_offset: str, *, default: int) -> Position:
    """Reads a position by Spark's precedence: one timestamp for all, then timestamps by partition, then offsets."""
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy: expected error or latest, got {strategy!r}")
    # If no record is as late as an ending timestamp, it means the latest offset; for a start, that is an error.
    latest = strategy == "latest" or single.startswith("ending")
    if single.lower() in given:
        text = given[single.lower()]
        if not re.fullmatch(r"\d{1,18}", text):
            raise OptionError(f"{single}: expected milliseconds since 1970, got {text!r}")
        return Position(timestamp_ms=int(text), latest_if_no_match=latest)
    if by_timestamp.lower() in given:
        stamps = parse_topic_offsets(given[by_timestamp.lower()], by_timestamp, lowest=0)
        return Position(timestamps=stamps, latest_if_no_match=latest)
    text = given.get(by_offset.lower(), "")
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Position(everywhere=words[text.lower()])
    if not text.startswith("{"):
        raise OptionError(f'{by_offset}: expected earliest, latest or {{"topic": {{"0": 23}}}}, got {text!r}')
    return Position(offsets=parse_topic_offsets(text, by_offset, lowest=EARLIEST))


def _mentions(position: Position, special: int) -> bool:
    by_partition = position.offsets or {}
    return position.everywhere == special or any(special in partitions.values() for partitions in by_partition.values())


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,18}", text) or int(text) == 0:
        raise OptionError(f"{name}: expected a positive number, got {text!r}")
    return int(text)


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, got {text!r}")
    return text == "true"


def _client(given: Mapping[str, str]) -> ClientOptions:
    servers = given.get("kafka.bootstrap.servers", "")
    addresses = []
    for address in (part.strip() for part in servers.split(",") if part.strip()):
        host, colon, port = address.rpartition(":")
        if not colon or not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
            raise OptionError(f"kafka.bootstrap.servers: expected host:port, got {address!r}")
        addresses.append((host.strip("[]"), int(port)))
    if not addresses:
        raise OptionError("kafka.bootstrap.servers must be given, as host:port,...")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        raise OptionError(f"kafka.security.protocol: this source speaks PLAINTEXT, not {protocol}")
    isolation = given.get("kafka.isolation.level", "read_uncommitted").lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level: expected read_uncommitted or read_committed, got {isolation!r}")
    fetch_bytes = _positive(given, "kafka.max.partition.fetch.bytes") or PARTITION_FETCH_BYTES
    if fetch_bytes > PARTITION_FETCH_BYTES_MAX:
        raise OptionError(f"kafka.max.partition.fetch.bytes: at most {PARTITION_FETCH_BYTES_MAX}, got {fetch_bytes}")
    return ClientOptions(
        bootstrap=tuple(addresses),
        client_id=given.get("kafka.client.id", "pyspark-moldau"),
        rack=given.get("kafka.client.rack", ""),
        read_committed=isolation == "read_committed",
        request_timeout_ms=_positive(given, "kafka.request.timeout.ms") or REQUEST_TIMEOUT_MS,
        api_timeout_ms=_positive(given, "kafka.default.api.timeout.ms") or DEFAULT_API_TIMEOUT_MS,
        partition_fetch_bytes=fetch_bytes,
    )
