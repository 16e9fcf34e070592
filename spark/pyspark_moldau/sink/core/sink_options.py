"""The options of the sink, read and checked before anything is connected. Pure.

Names are those of Spark's Kafka sink, and of Delta Lake's idempotent writes (``txnAppId``, ``txnVersion``). Options
``kafka.*`` go to the producer.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import PRODUCER_CONFIG, ConfigError
from moldau.runtime.config.declaration import LONG_MAX
from pyspark_moldau.client_options import JAVA_SECURITY, PREFIX
from pyspark_moldau.source.core.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
APP_ID_MAX: Final = 150
"""Characters of a ``txnAppId``, which is a part of the names of groups and transactional ids."""

_KNOWN = {
    name.lower(): name
    for name in (
        "topic",
        "includeHeaders",
        "deliveryGuarantee",
        "txnAppId",
        "txnVersion",
        "checkpointLocation",
        "queryName",  # Spark passes the name of a query as an option
    )
}

_REFUSED = {
    "kafka.key.serializer": "keys are binary or strings; use Spark functions to encode them",
    "kafka.value.serializer": "values are binary or strings; use Spark functions to encode them",
    "kafka.interceptor.classes": "interceptors may change records behind Spark's back",
    "kafka.transactional.id": "set deliveryGuarantee to exactly-once; the sink names its transactions itself",
}

_OF_THE_SINK: Final = {
    "client.id": "pyspark-moldau",
    "batch.size": "262144",
    "linger.ms": "20",
    "buffer.memory": "67108864",
    "max.request.size": "1048576",
    "transaction.timeout.ms": "900000",  # Kafka's largest: a batch of a query must not outlast it
}
"""Defaults that differ from the producer's: a task sends many rows at once."""

HARMLESS: Final = frozenset(
    (
        "client.dns.lookup",
        "send.buffer.bytes",
        "receive.buffer.bytes",
        "enable.metrics.push",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "auto.include.jmx.reporter",
        "socket.connection.setup.timeout.max.ms",
        "transaction.two.phase.commit.enable",
        *JAVA_SECURITY,
    )
)
"""Keys of Kafka's producer without a meaning for Moldau's client, that change nothing of what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options, checked. Instances are picklable, because Spark sends them to the tasks."""

    # Configuration of the producer, without transactional.id; it holds passwords.
    producer: Mapping[str, str] = field(repr=False)
    topic: str | None
    is_exactly_once: bool
    app_id: str | None  # txnAppId
    version: int  # txnVersion; 0 if not given
    is_repeatable: bool  # a streaming query, or a job with txnAppId: a later start may repeat what an earlier one wrote
    checkpoint: str | None  # checkpointLocation of a streaming query; None if Spark's configuration says it
    ignored: tuple[str, ...]  # kafka.* options that have no effect


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Checks the options of one query.

    Raises:
        OptionError: with the option, its value and the accepted values.
    """
    given = {str(key).lower(): str(value).strip() for key, value in options.items()}
    for key in sorted(given):
        if key in _REFUSED:
            raise OptionError(f"{key} is not supported: {_REFUSED[key]}")
        if key not in _KNOWN and not key.startswith("kafka."):
            near = difflib.get_close_matches(key, list(_KNOWN), n=1)
            hint = f"; did you mean {_KNOWN[near[0]]}?" if near else "; the sink knows " + ", ".join(_KNOWN.values())
            if key in PRODUCER_CONFIG.keys or key in HARMLESS or f"{PREFIX}{key}" in _REFUSED:
                hint = f"; did you mean {PREFIX}{key}? Keys of Kafka's clients have this prefix"
            if key in ("path", "paths"):
                hint = "; save() and start() take no path; name the topic by the option topic"
            raise OptionError(f"unknown option {key}{hint}")
    guarantee = given.get("deliveryguarantee", AT_LEAST_ONCE).lower()
    if guarantee not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise OptionError(f"deliveryGuarantee: expected {AT_LEAST_ONCE} or {EXACTLY_ONCE}, got {guarantee!r}")
    app_id, version = _transaction(given, guarantee, streaming=streaming)
    topic = given.get("topic")
    if topic is not None and not topic:
        raise OptionError(
            "topic: expected the name of a topic, got an empty value; or leave it out and add a column topic"
        )
    producer, ignored = _producer(given, is_exactly_once=guarantee == EXACTLY_ONCE)
    return SinkOptions(
        producer=producer,
        topic=topic,
        is_exactly_once=guarantee == EXACTLY_ONCE,
        app_id=app_id,
        version=version,
        is_repeatable=streaming or app_id is not None,
        checkpoint=given.get("checkpointlocation") or None,
        ignored=ignored,
    )


def _transaction(given: Mapping[str, str], guarantee: str, *, streaming: bool) -> tuple[str | None, int]:
    app_id, version = given.get("txnappid"), given.get("txnversion")
    if app_id is None and version is None:
        return None, 0
    name = "txnAppId" if app_id is not None else "txnVersion"
    if streaming:
        raise OptionError(f"{name} is for batch queries: a streaming query is known by the id in its checkpoint")
    if guarantee != EXACTLY_ONCE:
        raise OptionError(f"{name} needs deliveryGuarantee {EXACTLY_ONCE}")
    if app_id is None or version is None:
        raise OptionError("txnAppId and txnVersion are given together: a name, and a number that grows with each write")
    if not app_id or len(app_id) > APP_ID_MAX:
        raise OptionError(f"txnAppId: expected 1 to {APP_ID_MAX} characters, got {len(app_id)}")
    if not re.fullmatch(r"[0-9]{1,19}", version) or int(version) > LONG_MAX:
        raise OptionError(f"txnVersion: expected a number from 0 to {LONG_MAX}, got {version!r}")
    return app_id, int(version)


def _producer(given: Mapping[str, str], *, is_exactly_once: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    keys = {key.removeprefix("kafka."): value for key, value in given.items() if key.startswith("kafka.")}
    if not keys.get("bootstrap.servers"):
        raise OptionError("kafka.bootstrap.servers must be given, as host:port,...")
    ignored = tuple(sorted(key for key in keys if key in HARMLESS))
    producer = _OF_THE_SINK | {key: value for key, value in keys.items() if key not in HARMLESS}
    if is_exactly_once:
        for key, wrong in (("enable.idempotence", "false"), ("acks", "0"), ("acks", "1")):
            if producer.get(key, "").lower() == wrong:
                raise OptionError(
                    f"kafka.{key}: {wrong} is impossible with deliveryGuarantee {EXACTLY_ONCE}; leave it out"
                )
    if int_of(producer, "batch.size") + 1024 > int_of(producer, "max.request.size") and "batch.size" not in keys:
        producer["batch.size"] = str(max(int_of(producer, "max.request.size") // 2, 1))
    try:
        PRODUCER_CONFIG.parse(producer)
    except ConfigError as error:
        first = "; ".join(f"kafka.{problem}" for problem in error.problems)
        raise OptionError(first) from error
    return producer, ignored


def int_of(producer: Mapping[str, str], key: str) -> int:
    """Returns a number of the producer's configuration; 0 if it is no number, which is reported elsewhere."""
    text = producer[key]
    return int(text) if text.isascii() and text.isdecimal() else 0
