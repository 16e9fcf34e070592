"""Goal: a module that calls itself pure is held to it. Method: its docstring is compared with the import contract."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLAIM = re.compile(r"(?:^|[.;] )Pure[.: ]|All modules are pure")
FOLDERS = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli")


def contract():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = (
        each for each in pyproject["tool"]["importlinter"]["contracts"] if each["name"].startswith("Pure modules")
    )
    patterns = (re.escape(name).replace(r"\*\*", r"[\w.]+").replace(r"\*", r"\w+") for name in found["source_modules"])
    return re.compile(r"(?:" + "|".join(patterns) + r")(?:\..*)?")


def pure_modules():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "Pure" not in source and "All modules are pure" not in source:  # parsing takes long
                continue
            text = ast.get_docstring(ast.parse(source)) or ""
            if CLAIM.search(text.split("\n\n")[0]):
                yield ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")


def test_modules_that_call_themselves_pure_are_in_the_contract():
    modules = list(pure_modules())
    assert len(modules) > 30
    covered = contract()
    assert [name for name in modules if not covered.fullmatch(name)] == []
