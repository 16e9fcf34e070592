"""Starts modules of Moldau as processes with interpreters of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO


def start_module(
    module: str,
    words: Sequence[str],
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts ``python -m MODULE WORDS`` in a session of its own; ``prefix`` is a command that runs a command."""
    command = [*prefix, sys.executable, "-P", "-m", module, *words]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
