"""``moldau consume TOPIC``: writes records to stdout, as kcat and Kafka's console consumer do."""

from __future__ import annotations

import enum
import sys
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau_cli import output
from moldau_cli.client.address import bootstrap_of
from moldau_cli.client.options import BootstrapServer, ClientSettings
from moldau_cli.client.running import run
from moldau_cli.completion import names
from moldau_cli.errors import UsageError
from moldau_cli.records import options
from moldau_cli.records.core.escapes import unescape
from moldau_cli.records.core.positions import Origin, Span, parse_span, parse_when_ms
from moldau_cli.records.core.shapes import Shape
from moldau_cli.records.formats import DataFormat, Encoding
from moldau_cli.records.topic_checks import admin_settings, check_offset, check_topic
from moldau_cli.signals import ends_at_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import Record
    from moldau_cli.records.core.values import Row
    from moldau_cli.records.reading import OnError, Request

SETTINGS = {"request.timeout.ms": "15000", "default.api.timeout.ms": "15000"}


_GROUP_ORIGINS = (Origin.EARLIEST, Origin.LATEST, Origin.STORED)


class Isolation(enum.StrEnum):
    """Kafka's isolation levels of consumers."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def consume(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC...", help="Topics to read.", autocompletion=names.topics)
    ] = None,
    include: Annotated[
        str | None, typer.Option("--include", metavar="REGEX", help="Read all topics whose whole name matches.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the earliest record instead of the next one.")
    ] = False,
    offset: Annotated[
        list[str] | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="POSITION",
            help="Start (and end): beginning, end, stored, N, -N (the last N of each partition), N:M (without M), "
            "+N, s@TIME and e@TIME. Default: end, or beginning with --exit or --to.",
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, metavar="N", help="Last N offsets of each partition, and new.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First record since this time, or of the last 1h30m.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End at the first record since this time.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many records.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="End at the present end of the topic (implies --from-beginning).")
    ] = False,
    timeout_ms: options.IdleTime = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Consume as a member of this group.", autocompletion=names.groups),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only these partitions. Default: all.")
    ] = None,
    isolation: Annotated[Isolation | None, typer.Option("--isolation-level", help="Default: read_uncommitted.")] = None,
    shape: Annotated[Shape | None, typer.Option("--output", help="Form of the output. Default: text.")] = None,
    format_text: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="FORMAT", help=r"kcat's tokens, such as '%t %p %o %k %s %h %T\n'."),
    ] = None,
    show_key: Annotated[bool, typer.Option("--show-key", "-k", help="Write the key and a tab first.")] = False,
    key_delimiter: Annotated[
        str | None, typer.Option("--key-delimiter", "-K", help="Write the key and this first.")
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", "-D", help="Write this after each record.")] = r"\n",
    null: Annotated[str, typer.Option("--null", "-Z", help="Text for null keys and values.")] = "",
    skip_errors: Annotated[
        bool, typer.Option("--skip-errors", help="Succeed although records cannot be deserialized.")
    ] = False,
    end_at_error: Annotated[
        bool,
        typer.Option("--end-at-error", help="End at a record that cannot be deserialized. Default with --group."),
    ] = False,
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
    """Write the records of a topic to stdout, one a line (one JSON object a line with --json). Ctrl-C ends it."""
    from moldau_cli.records.formats import deserializer_of, registry_of
    from moldau_cli.records.identities import given_settings
    from moldau_cli.records.reading import Request

    if bool(topics) == (include is not None):
        raise UsageError("give TOPIC or --include")
    if group == "":
        raise UsageError("--group is empty")
    now_ms = time.time_ns() // 1_000_000
    words = list(offset or [])
    if tail is not None:
        words.append(f"-{tail}")
    since_ms = None if since is None else parse_when_ms(since, now_ms, "--from")
    until_ms = None if until is None else parse_when_ms(until, now_ms, "--to")
    if since_ms is not None:
        words.append(f"s@{since_ms}")
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise UsageError(f"--to {until} is not later than --from {since}")
    end = None if until_ms is None else f"e@{until_ms}"
    span = _span(words, end, now_ms, from_beginning=from_beginning, exit_at_end=exit_at_end)
    if group is None and span.origin is Origin.STORED:
        raise UsageError("--offset stored needs --group")
    if group is not None and (partition or span.is_bounded or span.origin not in _GROUP_ORIGINS):
        raise UsageError("--group excludes --partition, --exit, --to and offsets; --timeout-ms ends it when idle")
    request = Request(
        topics=tuple(dict.fromkeys(topics or ())),
        pattern=include,
        partitions=frozenset(partition or ()),
        span=span,
        group=group,
        count=count,
        idle_ms=timeout_ms,
        errors=_on_error(skips=skip_errors, ends=end_at_error, in_group=group is not None),
    )
    write = _writer(shape, format_text, delimiter, key_delimiter, null, show_key=show_key)
    address = bootstrap_of(bootstrap_server)
    given = given_settings("consumer", settings or [], address)
    config = {**SETTINGS, **given}
    config.setdefault("auto.offset.reset", "earliest" if span.origin is Origin.EARLIEST else "latest")
    if group is not None:
        config["group.id"] = group
    if isolation is not None:
        config["isolation.level"] = isolation.value
    found = registry_of(registry, registry_config, {})
    key = Encoding(field="key", format=key_format, schema=key_schema, message=key_message)
    value = Encoding(field="value", format=value_format, schema=value_schema, message=value_message)
    deserializers = {
        "key_deserializer": deserializer_of(key, found),
        "value_deserializer": deserializer_of(value, found),
    }
    is_plain = not (output.wants_json() or shape or format_text or show_key or key_delimiter is not None)
    has_values = is_plain and value_format is DataFormat.BYTES and key_format is DataFormat.BYTES
    values = (unescape(delimiter), unescape(null)) if has_values else None
    resets = given.get("auto.offset.reset", "none") != "none"
    work = partial(_read, request, config, deserializers, write, values, checks_offset=not resets)
    if not run(work, address, settings=config):
        raise KeyboardInterrupt


def _on_error(*, skips: bool, ends: bool, in_group: bool) -> OnError:
    """A group would commit the offset of a record that was left out, so its members end at it unless asked not to."""
    from moldau_cli.records.reading import OnError

    if skips and ends:
        raise UsageError("--skip-errors excludes --end-at-error")
    if skips:
        return OnError.SKIP
    return OnError.END if ends or in_group else OnError.REPORT


def _span(words: list[str], end: str | None, now_ms: int, *, from_beginning: bool, exit_at_end: bool) -> Span:
    if from_beginning and words:
        raise UsageError("--from-beginning excludes --offset, --tail and --from")
    span = parse_span(
        [*words, *([] if end is None else [end])],
        now_ms,
        default=Origin.EARLIEST if from_beginning or exit_at_end or end is not None else Origin.LATEST,
    )
    return replace(span, to_end=span.to_end or exit_at_end)


def _writer(
    shape: Shape | None, text: str | None, delimiter: str, key_delimiter: str | None, null: str, *, show_key: bool
) -> Callable[[Row], bytes]:
    from moldau_cli.records.core.format import parse_format
    from moldau_cli.records.core.shapes import writer_of

    chosen = [name for name, one in (("--format", text), ("--output", shape)) if one is not None]
    chosen += ["--json"] * output.wants_json()
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} excludes {chosen[1]}")
    marker = unescape(null)
    if text is not None:
        return parse_format(text, marker)
    keys = r"\t" if key_delimiter is None and show_key else key_delimiter
    return writer_of(
        Shape.JSONL if output.wants_json() else shape or Shape.TEXT,
        delimiter=unescape(delimiter),
        key_delimiter=None if keys is None else unescape(keys),
        null=marker,
    )


class _Stdout:
    """Writes records to standard output.

    ``values`` holds the delimiter and the text of null where the bytes of values alone are wanted: writing those needs
    no row for each record.
    """

    def __init__(self, write: Callable[[Row], bytes], values: tuple[bytes, bytes] | None) -> None:
        self._form = write
        self._values = values
        self._stream = sys.stdout.buffer

    def write(self, row: Row) -> None:
        self._stream.write(self._form(row))

    def write_values(self, records: Sequence[Record[Any, Any]]) -> bool:
        if self._values is None:
            return False
        delimiter, null = self._values
        values = [null if record.value is None else record.value for record in records]
        if values:
            self._stream.write(delimiter.join(values) + delimiter)
        return True

    def flush(self) -> None:
        self._stream.flush()


async def _read(
    request: Request,
    config: dict[str, str],
    deserializers: dict[str, Any],
    write: Callable[[Row], bytes],
    values: tuple[bytes, bytes] | None,
    *,
    checks_offset: bool,
) -> bool:
    """Reads what the request says; returns False if a signal ended it."""
    import trio

    from moldau import Consumer
    from moldau_cli.records.reading import (
        Pump,
        assign,
        commit_position,
        matching_topics,
        no_start,
        reason_for_no_start,
        reason_for_silence,
    )

    start_s = request.start_ms / 1000
    if request.pattern is not None and request.group is None:
        request = replace(request, topics=await matching_topics(admin_settings(config), request.pattern, start_s))
    elif request.pattern is None:
        for topic in request.topics:
            await check_topic(topic, config, within_s=start_s)
    async with Consumer(config, **deserializers) as consumer:
        reason = partial(reason_for_no_start, admin_settings(config), consumer, request)
        is_committed = config.get("isolation.level") == Isolation.READ_COMMITTED
        silence = partial(reason_for_silence, admin_settings(config), consumer, is_committed=is_committed)
        ends = {}
        if request.group is not None:
            consumer.subscribe(request.topics, pattern=request.pattern)
        else:
            with trio.move_on_after(start_s) as patience:
                ends = await assign(consumer, request)
            if patience.cancelled_caught:
                raise no_start(request, await reason())
            if request.span.origin is Origin.OFFSET and checks_offset:
                for topic in request.topics:
                    for number in request.partitions:
                        await check_offset(topic, number, request.span.number, config)
        pump = Pump(
            consumer, request, _Stdout(write, values), ends, lambda: trio.current_time() * 1000, reason, silence
        )
        has_signal = await ends_at_signal(pump.run)
        if request.group is not None and consumer.commits_automatically:
            await commit_position(consumer)
        return not has_signal
