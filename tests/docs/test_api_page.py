"""Goal: what a reader copies from a page is API, and the page of the API describes all of it.

Method: the code's imports are looked up on the page, and its members are compared with ``__all__`` of the modules.
"""

import ast
import importlib
import re

import pytest

from support.pages import FENCE, ROOT, name_of

PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")])
OURS = ("moldau", "moldau_jepsen", "pyspark_moldau", "moldau_broker", "moldau_quorum", "moldau_cli")
ROWS = re.findall(r"^\| (.*) \| API \|", PAGE, re.MULTILINE)
NAMES = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row)}
DESCRIBED = dict(re.findall(r"^::: ([\w.]+)\n    options: \{(.*)\}", PAGE, re.MULTILINE))
"""Modules that the page describes, with their options."""


def imports(page):
    """Returns modules and names that the code of a page imports."""
    for _, language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            tree = compile(code, str(page), "exec", flags=ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in OURS:
                    yield node.module, [alias.name for alias in node.names]


@pytest.mark.parametrize("page", [page for page in PAGES if any(imports(page))], ids=name_of)
def test_code_of_a_page_imports_api_only(page):
    found = [(module, name) for module, names in imports(page) for name in names]
    assert [one for one in found if one[0] not in NAMES and one[1] not in NAMES] == []


@pytest.mark.parametrize("module", [name for name in DESCRIBED if name not in {"moldau", "pyspark_moldau.session"}])
def test_all_names_of_a_described_module_are_there(module):
    """Without a list of members all of them are. The other two have names that are described elsewhere, or internal."""
    members = re.search(r"members: \[([^\]]*)\]", DESCRIBED[module])
    public = set(getattr(importlib.import_module(module), "__all__", ()))
    assert members is None or public <= set(members[1].split(", "))


def test_each_name_of_the_package_is_described():
    described = {name for options in DESCRIBED.values() for name in re.findall(r"\w+", options)}
    whole = [importlib.import_module(name).__all__ for name, options in DESCRIBED.items() if "members" not in options]
    public = set(importlib.import_module("moldau").__all__) - {"__version__"}
    assert public - described - {name for names in whole for name in names} == set()
