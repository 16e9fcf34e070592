"""Goal: what a reader copies from a page is API. Method: the code's imports are looked up on the page of the API."""

import ast
import re

import pytest

from support.pages import FENCE, ROOT, name_of

PAGE = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")])
OURS = ("moldau", "moldau_jepsen", "pyspark_moldau", "moldau_broker", "moldau_quorum", "moldau_cli")
ROWS = re.findall(r"^\| (.*) \| API \|", PAGE, re.MULTILINE)
NAMES = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row)}


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
