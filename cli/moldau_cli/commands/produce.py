"""``moldau produce TOPIC``: sends lines of stdin as records, like kcat."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from moldau_cli import output
from moldau_cli.client import BootstrapServer, ClientSettings, bootstrap_of, check_topic, command_config, run
from moldau_cli.commands.cluster import parse_settings
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.producer import Delivery

LINES_AT_ONCE = 1_000
UNDELIVERED_MAX = 100_000
SETTINGS = {"linger.ms": "5", "request.timeout.ms": "15000", "max.block.ms": "15000", "delivery.timeout.ms": "60000"}


def produce(
    topic: str,
    source: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Read here instead of stdin.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="Separator between key and value of a line.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of all records.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0)] = None,
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE")] = None,
    settings: ClientSettings = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Send each line of stdin (or FILE) as a record, and report when all in-sync replicas have them."""
    if key is not None and key_separator is not None:
        raise UsageError("--key and --key-separator exclude each other")
    if key_separator == "":
        raise UsageError("--key-separator is empty")
    headers = [(name, value.encode()) for name, value in parse_settings(header or []).items()]
    address = bootstrap_of(bootstrap_server)
    config = {
        **SETTINGS,
        **command_config("producer"),
        "bootstrap.servers": address,
        **parse_settings(settings or []),
    }
    separator = None if key_separator is None else key_separator.encode()
    fixed_key = None if key is None else key.encode()
    counts: dict[int, int] = {}

    async def work() -> None:
        import trio

        from moldau import Producer

        waiting: deque[Delivery] = deque()

        async def settle(most: int) -> None:
            while len(waiting) > most:
                placed = await waiting.popleft()
                counts[placed.partition] = counts.get(placed.partition, 0) + 1

        with _opened(source) as stream:
            async with Producer(config) as producer:
                await check_topic(topic, config)
                while lines := await trio.to_thread.run_sync(_read_lines, stream, abandon_on_cancel=True):
                    for line in lines:
                        line_key, value = _split(line, separator, fixed_key)
                        delivery = await producer.send(topic, value, key=line_key, headers=headers, partition=partition)
                        waiting.append(delivery)
                    await settle(UNDELIVERED_MAX)
                await producer.flush()
                await settle(0)

    run(work, address)
    total = sum(counts.values())
    output.answer({"topic": topic, "records": total, "partitions": {str(p): n for p, n in sorted(counts.items())}}, "")
    if not output.wants_json():
        output.note(f"{total} records acknowledged")


def _opened(source: Path | None) -> BinaryIO:
    if source is None:
        return sys.stdin.buffer
    try:
        return source.open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error


def _read_lines(stream: BinaryIO) -> list[bytes]:
    """Reads the next lines, at most ``LINES_AT_ONCE``; returns an empty list at the end."""
    return list(_some_lines(stream))


def _some_lines(stream: BinaryIO) -> Iterator[bytes]:
    for _ in range(LINES_AT_ONCE):
        line = stream.readline()
        if not line:
            return
        yield line.rstrip(b"\r\n")
        if stream is sys.stdin.buffer and sys.stdin.isatty():
            return  # on a terminal, send each line as soon as it is typed


def _split(line: bytes, separator: bytes | None, key: bytes | None) -> tuple[bytes | None, bytes]:
    if separator is None or separator not in line:
        return key, line
    before, _, after = line.partition(separator)
    return before, after
