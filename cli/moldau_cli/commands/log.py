"""``moldau log``: prints the files of a broker's log directories."""

from __future__ import annotations

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
) -> None:
    """Print the contents of files of a log directory, batch by batch. Exit code 1 if a file is damaged."""
    from moldau.runtime.ports.real import real_environment
    from moldau_broker.log.files.dump import BAD_BYTE

    disk = real_environment().disk
    for path in files:
        if not path.is_file():
            raise UsageError(f"{path} is not a file" if path.exists() else f"cannot read {path}: no such file")
    damaged = 0
    for path in files:
        try:
            for line in _lines(disk, path.absolute(), print_records=print_records):
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


def _lines(disk: Disk, path: Path, *, print_records: bool) -> Iterator[str]:
    """Returns the lines for a file.

    Raises:
        ValueError: it is none of a log directory.
        OSError: it cannot be read.
    """
    from moldau_broker.log.files.dump import BAD_BYTE, dump_file
    from moldau_quorum.node.directory import META_BYTES_MAX, META_PROPERTIES, NodeDirectoryError, read_identity

    if path.name != META_PROPERTIES or not _begins_line(path, OF_CONTROLLER, META_BYTES_MAX):
        yield from dump_file(disk, str(path), print_records=print_records)
        return
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
