"""A pytest of its own for tests of the plugin: another interpreter with the sources of this one."""

import subprocess
import sys
from pathlib import Path

ROOTS = [path for path in sys.path if path]
NOT_LOADED = [
    word for name in ("hypothesispytest", "xdist", "xdist.looponfail", "django") for word in ("-p", f"no:{name}")
]
"""Plugins of others that are installed too; to load them takes longer than most of these tests."""


def run_pytest(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a directory; warnings are errors there too."""
    code = f"import sys; sys.path[:0] = {ROOTS!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        code,
        "-q",
        "-p",
        "no:cacheprovider",
        *NOT_LOADED,
        "-W",
        "error",
        *words,
        str(directory),
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900, check=False)
