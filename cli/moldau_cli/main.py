"""Entry point of the ``moldau`` command.

``moldau server`` is handled before anything else is imported: a node must start fast and need little memory, so it
never loads the command-line library. All other commands belong to a typer application; their modules import other
packages only when they run. Results go to stdout, notes to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
interrupted, 141 if the reader of a pipe closed it first (``moldau consume t | head``), as with cat and grep. A failure
is one line on stderr, never a traceback. With ``--json`` that line is ``{"error": text, "exit_code": n}``, for every
code but 0 and 141, and the last one of stderr.
"""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import re
import sys
from typing import TYPE_CHECKING, NoReturn

from moldau_cli import output
from moldau_cli.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_READER_LEFT,
    EXIT_USAGE,
    AnsweredError,
    CommandError,
    OutputError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from _typeshed import ReadableBuffer

    # The command-line library's own class is not exported by typer.
    Command = Any


REQUIREMENTS = {"server": ("msgpack", "xxhash", "h11"), "cli": ("typer", "rich", "msgpack", "xxhash", "h11")}
"""Packages that each extra installs; ``pip install moldau`` alone installs the clients."""


def run() -> NoReturn:
    """Runs ``sys.argv`` and exits the process with the command's code; the console script calls it."""
    _open_closed_streams()
    _buffer_output()
    _drop_lost_notes()
    _escape_foreign_characters()
    sys.exit(_flushed(main(sys.argv[1:])))


def _open_closed_streams() -> None:
    """Opens the standard streams that are closed, as after ``>&-`` in a shell; Python has None in their place.

    Otherwise the next file or connection would also get the number of the stream. Input is empty, notes are dropped,
    and an answer cannot be written: /dev/null is open for reading there.
    """
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            opened = os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8")
            setattr(sys, name, opened)


class _Wrapped(io.RawIOBase):
    """A raw stream around that of a standard stream."""

    def __init__(self, raw: io.RawIOBase, replaced: io.TextIOWrapper) -> None:
        self._raw = raw
        self._replaced = replaced  # would close the descriptor when it is collected

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()


class _Answers(_Wrapped):
    """The raw stream behind stdout; an error of it is an ``OutputError``.

    Files and connections raise the same errors, so the text of the command could not say otherwise what failed.
    """

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            written = self._raw.write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from error
        if written is None:  # a pipe that does not block is full
            raise OutputError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written


class _Notes(_Wrapped):
    """The raw stream behind stderr; it drops what cannot be written, as to a full disk or after the reader has gone."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            written = self._raw.write(data)
        except OSError:
            written = None
        return memoryview(data).nbytes if written is None else written


def _buffer_output() -> None:
    """Marks the errors of stdout, and puts a buffer before it where Python has none, as with PYTHONUNBUFFERED.

    A raw stream writes as many bytes as fit and returns their number. On a full disk, or behind a reader that has gone,
    the rest of an answer would be lost without an error.
    """
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and (raw := _raw_stream(stdout)) is not None:
        by_lines = raw is stdout.buffer or stdout.line_buffering
        answers = io.BufferedWriter(_Answers(raw, stdout))
        sys.stdout = io.TextIOWrapper(answers, stdout.encoding, stdout.errors, line_buffering=by_lines)


def _drop_lost_notes() -> None:
    """Lets a command go on, and end with its own exit code, although its notes and errors cannot be written.

    ``produce`` would otherwise fail after all records were acknowledged, and a script would send them again.
    """
    stderr = sys.stderr
    if isinstance(stderr, io.TextIOWrapper) and (raw := _raw_stream(stderr)) is not None:
        notes = io.BufferedWriter(_Notes(raw, stderr))
        sys.stderr = io.TextIOWrapper(notes, stderr.encoding, stderr.errors, line_buffering=True)


def _raw_stream(stream: io.TextIOWrapper) -> io.RawIOBase | None:
    """Returns the raw stream below a standard stream; None if it is no stream of the system."""
    raw = stream.buffer.raw if isinstance(stream.buffer, io.BufferedWriter) else stream.buffer
    return raw if isinstance(raw, io.RawIOBase) else None


def _escape_foreign_characters() -> None:
    r"""Lets stdout write characters that its encoding lacks as ``\u0433``, as stderr does by itself.

    In a terminal that is not UTF-8, the id of a group would otherwise end the command after its work. In the locale C,
    Python's handler is surrogateescape, which has no bytes for such characters either.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def main(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code."""
    output.use_json(split_json_flag(arguments)[0])
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # during the imports; later ones are answered where they arrive
        return output.fail("interrupted", EXIT_INTERRUPTED)


def _run(arguments: Sequence[str]) -> int:
    if sys.flags.optimize:
        text = "python -O removes the assertions that guard committed data; run without -O and PYTHONOPTIMIZE"
        return output.fail(text, EXIT_USAGE)
    if arguments and arguments[0] == "server":
        if missing := missing_requirements("server"):
            return output.fail(missing, EXIT_USAGE)
        from moldau_cli.nodes.server import serve_command

        return serve_command(arguments[1:])
    if "--version" in arguments and {*arguments} <= {"--version", "--json"}:
        arguments = ["version" if each == "--version" else each for each in arguments]
    if missing := missing_requirements("cli"):
        return output.fail(missing, EXIT_USAGE)
    return _run_application(arguments)


def missing_requirements(extra: str) -> str:
    """Returns one line that names missing packages of an extra and how to install them; empty if none is missing."""
    absent = [name for name in REQUIREMENTS[extra] if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed; run: pip install 'moldau[{extra}]'" if absent else ""


def split_json_flag(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Removes ``--json`` from the arguments before ``--``; returns whether it was there, and the rest."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head = [argument for argument in arguments[:end] if argument != "--json"]
    return len(head) != end, head + list(arguments[end:])


def split_command_config(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Removes ``--command-config FILE`` from the arguments before ``--``; returns the file, if any, and the rest.

    Raises:
        UsageError: the file name is missing.
    """
    return split_option(arguments, "--command-config", "a file with client configuration keys")


def split_option(arguments: Sequence[str], option: str, meaning: str) -> tuple[str | None, list[str]]:
    """Removes an option with its value from the arguments before ``--``; returns the value, if any, and the rest.

    Raises:
        UsageError: the value is missing, and ``meaning`` says what it is; or the option is there twice.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    head, found = list(arguments[:end]), None
    for number, argument in enumerate(head):
        name, equals, value = argument.partition("=")
        if name != option:
            continue
        if not equals and number + 1 == len(head):
            raise UsageError(f"{option}: {meaning} is missing")
        found = value if equals else head[number + 1]
        del head[number : number + (1 if equals else 2)]
        if any(each.partition("=")[0] == option for each in head):
            raise UsageError(f"{option} is given twice")
        break
    return found, head + list(arguments[end:])


def _run_application(arguments: Sequence[str]) -> int:
    import typer

    from moldau_cli.application import application
    from moldau_cli.client.address import use_profile
    from moldau_cli.client.settings import use_command_config
    from moldau_cli.words import brokers_last

    is_completing = bool(os.environ.get("_MOLDAU_COMPLETE"))
    if is_completing:
        from moldau_cli.completion.entry import complete

        if complete():
            return EXIT_DONE
        rest: list[str] = []  # the words stand in the environment
    else:
        _, rest = split_json_flag(arguments)
        try:
            config_file, rest = split_command_config(rest)
            use_command_config(config_file)
            profile, rest = split_option(rest, "--profile", "the name of a profile")
            use_profile(profile)
        except CommandError as error:
            return output.fail(str(error), error.exit_code)
        rest = brokers_last(rest)
    library_error: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, which typer does not export
    try:
        result = application.main(args=rest, prog_name="moldau", standalone_mode=False)
    except library_error as error:
        if _asks_for_help(error) and not output.wants_json():
            sys.stderr.write(f"{error}\n")
            return EXIT_USAGE
        return output.fail(_usage_text(error, rest), EXIT_USAGE)
    except AnsweredError as error:
        return output.fail(str(error), error.exit_code) if output.wants_json() else error.exit_code
    except CommandError as error:
        return output.fail(str(error), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return output.fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return _end_after_closed_pipe()
    except OutputError as error:
        return _end_without_output(error)
    except OSError as error:
        if error.filename is None:  # such as a limit of the process; errors of connections are those of the client
            return output.fail(error.strerror or str(error), EXIT_FAILED)
        return output.fail(f"{error.filename}: {error.strerror}", EXIT_USAGE)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # the library itself would exit with code 1
            return _end_after_closed_pipe()
        if is_completing and isinstance(ended.code, int):
            return ended.code  # the library ends completions so
        raise
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return output.fail("interrupted", EXIT_INTERRUPTED)
    return result if isinstance(result, int) else EXIT_DONE


def _asks_for_help(error: Exception) -> bool:
    """Returns whether a group was called without a command; the error's text is the help of the group."""
    return type(error).__name__ == "NoArgsIsHelpError"  # typer does not export it


def _usage_text(error: Exception, words: Sequence[str]) -> str:
    """Returns the message of a usage error with the command that shows help."""
    from moldau_cli.hints.core.kafka_options import command_here, value_here

    context = getattr(error, "ctx", None)
    path, command = _called(words)
    path = getattr(context, "command_path", path)
    describe = getattr(error, "format_message", None)
    text = str(describe()) if callable(describe) else str(error)
    if _asks_for_help(error):
        text = ""
    elif type(error).__name__ == "NoSuchOption":  # typer does not export it
        text = _unknown_option(str(getattr(error, "option_name", "")), path, command) or text
    elif absent := re.match(r"No such command '([^']+)'", text):
        here = command_here(path.removeprefix("moldau").strip(), absent[1])
        text = f"{absent[0]}; here it is moldau {here}" if here else text
    for kind, plain in (("int", "a whole number"), ("float", "a number")):
        text = re.sub(rf"is not a valid {kind}( range)?\b", f"is not {plain}", text)
    text = value_here(text)
    return f"{text.rstrip('.')}; see: {path} --help" if text else f"missing command; see: {path} --help"


def _called(words: Sequence[str]) -> tuple[str, Command]:
    """Returns the command that the first words call, as a text and as an object of the library."""
    from moldau_cli.application import application

    path: str = "moldau"
    command: Command = application
    for word in words:
        if word not in getattr(command, "commands", ()):
            break
        path, command = f"{path} {word}", command.commands[word]
    return path, command


def _unknown_option(option: str, path: str, command: Command) -> str:
    """Returns a message about an option that Kafka's tools have in another form; empty if it is none of theirs."""
    from moldau_cli.hints.core.kafka_options import option_here

    named = next((each.make_metavar() for each in command.params if each.param_type_name == "argument"), None)
    here = option_here(
        path.removeprefix("moldau").strip(), option, subcommands=getattr(command, "commands", ()), argument=named
    )
    return f"No such option: {option}; here it is {here}" if here else ""


def _end_after_closed_pipe() -> int:
    """Ends a command after the reader closed the pipe."""
    _drop_output()
    return EXIT_READER_LEFT


def _end_without_output(error: OSError) -> int:
    """Ends a command whose answer could not be written, as to a full disk."""
    _drop_output()
    return output.fail(f"cannot write the output: {error.strerror or error}", EXIT_FAILED)


def _drop_output() -> None:
    """Points stdout at the null device, so that flushing at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _flushed(code: int) -> int:
    """Writes what is left of the answer, and returns the exit code; it is a failure if that cannot be written."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _end_after_closed_pipe()
    except OSError as error:
        if code == EXIT_DONE:
            return _end_without_output(error)
        _drop_output()
    return code
