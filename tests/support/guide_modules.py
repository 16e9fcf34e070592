"""Writes the Python code of the guides as modules, for type checkers; prints all that mypy is to check.

``make lint`` gives the guides to mypy together with the sources: alone they take as long as a tenth of all sources,
because mypy reads all modules that they import. It checks them strictly, but for functions without annotations.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def written(folder: Path, pages: Iterable[str]) -> list[Path]:
    """Writes one module for each page, with its Python blocks; returns the paths."""
    folder.mkdir(exist_ok=True)
    paths = []
    for page in pages:
        parts, cells = [PRELUDE], list[str]()
        for code in FENCE.findall((GUIDES / f"{page}.md").read_text(encoding="utf-8")):
            awaits = re.search(r"^(?:\w+ = )?await |^print\(.*await ", code, re.MULTILINE)
            (cells if awaits else parts).append(code)
        if cells:  # a notebook's cells share their names
            body = "\n".join(cells)
            parts.append("async def cells():\n" + re.sub(r"^(?=.)", "    ", body, flags=re.MULTILINE))
        paths.append(folder / f"guide_{page}.py")
        paths[-1].write_text("\n".join(parts), encoding="utf-8")
    return paths


if __name__ == "__main__":
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    guides = written(Path(sys.argv[1]), [page for page in PAGES if page not in UNTYPED])
    print(*settings["tool"]["mypy"]["files"], *guides, sep="\n")
