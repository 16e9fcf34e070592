"""A pytest of its own for tests of the plugin: another process with the sources of this one."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support.commands import Finished
from support.started import run_started

ROOTS = [path for path in sys.path if path]
NOT_LOADED = [
    word for name in ("hypothesispytest", "xdist", "xdist.looponfail", "django") for word in ("-p", f"no:{name}")
]
"""Plugins of others that are installed too; to load them takes longer than most of these tests."""
CONTINUOUS_INTEGRATION = ("CI", "BUILD_NUMBER")
"""Variables that make pytest print whole messages in its summary: tests count words in what it prints."""

NOT_REWRITTEN = "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
"""Warnings of a fork on assertions in Moldau's own code, whose conditions it does not show when they fail."""
TIMEOUT_S = 900.0

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "tester.md"


def examples() -> list[str]:
    """Returns the code blocks of the guide."""
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def run_pytest(directory: Path, *words: str, in_fork: bool = True, given: str = "") -> Finished:
    """Runs the tests of a directory as a user at a terminal would, who types ``given``; warnings are errors there too.

    By default it is a fork (``support.started``), which has imported pytest and the code of nodes before.
    """
    all_words = ["-q", "-p", "no:cacheprovider", *NOT_LOADED, "-W", "error", *words, str(directory)]
    environment = {name: value for name, value in os.environ.items() if name not in CONTINUOUS_INTEGRATION}
    if in_fork:
        all_words += ["-W", NOT_REWRITTEN, "-p", "no:anyio", "-p", "no:platformdirs"]
        return run_started(*all_words, timeout=TIMEOUT_S, env=environment, cwd=directory, given=given, module="pytest")
    code = f"import sys; sys.path[:0] = {ROOTS!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *all_words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        input=given,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)
