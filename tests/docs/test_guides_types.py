"""Goal: type checkers accept the code of the guides, and the pages name errors that exist.

Method: the Python blocks of each page become one module, which mypy (strict, but for functions without annotations) and
pyright check. Names in the tables of errors are looked up.
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

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
PAGES = (
    "application",
    "asyncio",
    "frameworks",
    "guarantees",
    "migrating",
    "processing",
    "serializers",
    "service",
    "share-groups",
    "simulate",
    "tuning",
)
UNTYPED = {"frameworks"}
"""Pages on libraries without types, which strict mypy refuses; pyright checks them."""
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRELUDE = 'BOOTSTRAP = ""\nREGISTRY = ""\n'
BIN = Path(sys.executable).parent


def written(folder, pages):
    folder.mkdir(exist_ok=True)
    paths = []
    for page in pages:
        parts, cells = [PRELUDE], []
        for code in FENCE.findall((GUIDES / f"{page}.md").read_text(encoding="utf-8")):
            awaits = re.search(r"^(?:\w+ = )?await |^print\(.*await ", code, re.MULTILINE)
            (cells if awaits else parts).append(code)
        if cells:  # a notebook's cells share their names
            body = "\n".join(cells)
            parts.append("async def cells():\n" + re.sub(r"^(?=.)", "    ", body, flags=re.MULTILINE))
        paths.append(folder / f"guide_{page}.py")
        paths[-1].write_text("\n".join(parts), encoding="utf-8")
    return paths


def run(*command, **environment):
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False
    )


def test_mypy_accepts_the_guides(tmp_path):
    """The settings hold the exceptions for guides, so that mypy takes the other modules from its cache."""
    paths = written(tmp_path / "guides", [page for page in PAGES if page not in UNTYPED])
    done = run(str(BIN / "mypy"), *map(str, paths), MYPYPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


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
