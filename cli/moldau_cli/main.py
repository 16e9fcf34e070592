"""Entry point of the ``moldau`` command.

``moldau server`` goes its own way before anything else is imported: a node must start fast and idle small, so it never
loads the command-line library. Everything else is a typer application whose command modules import what they need
when they run. Results go to stdout, words about them to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage; wrong
usage is one line on stderr, not a traceback and not a page.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from moldau_cli.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def run() -> NoReturn:
    """Console script: runs ``sys.argv`` and exits the process with the command's code."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    if sys.flags.optimize:
        complain("python -O removes the assertions that guard committed data; run without -O and PYTHONOPTIMIZE")
        return EXIT_USAGE
    if arguments and arguments[0] == "server":
        from moldau_cli.server import serve_command

        return serve_command(arguments[1:])
    return _run_application(arguments)


def complain(text: str) -> None:
    """Writes one line to stderr."""
    sys.stderr.write(f"moldau: {' '.join(text.split())}\n")


def split_json_flag(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Takes ``--json`` out of the arguments, wherever it stands before ``--``."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head = [argument for argument in arguments[:end] if argument != "--json"]
    return len(head) != end, head + list(arguments[end:])


def split_command_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Takes ``--command-config FILE`` out of the arguments, wherever it stands before ``--``.

    Raises ``UsageError`` where the file is missing.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head, found = list(arguments[:end]), None
    for number, argument in enumerate(head):
        name, equals, value = argument.partition("=")
        if name != "--command-config":
            continue
        if not equals and number + 1 == len(head):
            raise UsageError("--command-config: a file with client configuration keys is missing")
        found = value if equals else head[number + 1]
        del head[number : number + (1 if equals else 2)]
        break
    return found, head + list(arguments[end:])


def _run_application(arguments: Sequence[str]) -> int:
    import typer
    from typer.main import get_command

    from moldau_cli import output
    from moldau_cli.application import application
    from moldau_cli.client import use_command_config

    as_json, rest = split_json_flag(arguments)
    output.use_json(as_json)
    try:
        config_file, rest = split_command_config(rest)
        use_command_config(config_file)
    except CommandError as error:
        complain(str(error))
        return error.exit_code
    library_error: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, which typer does not name itself
    try:
        result = get_command(application).main(args=rest, prog_name="moldau", standalone_mode=False)
    except library_error as error:
        complain(_usage_text(error))
        return EXIT_USAGE
    except CommandError as error:
        complain(str(error))
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _reader_went_away()
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        complain("interrupted")
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else EXIT_DONE


def _usage_text(error: Exception) -> str:
    """The message of a usage error with the place where help is."""
    describe = getattr(error, "format_message", None)
    text = str(describe()) if callable(describe) else str(error)
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "moldau")
    return f"{text.rstrip('.')}; see: {path} --help" if text else f"missing command; see: {path} --help"


def _reader_went_away() -> int:
    """``moldau consume | head``: the reader closed the pipe; nothing more can be written, not even at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return EXIT_FAILED
