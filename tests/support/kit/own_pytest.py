"""A pytest of its own for tests of the plugin: another interpreter with the sources of this one."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOTS = [path for path in sys.path if path]
NOT_LOADED = [
    word for name in ("hypothesispytest", "xdist", "xdist.looponfail", "django") for word in ("-p", f"no:{name}")
]
"""Plugins of others that are installed too; to load them takes longer than most of these tests."""
CONTINUOUS_INTEGRATION = ("CI", "BUILD_NUMBER")
"""Variables that make pytest print whole messages in its summary: tests count words in what it prints."""

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "tester.md"


def examples() -> list[str]:
    """Returns the code blocks of the guide."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def run_pytest(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a directory as a user at a terminal would; warnings are errors there too."""
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
    environment = {name: value for name, value in os.environ.items() if name not in CONTINUOUS_INTEGRATION}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
