"""Goal: type checkers accept the code of the guides, and the pages name errors that exist.

Method: the Python blocks of each page become one module, which pyright checks here, and mypy in ``make lint``
(``support.guide_modules``). Names in the tables of errors are looked up.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import moldau
import moldau.consumer
import moldau.producer
import moldau.serialization
from moldau.protocol.errors import ErrorCode
from support.guide_modules import GUIDES, PAGES, written

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command, **environment):
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.proof
def test_pyright_accepts_the_guides(tmp_path):
    command = BIN / "pyright"
    if not command.exists():
        pytest.skip("pyright is not installed")
    if run(str(command), "--version").returncode != 0:
        pytest.skip("pyright cannot run: it needs Node, or a registry to fetch it from")
    written(tmp_path, PAGES)
    folders = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli")
    settings = {"include": ["."], "extraPaths": [str(ROOT / name) for name in folders]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = run(str(command), "-p", str(tmp_path), "--pythonpath", sys.executable)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def first_cells(heading):
    text = (GUIDES / "errors.md").read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [name for cell in rows for name in re.findall(r"`(\w+)`", cell)]


def test_errors_of_the_page_exist():
    homes = (moldau, moldau.consumer, moldau.producer, moldau.serialization, __builtins__)
    names = [name for name in first_cells("Exceptions") if name != "TooSlowError"]
    assert len(names) > 15
    known = {name for home in homes for name in (home if isinstance(home, dict) else dir(home))}
    assert [name for name in names if name not in known] == []
    codes = first_cells("Codes")
    assert len(codes) > 25
    assert [code for code in codes if code not in ErrorCode.__members__] == []


def test_exceptions_of_the_api_stand_on_the_page():
    public = {
        name
        for home in (moldau, moldau.consumer, moldau.producer, moldau.serialization)
        for name in home.__all__
        if isinstance(getattr(home, name), type) and issubclass(getattr(home, name), Exception)
    }
    assert public - {"TransactionError"} <= set(first_cells("Exceptions"))
