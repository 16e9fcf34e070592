"""``moldau log``: prints the files of a broker's log directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, OutputError, UsageError

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
    from moldau_broker.log.files.dump import BAD_BYTE, dump_file

    disk = real_environment().disk
    for path in files:
        if not path.is_file():
            raise UsageError(f"{path} is not a file" if path.exists() else f"cannot read {path}: no such file")
    damaged = 0
    for path in files:
        try:
            for line in dump_file(disk, str(path.absolute()), print_records=print_records):
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
