"""Generated examples are the same whatever else the process has imported."""

import importlib.util
import sys
from pathlib import Path

from hypothesis import given, settings, strategies
from hypothesis.internal.conjecture import providers

CONSTANTS = "NUMBERS = {numbers}\nTEXTS = {texts}\n"
PECULIAR = [7_770_000_000_000 + number for number in range(300)]


def drawn() -> list[tuple[int, str]]:
    """Returns the examples of a test."""
    found: list[tuple[int, str]] = []

    @settings(max_examples=150, database=None, derandomize=True)
    @given(strategies.integers(), strategies.text(max_size=20))
    def collect(number: int, text: str) -> None:
        found.append((number, text))

    collect()
    return found


def test_examples_do_not_depend_on_imports(tmp_path: Path, monkeypatch) -> None:
    """Draws before and after the import of a module full of constants that Hypothesis takes for the project's own."""
    before = drawn()
    source = tmp_path / "peculiar.py"
    texts = [f"peculiar {number}" for number in range(300)]
    source.write_text(CONSTANTS.format(numbers=PECULIAR, texts=texts), encoding="utf-8")
    monkeypatch.setattr(providers, "is_local_module_file", lambda path: path == str(source))
    spec = importlib.util.spec_from_file_location("peculiar", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "peculiar", module)
    spec.loader.exec_module(module)
    assert drawn() == before
