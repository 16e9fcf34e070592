"""Writes the tables of rooms in docs/ARCHITECTURE.md: ``PYTHONPATH=tests python -m support.rooms``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
PACKAGES = {
    "moldau": "client",
    "moldau_quorum": "metadata_quorum",
    "moldau_broker": "data_plane",
    "pyspark_moldau": "spark",
    "moldau_jepsen": "jepsen_like",
    "moldau_cli": "cli",
}
SECTION = re.compile(r"^### moldau\n.*?(?=^## )", re.MULTILINE | re.DOTALL)


def summary_of(path: Path) -> str:
    """Returns the first paragraph of a module's docstring as Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def table_of(package: str) -> str:
    """Returns the table of the sub-packages of a package, by name."""
    base = ROOT / PACKAGES[package] / package
    rooms = sorted((".".join(path.parent.relative_to(base).parts), path) for path in base.rglob("__init__.py"))
    rows = "".join(f"| `{room}` | {summary_of(path)} |\n" for room, path in rooms if room)
    return f"### {package}\n| room | holds |\n|---|---|\n{rows}\n"


def page() -> str:
    """Returns the page with tables of the present packages."""
    tables = "".join(map(table_of, PACKAGES))
    return SECTION.sub(lambda _: tables, PAGE.read_text(encoding="utf-8"), count=1)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
