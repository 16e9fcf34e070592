"""Makes Spark's Python processes forks of one process, which has imported the libraries that they need.

A Python process of Spark imports PySpark, PyArrow and pandas for most of a second, and the Spark tests start a hundred
of them: one for each start of a stream, and another for each failure of a task. The process in which Spark looks for
data sources is started as users have it.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from support.spark import python_server, python_start

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "PYSPARK_PYTHON"
END_S = 60.0


@contextmanager
def forked_python() -> Iterator[None]:
    """Sets ``PYSPARK_PYTHON`` for sessions that are started meanwhile, unless it is set."""
    if VARIABLE in os.environ or platform.system() == "Darwin":  # its libraries do not bear forks
        yield
        return
    with tempfile.TemporaryDirectory(prefix="moldau-") as folder:
        path = Path(folder) / "socket"
        words = [sys.executable, "-P", python_server.__file__, str(path)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n", "the process that forks Spark's Python processes has ended"
            program = Path(folder) / "python"
            start = shlex.join([sys.executable, "-IS", python_start.__file__, sys.executable, str(path)])
            program.write_text(f'#!/bin/sh\nexec {start} "$@"\n')
            program.chmod(0o755)
            os.environ[VARIABLE] = str(program)
            try:
                yield
            finally:
                os.environ.pop(VARIABLE, None)
                server.stdin.close()
                server.wait(END_S)
