"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- not run: ([^\n]+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = '"127.0.0.1:9092"'
"""Stands in the README's examples for the bootstrap address of the reader's own cluster."""


def blocks(page: Path, language: str) -> list[str]:
    """Returns the code of one language that a test runs."""
    return [text for reason, name, text in FENCE.findall(page.read_text()) if name == language and not reason]


def name_of(page: Path) -> str:
    """Returns the path of a page in the repository."""
    return str(page.relative_to(ROOT))
