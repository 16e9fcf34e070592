"""Goal: docstrings render as the site and editors expect, and every public name of the client has one.

Method: the sources are parsed. A first line is a whole sentence, and ``Raises`` is a section.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli")
NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def modules(folder):
    """Returns the parsed modules below a folder with their paths; two tests read those of the client."""
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [(path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def definitions(node):
    """Yields a module or statement and all definitions inside it; expressions hold none."""
    if isinstance(node, (ast.Module, *NAMED)):
        yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            yield from definitions(each)


@cache
def docstrings(folder):
    """Returns all docstrings below a folder with their places; both tests read them."""
    return [
        (f"{path}:{getattr(node, 'lineno', 1)}", text)
        for path, tree in modules(folder)
        for node in definitions(tree)
        if (text := ast.get_docstring(node))
    ]


def undocumented(body, is_public):
    for node in body:
        if isinstance(node, NAMED):
            named = is_public and not node.name.startswith("_")
            # Decorators are compared last: it takes longer than all else.
            if (
                named
                and ast.get_docstring(node) is None
                and not any("overload" in ast.unparse(each) for each in node.decorator_list)
            ):
                yield node
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, named)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_first_line_is_a_summary(folder):
    assert [at for at, text in docstrings(folder) if len(lines := text.split("\n")) > 1 and lines[1].strip()] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_raises_is_a_section(folder):
    inline = re.compile(r"\bRaises\b(?!:\n)|; raises ``")
    assert [at for at, text in docstrings(folder) if inline.search(text)] == []


def test_public_names_of_the_client_are_documented():
    found = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in modules("client")
        for node in undocumented(tree.body, True)
    ]
    assert found == []
