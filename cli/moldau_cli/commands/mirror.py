"""``moldau mirror``: replication between clusters, described by a TOML file."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from moldau_cli import output
from moldau_cli.client.answers import refuse_failures
from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import trio

    from moldau.mirror.core.settings import MirrorSettings, SourceSettings
    from moldau.mirror.mirror import Mirror
    from moldau.mirror.status import SourceStatus

    Context = Any  # the command-line library's own classes are not exported by typer

R = TypeVar("R")

FILE_BYTES_MAX = 1024 * 1024
PROGRESS_S = 10.0
TERMINAL_PROGRESS_S = 0.5
PROGRESS_COLUMNS = 79


class MirrorCommands(TyperGroup):
    """The group ``moldau mirror``; ``moldau mirror FILE`` is short for ``moldau mirror run FILE``."""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Context | None, list[str]]:
        """Takes a first word that names no command for the file of ``run``."""
        if args and args[0] not in self.commands and not args[0].startswith("-") and Path(args[0]).suffix == ".toml":
            args = ["run", *args]
        return super().resolve_command(ctx, args)


commands = typer.Typer(
    cls=MirrorCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Mirror topics of other clusters into one, and show how far it is. 'moldau mirror FILE.toml' runs a mirror.",
)
MirrorFile = Annotated[Path, typer.Argument(metavar="FILE", help="The TOML file of the mirror.")]
OneSource = Annotated[
    str | None, typer.Option("--source", metavar="ALIAS", help="Only this source. Default: all sources of the file.")
]


@commands.command("run")
def run_mirror(file: MirrorFile) -> None:
    """Mirror until Ctrl-C or SIGTERM, which end it in order; logs and progress go to stderr."""
    settings = read_settings(file)
    _log_to_stderr()

    async def main() -> bool:
        import trio

        from moldau.mirror.mirror import Mirror
        from moldau.runtime.ports.real import real_environment

        mirror, has_ended = Mirror(real_environment(), settings), False
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_at_signal, signals, mirror, nursery.cancel_scope)
                nursery.start_soon(_show_progress, mirror)
                await mirror.run()
                has_ended = True
                nursery.cancel_scope.cancel()
        return has_ended and not any(each.ended_early for each in mirror.statistics)

    if _run(main):
        _note("mirror stopped in order")
    else:
        _note("mirror stopped without its last outcomes; the next start goes on at the stored positions")


@commands.command()
def check(file: MirrorFile) -> None:
    """Check the file without connecting to a cluster."""
    settings = read_settings(file)
    rows: list[dict[str, output.Json]] = [
        {
            "source": each.alias,
            "target": each.target_alias,
            "policy": "default" if each.policy.renames else "identity",
            "delivery": "exactly once" if each.is_exactly_once else "at least once",
            "topics": list(each.config.get_list("topics")),
        }
        for each in settings.sources
    ]
    output.answer_rows("sources", ["source", "target", "policy", "delivery", "topics"], rows)


@commands.command()
def status(file: MirrorFile, source: OneSource = None) -> None:
    """Show stored position, end offset and lag of each partition, and the age of the last heartbeat."""
    wanted = _chosen(read_settings(file), source)

    async def main() -> list[SourceStatus]:
        from moldau.mirror.status import source_status
        from moldau.runtime.ports.real import real_environment

        return [await source_status(real_environment(), each) for each in wanted]

    found = _run(main)
    rows: list[dict[str, output.Json]] = [
        {
            "source": each.alias,
            "topic": part.partition.topic,
            "partition": part.partition.partition,
            "remote_topic": part.remote_topic,
            "position": None if part.position < 0 else part.position,
            "end_offset": None if part.end_offset < 0 else part.end_offset,
            "lag": part.lag,
        }
        for each in found
        for part in each.partitions
    ]
    if output.wants_json():
        sources: list[output.Json] = [
            {
                "source": each.alias,
                "lag": each.lag,
                "heartbeat_age_ms": each.heartbeat_age_ms,
                "missing": [*each.missing],
            }
            for each in found
        ]
        output.answer({"sources": sources, "partitions": list(rows)}, "")
    else:
        _write_status(found, rows)
    failures = {f"{each.alias}, {name}": error for each in found for name, error in each.failures.items()}
    refuse_failures("end offsets are missing", failures)


def _write_status(found: list[SourceStatus], rows: list[dict[str, output.Json]]) -> None:
    for each in found:
        age = each.heartbeat_age_ms
        beat = "no heartbeat in the last 10 minutes" if age is None else f"last heartbeat {age / 1000:.1f} s ago"
        lag = "not known" if each.lag is None else f"{each.lag:,}"
        output.write_line(f"{each.alias}: lag {lag}, {beat}")
        if each.missing:
            output.write_line(
                f"{each.alias}: there is no topic {', '.join(each.missing)}, or the mirror's user may not describe it"
            )
    output.answer_rows(
        "partitions", ["source", "topic", "partition", "remote_topic", "position", "end_offset", "lag"], rows
    )


@commands.command()
def offsets(
    file: MirrorFile,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Group of the source.")],
    source: OneSource = None,
) -> None:
    """Show the offsets at which a group of a source would go on in the target, from its checkpoints."""
    wanted = _chosen(read_settings(file), source)

    async def main() -> list[dict[str, output.Json]]:
        from moldau.mirror.status import translated_offsets
        from moldau.runtime.ports.real import real_environment

        rows: list[dict[str, output.Json]] = []
        for each in wanted:
            found = await translated_offsets(real_environment(), each, group)
            rows += [
                {
                    "source": each.alias,
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "source_offset": checkpoint.upstream,
                    "offset": checkpoint.downstream,
                }
                for partition, checkpoint in sorted(found.items())
            ]
        return rows

    rows = _run(main)
    if not rows:
        raise UsageError(
            f"group {group} has no checkpoint in the target: it has committed nothing for mirrored topics, groups "
            "excludes it, or emit.checkpoints.interval.seconds has not passed"
        )
    output.answer_rows("offsets", ["source", "topic", "partition", "source_offset", "offset"], rows)


def read_settings(file: Path) -> MirrorSettings:
    """Reads the file of a mirror; references such as ``${env:NAME}`` are replaced.

    Raises:
        UsageError: the file cannot be read, or its content is not allowed.
    """
    from moldau.mirror.core.settings import parse_settings
    from moldau.runtime.config import ConfigError
    from moldau.runtime.config.providers import resolve

    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{file}: more than {FILE_BYTES_MAX} bytes are no configuration")
        text = file.read_text(encoding="utf-8")
        return parse_settings(text, str(file), lambda given: resolve(given, os.environ))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text: {error}") from error
    except ConfigError as error:
        problems = [problem.removeprefix(f"{file}: ") for problem in error.problems]
        raise UsageError(f"{file}: {'; '.join(problems)}") from error


def _chosen(settings: MirrorSettings, alias: str | None) -> list[SourceSettings]:
    chosen = [each for each in settings.sources if alias in (None, each.alias)]
    if not chosen:
        known = ", ".join(each.alias for each in settings.sources)
        raise UsageError(f"--source: the file has no source {alias}, only {known}")
    return chosen


def _run(main: Callable[[], Awaitable[R]]) -> R:
    """Runs a coroutine function under trio; its failures are reported as one line.

    Raises:
        CommandError: with the first failure.
    """
    import trio

    from moldau.mirror.errors import MirrorStoppedError
    from moldau.protocol.errors import KafkaError
    from moldau.runtime.tasks.exceptions import leaves

    try:
        return trio.run(main, restrict_keyboard_interrupt_to_checkpoints=True)
    except BaseException as error:
        found = list(leaves(error))
        first = next((each for each in found if not isinstance(each, trio.Cancelled)), error)
        if isinstance(first, MirrorStoppedError):
            raise (UsageError if first.is_usage else CommandError)(str(first)) from error
        if isinstance(first, KafkaError | OSError | trio.TooSlowError):
            raise CommandError(str(first) or "a cluster did not answer in time") from error
        if isinstance(first, CommandError | KeyboardInterrupt):
            raise first from error
        raise


def _log_to_stderr() -> None:
    from moldau.runtime.telemetry.log import LineFormatter

    handler = logging.StreamHandler(sys.stderr)
    line = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
    handler.setFormatter(LineFormatter(line, datefmt="%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("moldau.mirror").setLevel(logging.INFO)


async def _stop_at_signal(signals: AsyncIterator[int], mirror: Mirror, scope: trio.CancelScope) -> None:
    """Ends the mirror in order at the first signal, and at once at the second."""
    async for _ in signals:
        if mirror.stop.is_set():
            scope.cancel()
            return
        mirror.stop.set()
        _note("mirror ends in order; a second signal ends it at once")


def _note(text: str) -> None:
    """Writes a line to stderr, on a terminal in place of the progress."""
    output.note(text.ljust(PROGRESS_COLUMNS) if sys.stderr.isatty() else text)


async def _show_progress(mirror: Mirror) -> None:
    """Writes records, rate and lag to stderr: one line that changes on a terminal, else a line every few seconds."""
    import trio

    is_terminal = sys.stderr.isatty()
    interval_s = TERMINAL_PROGRESS_S if is_terminal else PROGRESS_S
    before = 0
    while True:
        await trio.sleep(interval_s)
        records = sum(each.records for each in mirror.statistics)
        lag = sum(each.lag for each in mirror.statistics)
        running = sum(each.is_running for each in mirror.statistics)
        text = (
            f"mirrored {records:,} records, {(records - before) / interval_s:,.0f}/s, lag {lag:,}, "
            f"{running} of {len(mirror.statistics)} sources"
        )
        before = records
        # The cursor goes back to the first column, where a line of the log may follow.
        sys.stderr.write(f"{text}\x1b[K\r" if is_terminal else f"{text}\n")
        sys.stderr.flush()
