"""``moldau produce TOPIC``: sends lines or files as records, as kcat and Kafka's console producer do."""

from __future__ import annotations

import enum
import logging
import signal
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client.address import bootstrap_of
from moldau_cli.client.options import BootstrapServer, ClientSettings
from moldau_cli.client.running import run
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.records import options
from moldau_cli.records.core.escapes import unescape
from moldau_cli.records.formats import DataFormat, Encoding
from moldau_cli.records.topic_checks import check_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from moldau.serialization.registry import SchemaRegistry
    from moldau_cli.records.core.lines import LineRules
    from moldau_cli.records.core.values import Row
    from moldau_cli.records.sending import Job

SETTINGS = {"linger.ms": "5", "request.timeout.ms": "15000", "max.block.ms": "15000", "delivery.timeout.ms": "60000"}


class Input(enum.StrEnum):
    """The forms of input."""

    LINES = "lines"
    JSONL = "jsonl"
    FILE = "file"


class Codec(enum.StrEnum):
    """Kafka's compression types."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(enum.StrEnum):
    """The acknowledgements that a record needs."""

    ALL = "all"
    LEADER = "1"
    NONE = "0"


class Partitioner(enum.StrEnum):
    """The choices of a partition for records without one."""

    DEFAULT = "default"
    ROUND_ROBIN = "round-robin"


def produce(
    topic: Annotated[str, typer.Argument(autocompletion=names.topics)],
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Read these instead of stdin.")
    ] = None,
    form: Annotated[
        Input, typer.Option("--input", help="A record is a line, a JSON object on a line, or a whole file.")
    ] = Input.LINES,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Separator between key and value of a line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of all records, or of those without one.")] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", "-D", help="Ends each line.")] = r"\n",
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Partition of all records.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of all records.")
    ] = None,
    parse_headers: Annotated[
        bool, typer.Option("--parse-headers", help="Lines begin with headers and a tab: name:value,name:value.")
    ] = False,
    headers_delimiter: Annotated[str, typer.Option("--headers-delimiter", help="Ends the headers of a line.")] = r"\t",
    headers_separator: Annotated[
        str, typer.Option("--headers-separator", help="Stands between the headers of a line.")
    ] = ",",
    headers_key_separator: Annotated[
        str, typer.Option("--headers-key-separator", help="Stands between name and value of a header of a line.")
    ] = ":",
    null: Annotated[
        str | None, typer.Option("--null", "-Z", metavar="TEXT", help="Keys and values with this text are null.")
    ] = None,
    tombstone: Annotated[bool, typer.Option("--tombstone", help="Empty values are null.")] = False,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", metavar="TIME", help="Timestamp of all records; default: now.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many records.")] = None,
    compression: Annotated[Codec | None, typer.Option("--compression", "-z", help="Default: none.")] = None,
    acks: Annotated[Acks | None, typer.Option("--acks", help="Acknowledgements to wait for. Default: all.")] = None,
    partitioner: Annotated[
        Partitioner | None,
        typer.Option("--partitioner", help="For records that name no partition. Default: default."),
    ] = None,
    idempotence: Annotated[
        bool | None, typer.Option("--idempotence/--no-idempotence", help="Retries write no duplicates. Default: yes.")
    ] = None,
    transactional_id: Annotated[
        str | None, typer.Option("--transactional-id", help="Send all records in one transaction.")
    ] = None,
    transaction_size: Annotated[
        int | None,
        typer.Option("--transaction-size", min=1, help="Commit after so many records. Default: all."),
    ] = None,
    format_text: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", help=r"Write acknowledged records, as '%t %p %o\n'."),
    ] = None,
    key_format: options.KeyFormat = DataFormat.BYTES,
    value_format: options.ValueFormat = DataFormat.BYTES,
    key_schema: options.KeySchema = None,
    value_schema: options.ValueSchema = None,
    key_message: options.KeyMessage = None,
    value_message: options.ValueMessage = None,
    registry: options.Registry = None,
    registry_config: options.RegistryConfig = None,
    settings: ClientSettings = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Send each line of stdin (or FILE) as a record, and report when all in-sync replicas have them."""
    from moldau_cli.records.core.lines import LineRules, parse_document, parse_line
    from moldau_cli.records.formats import HAVE_JSON, registry_of
    from moldau_cli.records.identities import given_settings
    from moldau_cli.records.sending import Job

    if key is not None and key_separator is not None and form is Input.LINES:
        raise UsageError("--key and --key-separator exclude each other")
    if form is Input.FILE and not sources:
        raise UsageError("--input file needs FILE")
    if transactional_id == "":
        raise UsageError("--transactional-id is empty")
    if transaction_size is not None and transactional_id is None:
        raise UsageError("--transaction-size needs --transactional-id")
    rules = LineRules(
        topic=topic,
        key_separator=_bytes("--key-separator", key_separator),
        key=None if key is None else _given_bytes(key),
        headers=tuple(map(_header, header or ())),
        headers_delimiter=_bytes("--headers-delimiter", headers_delimiter) if parse_headers else None,
        headers_separator=_bytes("--headers-separator", headers_separator) or b",",
        headers_key_separator=_bytes("--headers-key-separator", headers_key_separator) or b":",
        null=None if null is None else unescape(null),
        tombstones=tombstone,
        partition=partition,
        timestamp=None if timestamp is None else _timestamp_ms(timestamp),
        json_key=key_format in HAVE_JSON,
        json_value=value_format in HAVE_JSON,
    )
    _check_rules(rules)
    job = Job(
        topic=topic,
        sources=sources or [],
        rules=rules,
        parse={Input.LINES: parse_line, Input.JSONL: parse_document}.get(form),
        delimiter=_bytes("--delimiter", delimiter) or b"\n",
        count=count,
        transaction_records=None if transactional_id is None else transaction_size or 0,
        report=_report(format_text),
    )
    address = bootstrap_of(bootstrap_server)
    chosen = {
        "compression.type": compression,
        "acks": acks,
        "partitioner.class": partitioner,
        "enable.idempotence": None if idempotence is None else str(idempotence).lower(),
        "transactional.id": transactional_id,
    }
    config = {
        **SETTINGS,
        **given_settings("producer", settings or [], address),
        **{name: str(value) for name, value in chosen.items() if value is not None},
    }
    job.check_partition = partial(check_topic, topic, config)
    encodings = (
        Encoding(field="key", format=key_format, schema=key_schema, message=key_message),
        Encoding(field="value", format=value_format, schema=value_schema, message=value_message),
    )
    found = registry_of(registry, registry_config, {})
    for encoding in encodings:
        encoding.check(has_registry=found is not None)
    try:
        with _failures_reported_once():
            run(lambda: _send(job, config, encodings, found), address, settings=config)
    finally:
        _summary(job, is_quiet=format_text is not None)


@contextmanager
def _failures_reported_once() -> Iterator[None]:
    """Leaves out the log lines of the producer about batches that failed: the command's error has the reason."""
    from moldau.runtime.telemetry.node_log import event_line

    def is_other(record: logging.LogRecord) -> bool:
        line = event_line(record)
        return line is None or line.event != "produce-failed"

    logger = logging.getLogger("moldau.client")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


def _timestamp_ms(text: str) -> int:
    from moldau_cli.plans.offsets import parse_time_ms

    at_ms = parse_time_ms(text, "--timestamp")
    if at_ms < 0:
        raise UsageError(f"--timestamp: {text} is before 1970, and no record can have such a time")
    return at_ms


def _given_bytes(text: str) -> bytes:
    """Returns the bytes of a word of the command line, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _header(text: str) -> tuple[str, bytes]:
    """Returns name and value of ``NAME=VALUE``; blanks of the value belong to it, and a name may repeat."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--header: expected NAME=VALUE, not {text!r}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"--header: the name of a header is not UTF-8: {name!r}") from error
    return name.strip(), _given_bytes(value)


def _bytes(option: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    found = unescape(text)
    if not found:
        raise UsageError(f"{option} is empty")
    return found


def _check_rules(rules: LineRules) -> None:
    """Refuses equal separators, as Kafka's console producer does."""
    if rules.headers_delimiter is None:
        return
    separators = [rules.headers_delimiter, rules.headers_separator, rules.headers_key_separator]
    if len(set(separators)) != len(separators):
        raise UsageError("--headers-delimiter, --headers-separator and --headers-key-separator must differ")
    if rules.null in separators:
        raise UsageError("--null must differ from the separators of headers")


def _report(format_text: str | None) -> Callable[[Row], None] | None:
    if format_text is None:
        return None
    if output.wants_json():
        raise UsageError("--format excludes --json")
    from moldau_cli.records.core.format import parse_format

    write = parse_format(format_text)

    def report(row: Row) -> None:
        sys.stdout.buffer.write(write(row))
        sys.stdout.buffer.flush()

    return report


def _summary(job: Job, *, is_quiet: bool) -> None:
    total = sum(job.acknowledged.values())
    if sys.exc_info()[0] is not None and not total:
        return
    partitions: dict[str, output.Json] = {str(number): held for number, held in sorted(job.acknowledged.items())}
    if not is_quiet:
        output.answer({"topic": job.topic, "records": total, "partitions": partitions}, "")
    if not output.wants_json():
        output.note(f"{total} {'record' if total == 1 else 'records'} acknowledged")


async def _send(
    job: Job, config: Mapping[str, str], encodings: tuple[Encoding, Encoding], registry: SchemaRegistry | None
) -> None:
    import trio

    from moldau import Producer
    from moldau.serialization import RegistryError
    from moldau_cli.errors import CommandError
    from moldau_cli.records.formats import serializer_of
    from moldau_cli.records.sending import send_all

    try:
        key, value = [await serializer_of(one, registry, job.topic) for one in encodings]
    except RegistryError as error:
        raise CommandError(str(error)) from error
    reading = trio.CancelScope()

    async def watch(signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            reading.cancel()

    await check_topic(job.topic, config, job.rules.partition)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            async with Producer(config, key_serializer=key, value_serializer=value) as producer:
                await send_all(producer, job, reading)
            nursery.cancel_scope.cancel()
