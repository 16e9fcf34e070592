"""Goal: modules, classes, functions and folders stay small enough to read, or say why they do not.

Method: the syntax trees of the source packages are measured and compared with ``sizes.toml``, which gives a reason for
each exception, and a ceiling. A new exception, one that has outgrown its ceiling, and a stale entry fail.
"""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("client", "metadata_quorum", "data_plane", "spark", "jepsen_like", "cli", "benchmarks")
LIMITS = {"module-lines": 600, "methods": 30, "function-lines": 60, "arguments": 10, "modules": 16}
EXEMPT = "client/moldau/protocol/messages"  # one module per API of Kafka
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = re.compile(r"^( *)(?:async )?(def|class) ", re.MULTILINE)
CONSTRUCTOR = re.compile(r"^ +def __init__\(.*?(?:->|\Z)", re.MULTILINE | re.DOTALL)
REASON_MIN = 25  # characters: shorter ones explain nothing


def lines_of(function):
    """Counts the lines of a function with its signature and without its docstring."""
    first = function.body[0]
    is_documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    documentation = first.end_lineno - first.lineno + 1 if is_documented else 0
    return function.end_lineno - function.lineno + 1 - documentation


def arguments_of(function):
    """Counts the arguments of a constructor besides ``self``."""
    arguments = function.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def blocks_of(node):
    """Yields the statements directly inside a statement: expressions hold no definitions."""
    for name in ("body", "orelse", "finalbody"):
        yield from getattr(node, name, ())
    for name in ("handlers", "cases"):
        for part in getattr(node, name, ()):
            yield from part.body


def definitions(node, prefix):
    """Yields each class and function below a node, with its qualified name and its class."""
    for statement in blocks_of(node):
        if isinstance(statement, (ast.ClassDef, *FUNCTIONS)):
            name = f"{prefix}{statement.name}"
            yield statement, name, node
            yield from definitions(statement, f"{name}.")
        else:
            yield from definitions(statement, prefix)


def may_exceed(source):
    """Returns whether a definition may be over a limit, by the lines that begin definitions: never no if one is."""
    if any(match[0].count(",") >= LIMITS["arguments"] for match in CONSTRUCTOR.finditer(source)):
        return True
    lines = source.count("\n") + 1
    open_functions = []  # indentation and line
    methods = line = position = 0
    for match in DEFINITION.finditer(source):
        line += source.count("\n", position, match.start())
        position = match.start()
        indentation = len(match[1])
        while open_functions and open_functions[-1][0] >= indentation:
            if line - open_functions.pop()[1] > LIMITS["function-lines"]:
                return True
        if match[2] == "class":
            methods = methods if indentation else 0  # the methods of a class inside another count as its own
        else:
            methods += 1
            open_functions.append((indentation, line))
        if methods > LIMITS["methods"]:
            return True
    return any(lines - begin > LIMITS["function-lines"] for _, begin in open_functions)


def measured(source, path):
    """Yields the sizes in a module: kind, where, figure."""
    yield "module-lines", path, source.count("\n")
    if not may_exceed(source):
        return  # parsing all modules would take most of the time
    for node, name, parent in definitions(ast.parse(source), ""):
        where = f"{path}:{name}"
        if isinstance(node, ast.ClassDef):
            yield "methods", where, sum(isinstance(statement, FUNCTIONS) for statement in node.body)
            continue
        yield "function-lines", where, lines_of(node)
        if node.name == "__init__" and isinstance(parent, ast.ClassDef):
            yield "arguments", where, arguments_of(node)


@cache
def oversized():
    """Returns what is over a limit: kind and place, with the figure."""
    found = {}
    folders = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if path.name != "__init__.py":
                folder = path.parent.relative_to(ROOT).as_posix()
                folders[folder] = folders.get(folder, 0) + 1
            for kind, where, figure in measured(path.read_text(encoding="utf-8"), name):
                if figure > LIMITS[kind]:
                    found[kind, where] = figure
    for folder, count in folders.items():
        if count > LIMITS["modules"] and folder != EXEMPT:
            found["modules", folder] = count
    return found


@cache
def exceptions():
    """Returns the entries of the table by kind and place."""
    table = tomllib.loads((Path(__file__).parent / "sizes.toml").read_text(encoding="utf-8"))
    return {(kind, where): entry for kind, entries in table.items() for where, entry in entries.items()}


def test_sizes_over_a_limit_have_a_reason():
    excused = exceptions()
    assert [
        f"{where}: {figure} {kind}, at most {LIMITS[kind]}; split it, or give a reason in tests/sizes.toml"
        for (kind, where), figure in oversized().items()
        if (kind, where) not in excused
    ] == []


def test_exceptions_do_not_outgrow_their_ceiling():
    found = oversized()
    assert [
        f"{where}: {found[kind, where]} {kind}, at most {entry['most']} by tests/sizes.toml"
        for (kind, where), entry in exceptions().items()
        if found.get((kind, where), 0) > entry["most"]
    ] == []


def test_no_exception_is_stale():
    found = oversized()
    assert [
        f"{where} is within the limit of {kind}" for kind, where in exceptions() if (kind, where) not in found
    ] == []


def test_each_exception_has_a_reason():
    for place, entry in exceptions().items():
        assert set(entry) == {"most", "reason"}, place
        assert len(entry["reason"]) >= REASON_MIN, place


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("x = 1\n" * 601, {"module-lines": 601}),
        ("class A:\n" + "    def f(self): ...\n" * 31 + "\n" * 31, {"methods": 31}),
        ("if 1:\n    async def f():\n" + "        x\n" * 60, {"function-lines": 61}),
        ('def f():\n    """A.\n\n    B.\n    """\n' + "    x\n" * 60, {"function-lines": 61}),
        ('def f():\n    """A.\n\n    B.\n    """\n' + "    x\n" * 59, {}),
        ("try:\n    pass\nexcept E:\n    def f():\n" + "        x\n" * 60, {"function-lines": 61}),
        (f"class A:\n    def __init__(self, {', '.join(f'a{n}' for n in range(11))}): ...\n", {"arguments": 11}),
        (f"class A:\n    def __init__(self, *, {', '.join(f'a{n}' for n in range(10))}): ...\n", {}),
    ],
)
def test_the_measure_itself(source, wanted):
    assert {kind: figure for kind, _, figure in measured(source, "m") if figure > LIMITS[kind]} == wanted
