"""Commands that run against the cluster of ``sample_admin``, as a user sees them.

    PYTHONPATH=tests python -m support.client.transcripts tests/moldau_cli/transcripts/*.txt

writes the outputs of the commands in these files again. Read the difference: it is what users will see.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from moldau_cli import endpoints
from moldau_cli.client import running
from support.client.sample_admin import NOON_MS, SampleAdmin
from support.commands import Finished, run_command

PROMPT = "$ moldau "


def run_against(admin: object, *words: str, given: str = "") -> Finished:
    """Runs a command at noon, with this admin client in place of one that connects to a cluster."""

    def run_admin(place: object, work: Any, note: object, **more: object) -> Any:
        del place, note, more
        return running.run(lambda: work(admin), "h:1", probes=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: NOON_MS * 1_000_000)
        patch.setattr(time, "time", lambda: NOON_MS / 1000)
        for module in (running, endpoints):
            patch.setattr(module, "run_admin", run_admin)
        return run_command(*words, given=given)


def transcript(line: str) -> str:
    """Runs a command line; returns it with its output, its exit code, and the changes that it asked for.

    Text behind ``<`` is the line on its standard input. Changes of the things named behind ``#`` are refused, and the
    leaders of the partitions behind ``~`` are silent.
    """
    words, _, silent = line.partition(" ~ ")
    words, _, refused = words.partition(" # ")
    words, _, given = words.partition(" < ")
    admin = SampleAdmin(shlex.split(refused), silent.split())
    done = run_against(admin, *shlex.split(words), given=f"{given}\n" if given else "")
    shown = [f"  {text}" for text in done.stdout.splitlines()]
    shown += [f"  2> {text}" for text in done.stderr.splitlines()]
    shown += [f"  exit code {done.returncode}"] * (done.returncode != 0)
    for call, arguments in admin.changes:
        shown.append(f"  asks {call}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
    return "\n".join([PROMPT + line, *shown])


def transcripts_in(path: Path) -> list[str]:
    """Returns the transcripts of a file, each with its command in the first line."""
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")


def main(paths: list[str]) -> None:
    """Runs the commands of files, and writes the files again."""
    for path in map(Path, paths):
        lines = [each.splitlines()[0].removeprefix(PROMPT) for each in transcripts_in(path)]
        path.write_text("\n\n".join(map(transcript, lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
