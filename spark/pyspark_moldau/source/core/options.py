"""The options of the source, read and checked before anything is connected.

Names and meaning are those of Spark's Kafka source, so that only the ``format`` of a query needs to change. Options
that Spark's source refuses are refused for the same reasons; options that it takes without use are taken with a
warning. Unknown names are refused, because an error costs less than a misspelt option that is silently ignored.
The ``kafka.*`` options are read by ``client_options``.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import LONG_MAX
from moldau.values import list_elements
from pyspark_moldau.client_options import (
    PREFIX,
    ClientOptions,
    OptionError,
    known_names,
    parse_client,
    positive,
)
from pyspark_moldau.source.core.columns import parse_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

__all__ = ["ClientOptions", "OptionError", "Position", "SourceOptions", "Subscription", "check_names", "parse_options"]

EARLIEST: Final = -2
LATEST: Final = -1

TABLE_OPTION: Final = "option."
"""Prefix of the options of a table that is being created in Spark's catalog."""

TopicOffsets = dict[str, dict[int, int]]
"""Topic to partition to offset (or timestamp)."""

MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
"""Spark's default of ``maxTriggerDelay``."""

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
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "maxBytesPerTrigger",
        "maxBytesPerPartition",
        "columns",
        "filterPushdown",
        "publishOffsetsToGroup",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    )
}

_REPLACED = {
    "fetchOffset.numRetries": "attempts go on for kafka.default.api.timeout.ms",
    "fetchOffset.retryIntervalMs": "kafka.retry.backoff.ms is the wait between attempts",
}
_STREAM_ONLY = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "publishOffsetsToGroup",
)
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_UNITS_MS = {"us": 0.001, "ms": 1, "": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


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

    def option(self, side: str) -> str:
        """Returns the name of the option that sets this position; ``side`` is starting or ending."""
        if self.timestamp_ms is not None:
            return f"{side}Timestamp"
        return f"{side}OffsetsByTimestamp" if self.timestamps is not None else f"{side}Offsets"


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
    columns: tuple[str, ...]  # of the rows, in this order
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    max_bytes_per_trigger: int | None = None
    max_bytes_per_partition: int | None = None
    publish_to_group: str | None = None
    filter_pushdown: bool = False  # of a batch; Spark may give the narrowed ranges to other queries of one load()


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the columns of the rows; the schema depends on no other option than these two.

    Raises:
        OptionError: an option is wrong.
    """
    given = _lowered(options)
    return parse_columns(given.get("columns"), headers=_boolean(given, "includeHeaders", default=False))


def refuse_catalog_table(options: Mapping[str, str]) -> None:
    """Refuses a table of the catalog: Spark gives a Python source the options of such a table only at its creation.

    Raises:
        OptionError: there is no option, or one with the prefix that Spark gives to those of a new table.
    """
    if set(options) <= {"path"} or any(key.lower().startswith(TABLE_OPTION) for key in options):
        raise OptionError(
            "kafka.bootstrap.servers must be given, and Spark does not give a Python source the options of a table of "
            "the catalog (CREATE TABLE ... USING moldau); use CREATE TEMPORARY VIEW ... USING moldau OPTIONS (...)"
        )


def check_names(options: Mapping[str, str]) -> None:
    """Checks names, servers and subscription, before it is known whether the query is a streaming one.

    Raises:
        OptionError: an option is wrong.
    """
    given = _lowered(options)
    _refuse(given)
    parse_client(given)
    _subscription(given)


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Checks the options of one query.

    Raises:
        OptionError: with the option, its value and the accepted values.
    """
    lowered = _lowered(options)
    _refuse(lowered)
    given = _of_kind(lowered, streaming=streaming)
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
    least = _positive(given, "minOffsetsPerTrigger")
    most = _positive(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger: {least} is higher than maxOffsetsPerTrigger, {most}")
    return SourceOptions(
        client=parse_client(given),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        max_offsets_per_trigger=most,
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        columns=columns_of(options),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration(given, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        max_bytes_per_trigger=_positive(given, "maxBytesPerTrigger"),
        max_bytes_per_partition=_positive(given, "maxBytesPerPartition"),
        publish_to_group=given.get("publishoffsetstogroup") or None,
        filter_pushdown=_boolean(given, "filterPushdown", default=False),
    )


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {str(key).lower(): str(value).strip() for key, value in options.items()}


def _refuse(given: Mapping[str, str]) -> None:
    for key in sorted(given):
        if key not in _KNOWN and not key.startswith("kafka."):
            near = difflib.get_close_matches(key, [*_KNOWN, "kafka.bootstrap.servers"], n=1)
            hint = (
                f"did you mean {_KNOWN.get(near[0], near[0])}?" if near else "known are " + ", ".join(_KNOWN.values())
            )
            if key in ("path", "paths"):
                hint = "load() takes no path; name topics by the option subscribe"
            elif key in ("topic", "topics"):
                hint = "name topics by the option subscribe"
            elif key in known_names():
                hint = f"did you mean {PREFIX}{key}? Keys of Kafka's clients have this prefix"
            raise OptionError(f"unknown option {key}; {hint}")
        name = _KNOWN.get(key, key)
        if name in _REPLACED:
            logger.warning("option-without-effect name=%s: %s", name, _REPLACED[name])


def _of_kind(given: Mapping[str, str], *, streaming: bool) -> Mapping[str, str]:
    """Returns the options that mean something to a batch query, or to a stream.

    Raises:
        OptionError: a stream has an option that only batch queries have.
    """
    if streaming:
        for name in _BATCH_ONLY:
            if name.lower() in given:
                raise OptionError(f"{name} is for batch queries: a stream has no end; remove it")
        return given
    useless = {name.lower(): name for name in _STREAM_ONLY if name.lower() in given}
    for name in useless.values():
        logger.warning("option-without-effect name=%s: it is for streaming queries", name)
    return {key: value for key, value in given.items() if key not in useless}


def _subscription(given: Mapping[str, str]) -> Subscription:
    named = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(named) != 1:
        found = ", ".join(named) or "none"
        raise OptionError(f"exactly one of assign, subscribe, subscribePattern must be given; found {found}")
    value = given[named[0].lower()]
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(list_elements(value)))
        if not topics:
            raise OptionError("subscribe: expected topic names separated by commas, got an empty value")
        return Subscription(topics=topics)
    if named[0] == "subscribePattern":
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
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
    """Reads a JSON object. A name that comes twice is refused: JSON leaves open which of its values counts.

    Raises:
        OptionError: with ``expected``, which begins with the name of the option.
    """

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for name, each in pairs:
            if name in found:
                raise OptionError(f"{expected}, got {name!r} twice")
            found[name] = each
        return found

    try:
        document = json.loads(value, object_pairs_hook=once)
    except OptionError:
        raise
    except (ValueError, RecursionError) as error:
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
            if not re.fullmatch(r"\d{1,9}", partition) or type(offset) is not int or not lowest <= offset <= LONG_MAX:
                raise OptionError(f"{expected}, got partition {partition!r} at {offset!r}")
            if int(partition) in result[topic]:
                raise OptionError(f"{expected}, got partition {int(partition)} of {topic} twice")
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
        if not re.fullmatch(r"\d{1,19}", text) or int(text) > LONG_MAX:
            raise OptionError(f"{single}: expected milliseconds since 1970, got {text!r}")
        return Position(timestamp_ms=int(text), latest_if_no_match=latest)
    if by_timestamp.lower() in given:
        stamps = parse_topic_offsets(given[by_timestamp.lower()], by_timestamp, lowest=0)
        return Position(timestamps=stamps, latest_if_no_match=latest)
    if by_offset.lower() not in given:
        return Position(everywhere=default)
    text = given[by_offset.lower()]
    words = {"earliest": EARLIEST, "latest": LATEST}
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
    return None if text is None else positive(text, name)


def _duration(given: Mapping[str, str], name: str, default: int) -> int:
    """Returns milliseconds of a time as Spark writes it, for example 30s or 5m."""
    text = given.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.lower())
    if found is None or found.group(2) not in _UNITS_MS:
        raise OptionError(f"{name}: expected a time such as 30s or 5m, got {text!r}")
    return int(int(found.group(1)) * _UNITS_MS[found.group(2)])


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name}: expected true or false, got {text!r}")
    return text == "true"
