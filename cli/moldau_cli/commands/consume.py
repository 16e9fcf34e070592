"""``moldau consume TOPIC``: writes records to stdout, like kcat."""

from __future__ import annotations

import base64
import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.client import (
    BootstrapServer,
    ClientSettings,
    bootstrap_of,
    check_offset,
    check_topic,
    command_config,
    run,
)
from moldau_cli.commands.cluster import parse_settings
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio

    from moldau import Consumer
    from moldau.consumer import ConsumedBatch
    from moldau.records import Record

POLL_MS = 500
SETTINGS = {"request.timeout.ms": "15000", "default.api.timeout.ms": "15000"}


def consume(
    topic: str,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the earliest record instead of the next one.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", "-c", min=1, help="End after this many records.")] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit", "-e", help="End at the present end of the topic (implies --from-beginning).")
    ] = False,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Consume as a member of this group.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")] = None,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            "-o",
            min=0,
            help="Start here (needs --partition). Out of range is an error unless auto.offset.reset is set.",
        ),
    ] = None,
    show_key: Annotated[bool, typer.Option("--show-key", "-k", help="Write the key and a tab first.")] = False,
    settings: ClientSettings = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Write the records of a topic to stdout, one a line (one JSON object a line with --json). Ctrl-C ends it."""
    if offset is not None and partition is None:
        raise UsageError("--offset needs --partition")
    if group is not None and (partition is not None or exit_at_end):
        raise UsageError("--group excludes --partition and --exit")
    address = bootstrap_of(bootstrap_server)
    start = "earliest" if from_beginning or exit_at_end else "latest"
    config = {
        **SETTINGS,
        **command_config("consumer"),
        "bootstrap.servers": address,
        "auto.offset.reset": start,
        **parse_settings(settings or []),
    }
    if group is not None:
        config["group.id"] = group
    given = {**command_config("consumer"), **parse_settings(settings or [])}
    resets = given.get("auto.offset.reset", "none") != "none"

    async def work() -> bool:
        from moldau import Consumer

        await check_topic(topic, config)
        async with Consumer(config) as consumer:
            if group is not None:
                consumer.subscribe([topic])
                return await _pump_until_signal(consumer, {}, count, show_key=show_key)
            known = [one.partition for one in await consumer.partitions_for(topic)]
            if partition is not None and partition not in known:
                raise UsageError(f"topic {topic} has partitions 0 to {len(known) - 1}, not {partition}")
            wanted = [(topic, number) for number in known if partition in (None, number)]
            consumer.assign(wanted)
            if offset is not None and partition is not None:
                if not resets:
                    await check_offset(topic, partition, offset, config)
                consumer.seek(wanted[0], offset)
            left: dict[int, int] | None = None
            if exit_at_end:
                begins = await consumer.beginning_offsets(wanted)
                ends = await consumer.end_offsets(wanted)
                left = {one.partition: end for one, end in ends.items() if end > max(begins[one], offset or 0)}
                if not left:
                    return True
            return await _pump_until_signal(consumer, left or {}, count, show_key=show_key)

    if not run(work, address):
        raise KeyboardInterrupt


async def _pump_until_signal(consumer: Consumer, left: dict[int, int], count: int | None, *, show_key: bool) -> bool:
    """Runs ``_pump``; returns False if a signal ended it, so that the caller can close the consumer in order."""
    import trio

    signalled = False

    async def watch(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        nonlocal signalled
        async for _ in signals:
            signalled = True
            scope.cancel()

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals, nursery.cancel_scope)
            await _pump(consumer, left, count, show_key=show_key)
            nursery.cancel_scope.cancel()
    return not signalled


async def _pump(consumer: Consumer, left: dict[int, int], count: int | None, *, show_key: bool) -> None:
    """Writes records until ``count`` are written or, if ``left`` was given, until all partitions are read.

    ``left`` holds the end offset of each partition that is not read to its end.
    """
    ends = bool(left)
    written = 0
    while True:
        for batch in await consumer.poll(POLL_MS, max_records=None if count is None else count - written):
            _write(batch, show_key=show_key)
            written += len(batch.records)
            if batch.next_offset >= left.get(batch.partition, 0):
                left.pop(batch.partition, None)
        sys.stdout.flush()
        if (count is not None and written >= count) or (ends and not left):
            return


def _write(batch: ConsumedBatch, *, show_key: bool) -> None:
    if output.wants_json():
        for record in batch.records:
            output.write_line(json.dumps(_document(batch, record)))
        return
    stream = sys.stdout.buffer
    for record in batch.records:
        prefix = (record.key or b"") + b"\t" if show_key else b""
        stream.write(prefix + (record.value or b"") + b"\n")


def _document(batch: ConsumedBatch, record: Record) -> dict[str, output.Json]:
    document: dict[str, output.Json] = {
        "topic": batch.topic,
        "partition": batch.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_field("key", record.key),
        **_field("value", record.value),
    }
    if record.headers:
        headers: list[output.Json] = [{"name": name, **_field("value", value)} for name, value in record.headers]
        document["headers"] = headers
    return document


def _field(name: str, content: bytes | None) -> dict[str, output.Json]:
    """Returns the content as text if it is UTF-8; otherwise as base64 under ``<name>_base64``."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode("ascii")}
