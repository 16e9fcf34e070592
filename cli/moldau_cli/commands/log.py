"""``moldau log``: prints the files of a broker's log directories."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.runtime.ports.environment import Disk

OF_CONTROLLER: Final = b"metadata.quorum.engine="
"""A line of ``meta.properties`` in the directory of a controller, whose other lines differ from those of a broker."""

commands = typer.Typer(help="Inspect log files.", rich_markup_mode=None)


@commands.callback()
def group() -> None:
    """Keeps ``dump`` a subcommand while it is the only one."""


@commands.command()
def dump(
    files: Annotated[list[Path], typer.Argument(help="Segment, index, snapshot, checkpoint or meta.properties files.")],
    print_records: Annotated[
        bool, typer.Option("--print-data-log", "--records", help="Show keys and values of the records too.")
    ] = False,
    only_check: Annotated[
        bool,
        typer.Option(
            "--check", "--verify-index-only", "--index-sanity-check", help="Say of each file whether it is damaged."
        ),
    ] = False,
) -> None:
    """Print the contents of files of a log directory, batch by batch. Exit code 1 if a file is damaged.

    Files are compared with those beside them: indexes with the batches, and text files with the checksums that the
    broker left at a clean stop.
    """
    from moldau.runtime.ports.real import real_environment
    from moldau_broker.log.files.dump import BAD_BYTE

    disk = real_environment().disk
    for path in files:
        if not path.is_file():
            raise UsageError(f"{path} is not a file" if path.exists() else f"cannot read {path}: no such file")
    damaged = 0
    for path in files:
        try:
            lines = _lines(disk, path.absolute(), print_records=print_records)
            for line in _verdict(path, lines) if only_check else lines:
                if output.wants_json():
                    output.answer({"file": str(path), "line": line}, "")
                else:
                    output.write_line(line)
                damaged += line.startswith(BAD_BYTE)
        except (BrokenPipeError, OutputError):
            raise  # of this command's output
        except ValueError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror or error}") from error
    if damaged:
        raise CommandError(f"{damaged} of {len(files)} files are damaged")


def _verdict(path: Path, lines: Iterator[str]) -> list[str]:
    """Returns the line that names the damage, or one that says that there is none."""
    from moldau_broker.log.files.dump import BAD_BYTE

    last = deque(lines, maxlen=1).pop()
    return [last if last.startswith(BAD_BYTE) else f"{path}: no damage"]


def _lines(disk: Disk, path: Path, *, print_records: bool) -> Iterator[str]:
    """Yields the lines for a file; the last one names damage, if there is any.

    Raises:
        ValueError: it is none of a log directory.
        OSError: it cannot be read.
    """
    from moldau_broker.log.errors import CorruptLogFileError
    from moldau_broker.log.files.dump import BAD_BYTE, dump_file
    from moldau_cli.dumps.comparison import cut_head, hidden_damage
    from moldau_quorum.node.directory import META_BYTES_MAX, META_PROPERTIES

    if path.name == META_PROPERTIES and _begins_line(path, OF_CONTROLLER, META_BYTES_MAX):
        yield from _identity_of_controller(disk, path)
        return
    damage = cut_head(disk, str(path))
    if damage is None:
        line = ""
        for line in dump_file(disk, str(path), print_records=print_records):
            yield line
        if line.startswith(BAD_BYTE):
            return
        try:
            damage = hidden_damage(disk, str(path))
        except CorruptLogFileError as error:
            output.note(f"{path} could not be compared: {error}")
    else:
        yield f"Dumping {path}"
    if damage is not None:
        yield f"{BAD_BYTE}{damage.byte} of {path}: {damage.reason}"


def _identity_of_controller(disk: Disk, path: Path) -> Iterator[str]:
    """Yields the lines for the ``meta.properties`` of a controller."""
    from moldau_broker.log.files.dump import BAD_BYTE
    from moldau_quorum.node.directory import NodeDirectoryError, read_identity

    yield f"Dumping {path}"
    try:
        identity = read_identity(disk, str(path.parent))
    except NodeDirectoryError as error:
        yield f"{BAD_BYTE}0 of {error}"
        return
    if identity is not None:
        yield f"clusterId: {identity.cluster_id}"
        yield f"nodeId: {identity.node_id}"
        yield f"directoryId: {identity.directory_id}"
        yield f"engine: {identity.engine}"


def _begins_line(path: Path, words: bytes, size: int) -> bool:
    with path.open("rb") as file:
        return any(line.startswith(words) for line in file.read(size).splitlines())
