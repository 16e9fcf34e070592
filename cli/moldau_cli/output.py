"""The answers of commands: a table or sentences for people, one JSON document per answer with ``--json``.

Only the answer goes to stdout; errors, notes and progress go to stderr. A command that fails has written one error
document with ``--json``, as its last line, also if it has answered before.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_DATES_END_MS: Final = 253_402_300_800_000
"""The beginning of the year 10000, which no date can name."""

_as_json = False


def use_json(enabled: bool) -> None:
    """Sets the form of all answers of this process; the entry point calls it once."""
    global _as_json
    _as_json = enabled


def wants_json() -> bool:
    """Returns whether answers are JSON."""
    return _as_json


def note(text: str) -> None:
    """Writes a line for people to stderr; it is not part of the answer."""
    sys.stderr.write(printable(text) + "\n")


def complain(text: str) -> None:
    """Writes why a command failed to stderr, as one line."""
    sys.stderr.write(f"moldau: {printable(_in_one_line(text))}\n")


def fail(text: str, code: int) -> int:
    """Writes why a command failed to stderr, as text or JSON, and returns its exit code."""
    if _as_json:
        sys.stderr.write(json.dumps({"error": _in_one_line(text), "exit_code": code}) + "\n")
    else:
        complain(text)
    return code


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def write_line(text: str) -> None:
    """Writes a line of the answer to stdout, without control characters."""
    sys.stdout.write(printable(text) + "\n")


def answer(document: Mapping[str, Json], text: str) -> None:
    """Writes the answer: ``document`` as JSON with ``--json``, else ``text`` (nothing if it is empty)."""
    if _as_json:
        write_line(json.dumps(document))
    elif text:
        write_line(text)
    sys.stdout.flush()


def require_writable(path: Path) -> None:
    """Checks that a file for an answer can be made or replaced, before the work that the answer is about.

    Raises:
        UsageError: it cannot, by its path and the rights to it; a disk may still be full later.
    """
    target = path if path.exists() else path.parent
    if path.is_dir():
        code = errno.EISDIR
    elif not target.exists():
        code = errno.ENOENT
    elif target == path.parent and not target.is_dir():
        code = errno.ENOTDIR
    elif not os.access(target, os.W_OK):
        code = errno.EACCES
    else:
        return
    raise UsageError(f"cannot write {path}: {os.strerror(code)}")


def write_file(path: Path, text: str) -> None:
    """Writes an answer into a file that the user named.

    Raises:
        UsageError: there can be no such file.
        CommandError: the file was opened, and the disk did not take the text.
    """
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    try:
        with file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def answer_rows(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Json]],
    *,
    dry_run: bool = False,
    times: Collection[str] = (),
) -> None:
    """Writes rows as a table, or as ``{name: [...]}`` with ``--json``.

    Each row has the keys ``columns``; further keys appear in JSON only. With ``dry_run`` the rows are a change that was
    not made, and the document has ``"dry_run": true``; ``note_unchanged`` says so in text. The columns ``times`` hold
    Unix milliseconds, which a table shows as dates.
    """
    if _as_json:
        document: dict[str, Json] = {name: [dict(row) for row in rows]}
        write_line(json.dumps(document | {"dry_run": True} if dry_run else document))
    else:
        show = {column: time_cell if column in times else cell for column in columns}
        write_line(table(columns, [[show[column](row.get(column)) for column in columns] for row in rows]))
    sys.stdout.flush()


def note_unchanged() -> None:
    """Writes a note that a dry run has changed nothing; none with ``--json``."""
    if not _as_json:
        note("nothing was changed (--dry-run)")


def cell(value: Json) -> str:
    """Returns the text of one value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(cell(item) for item in value) or "-"
    return printable(str(value)).replace("\n", r"\n").replace("\t", r"\t")


def time_cell(value: Json) -> str:
    """Returns the text of Unix milliseconds in a table: a time in UTC, as options of times take it."""
    if not isinstance(value, int) or not 0 <= value < _DATES_END_MS:
        return cell(value)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def printable(text: str) -> str:
    r"""Returns a text with its control characters as ``\x1b`` and the like; line ends and tabs stay.

    Ids of groups, clients and transactions may hold any character: in a terminal they could change what it shows.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns plain aligned columns, as ``ps`` and ``docker`` print them."""
    lines = [[column.upper().replace("_", " ") for column in columns], *[list(row) for row in rows]]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
