"""The TOML file of a pipeline job, read and checked before Spark starts.

Relative paths are relative to the file. Every job has the sections ``run`` and its own, and ``cluster`` or ``kafka``
unless a command gives their keys; most have ``source`` and ``sink``. docs/pipelines.md lists all keys.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.runtime.config import ConfigError
from moldau.runtime.config.providers import resolve
from moldau.runtime.config.text import toml_document
from moldau.runtime.config.urls import split_login
from pyspark_moldau.jobs.config.cluster import ISOLATION, check_topics, cluster_of
from pyspark_moldau.jobs.config.folders import check_folder
from pyspark_moldau.jobs.config.settings import Section
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.files import delta_problem
from pyspark_moldau.wire.reach import FIRST_MS, KNOWN_MS, REACH_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark_moldau.jobs.config.cluster import ClusterKeys

FORMATS: Final = ("raw", "json", "avro", "protobuf")
TABLE_FORMATS: Final = ("parquet", "delta")
AVAILABLE_NOW: Final = "available-now"
SCHEMA_BYTES_MAX: Final = 4 * 1024 * 1024
COUNT_MAX: Final = 2**31 - 1
EXPORT: Final = "export"
FAIL_ON_DATA_LOSS: Final = "fail_on_data_loss"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DURATION = re.compile(r"([1-9]\d{0,8}) (second|minute|hour|day|week)s?")
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_DAYS_MAX: Final = 36_500
"""Of a duration: Spark adds it to the times of records, which must stay within its years 1 to 9999."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadConfig:
    """How values are decoded. ``schema`` is the text of the schema file; empty for ``raw``.

    Instances are picklable, because Spark sends them to the tasks.
    """

    format: str = "raw"
    schema: bytes = b""
    registry: str = ""
    message: str = ""
    dead_letter_topic: str = ""
    registry_login: str = field(default="", repr=False)  # user:password


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """The topics of a job, where reading starts, and how values are decoded."""

    topics: tuple[str, ...]
    starting_offsets: str
    options: Mapping[str, str]
    payload: PayloadConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    """Where rows go: a table below ``path``, or ``topic``. Exactly one of them is set."""

    path: Path | None
    format: str
    partition_by: tuple[str, ...]
    topic: str
    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Settings of all jobs. ``root`` is the whole file; a job takes its own sections and then calls ``root.finish``."""

    cluster: ClusterKeys
    checkpoint: Path
    trigger: str
    cores: int
    session: Mapping[str, str] = field(repr=False)
    folder: Path
    root: Section


def load_config(path: Path, client: Mapping[str, str] | None = None) -> JobConfig:
    """Reads what all jobs share.

    ``client`` holds keys of Kafka's clients that count where the file has none, with providers resolved.

    Raises:
        JobConfigError: The file cannot be read, is no TOML, or has a wrong value.
    """
    try:
        document = toml_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobConfigError(f"{path}: {error.strerror}; give the TOML file of a job") from error
    except ValueError as error:
        raise JobConfigError(f"{path}: not a TOML file: {error}") from error
    root = Section(str(path), "", document)
    folder = path.absolute().parent
    cluster = cluster_of(root, folder, client or {})
    run = root.section("run")
    checkpoint = run.path("checkpoint", folder)
    trigger = duration_or(run, "trigger", AVAILABLE_NOW)
    cores = run.number("cores", 2, at_least=1, at_most=1024)
    run.finish()
    try:
        given = resolve(root.mapping("spark", required=False), os.environ)
    except ConfigError as error:
        raise root.error("spark", "; ".join(error.problems)) from error
    settings = {name: str(value) for name, value in given.items()}
    return JobConfig(
        cluster=cluster,
        checkpoint=checkpoint,
        trigger=trigger,
        cores=cores,
        session=settings,
        folder=folder,
        root=root,
    )


def source_of(config: JobConfig, name: str = "source") -> SourceConfig:
    """Takes a section that describes topics to read.

    Raises:
        JobConfigError: A value is wrong.
    """
    section = config.root.section(name)
    topics = section.texts("topics")
    for each in topics:
        check_topic(section, "topics", each)
    starting = section.choice("starting_offsets", ("earliest", "latest"), "earliest")
    options = {}
    for key, option in (
        ("max_offsets_per_trigger", "maxOffsetsPerTrigger"),
        ("max_records_per_task", "maxRecordsPerPartition"),
    ):
        if section.has(key):
            options[option] = str(section.number(key, 0, at_least=1, at_most=COUNT_MAX))
    default = config.cluster.keys.get(ISOLATION, "read_committed").lower()
    isolation = section.choice("isolation_level", ("read_committed", "read_uncommitted"), default)
    options["kafka.isolation.level"] = isolation
    if not section.flag(FAIL_ON_DATA_LOSS, True):
        options["failOnDataLoss"] = "false"
    payload = _payload_of(section.section("payload", required=False), config.folder)
    if payload.dead_letter_topic in topics:
        raise section.error("topics", f"{payload.dead_letter_topic} is the dead-letter topic too; name another one")
    section.finish()
    return SourceConfig(topics=topics, starting_offsets=starting, options=options, payload=payload)


def sink_of(config: JobConfig, partition_by: tuple[str, ...] = ()) -> SinkConfig:
    """Takes the section ``sink``.

    Raises:
        JobConfigError: A value is wrong, or not exactly one of ``table`` and ``topic`` is given.
    """
    section = config.root.section("sink")
    if section.has("table") == section.has("topic"):
        raise section.error("table", "give either table (a folder) or topic")
    if section.has("topic"):
        topic = check_topic(section, "topic", section.text("topic"))
        key, value = section.text("key", ""), section.text("value", "")
        section.finish()
        return SinkConfig(path=None, format="", partition_by=(), topic=topic, key=key, value=value)
    path = section.table_path("table", config.folder)
    table_format = section.choice("format", TABLE_FORMATS, "parquet")
    if table_format == "delta" and (problem := delta_problem(path)) is not None:
        raise section.error("table", problem)
    columns = section.texts("partition_by", partition_by)
    section.finish()
    return SinkConfig(path=path, format=table_format, partition_by=columns, topic="", key="", value="")


def check_job(
    config: JobConfig,
    kind: str,
    sources: Mapping[str, SourceConfig],
    sink: SinkConfig | None,
    *,
    view: Path | None = None,
    state: Mapping[str, str] | None = None,
) -> None:
    """Checks a job before Spark starts: its folder of state, and its topics on the cluster.

    ``kind`` is the section of the job; ``sources`` maps sections to topics; a job without a sink makes a ``view``.
    ``state`` is what ``check_folder`` takes. An export has no folder.

    Raises:
        JobConfigError: The folder cannot be made or written, or is another job's, or has another state, or a topic
            does not exist, or is read and written.
        OptionError: The login was refused, or the principal may not describe a topic.
        ReadTimeoutError: No broker answered in time.
    """
    place: str | Path | None = view if sink is None else sink.path or sink.topic
    assert place is not None, "a job has a sink or a view"
    topics: dict[str, tuple[str, ...]] = {}
    for name, source in sources.items():
        topics[f"[{name}] topics"] = source.topics
        if source.payload.dead_letter_topic:
            topics[f"[{name}.payload] dead_letter_topic"] = (source.payload.dead_letter_topic,)
    if sink is not None and sink.topic:
        topics["[sink] topic"] = (sink.topic,)
    _check_loop(config.root, topics)
    wait_ms = REACH_MS
    if kind != EXPORT:
        wait_ms = KNOWN_MS if check_folder(config.root, config.checkpoint, kind, place, state) else FIRST_MS
    check_topics(config.root, config.cluster, topics, wait_ms=wait_ms)


def _check_loop(root: Section, topics: Mapping[str, tuple[str, ...]]) -> None:
    """Checks that a job does not read what it writes: it would write it again, at each further run.

    Raises:
        JobConfigError: A topic is there for both.
    """
    read = {topic: place for place, names in topics.items() if place.endswith("] topics") for topic in names}
    for place, (topic, *_) in topics.items():
        if not place.endswith("] topics") and topic in read:
            raise root.error(
                place, f"{topic} is in {read[topic]} too, and the job would read what it writes; name another one"
            )


def check_topic(section: Section, key: str, name: str) -> str:
    """Returns the name of a topic.

    Raises:
        JobConfigError: Kafka allows no such name.
    """
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise section.error(key, f"{name!r} is no name of a topic: at most 249 letters, digits, '.', '_' and '-'")
    return name


def in_order(expressions: Iterable[str]) -> str:
    """Returns expressions as one text: a state keeps values by their places, whatever their names are."""
    return ", ".join(expressions)


def duration(section: Section, key: str, default: str | None = None) -> str:
    """Takes a duration such as ``10 seconds`` or ``1 hour``.

    Raises:
        JobConfigError: It is something else.
    """
    value = section.text(key, default)
    return _checked_duration(section, key, value, "a duration such as '10 seconds', '1 hour' or '2 days'")


def duration_or(section: Section, key: str, word: str) -> str:
    """Takes a duration, or ``word``, which is the default.

    Raises:
        JobConfigError: It is something else.
    """
    value = section.text(key, word)
    return (
        value
        if value == word
        else _checked_duration(section, key, value, f"{word}, or a duration such as '10 seconds'")
    )


def _checked_duration(section: Section, key: str, value: str, wanted: str) -> str:
    found = _DURATION.fullmatch(value)
    if found is None:
        raise section.error(key, f"expected {wanted}, got {value!r}")
    if int(found[1]) * _SECONDS[found[2]] > _DAYS_MAX * _SECONDS["day"]:
        raise section.error(key, f"expected at most {_DAYS_MAX} days, got {value!r}")
    return value


def _payload_of(section: Section, folder: Path) -> PayloadConfig:
    kind = section.choice("format", FORMATS, "raw")
    if kind == "raw":
        section.finish()
        return PayloadConfig()
    registry = section.text("registry", "")
    if registry and kind != "avro":
        raise section.error("registry", f"is for avro; {kind} takes its schema from a file")
    try:
        registry = str(resolve({"registry": registry}, os.environ)["registry"])
    except ConfigError as error:
        raise section.error("registry", "; ".join(error.problems)) from error
    try:
        address, login = split_login(registry) if registry else ("", "")
    except ValueError as error:
        raise section.error("registry", str(error)) from error
    payload = PayloadConfig(
        format=kind,
        schema=_schema_bytes(section, folder),
        registry=address.rstrip("/"),
        registry_login=login,
        message=section.text("message") if kind == "protobuf" else "",
        dead_letter_topic=check_topic(section, "dead_letter_topic", section.text("dead_letter_topic")),
    )
    section.finish()
    return payload


def _schema_bytes(section: Section, folder: Path) -> bytes:
    path = folder / section.text("schema")
    try:
        with path.open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise section.error("schema", f"{path}: {error.strerror}") from error
    if len(data) > SCHEMA_BYTES_MAX:
        raise section.error("schema", f"{path} has more than {SCHEMA_BYTES_MAX} bytes")
    return data
