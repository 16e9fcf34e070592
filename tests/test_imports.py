"""Goal: packages import downwards only, pure modules stay pure, and no circle of imports grows.

Method: import-linter with the contracts of pyproject.toml; strongly connected components of the import graph, with
imports for type checkers included.
"""

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("moldau", "moldau_quorum", "moldau_broker", "pyspark_moldau", "moldau_jepsen", "moldau_cli")
CIRCLE_MODULES_MAX = 3
"""Two or three modules of one folder may name each other's types: they are parts of one thing."""


def test_import_contracts_hold():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
    assert "0 broken" in run.stdout


def circles(imported_by):
    """Returns the strongly connected components of more than one module, by mutual reachability."""
    reached = {}
    for module in imported_by:
        seen, waiting = set(), [module]
        while waiting:
            for found in imported_by[waiting.pop()] - seen:
                seen.add(found)
                waiting.append(found)
        reached[module] = seen
    return {
        frozenset(other for other in reached[one] if one in reached[other]) for one in reached if one in reached[one]
    }


def test_circles_of_imports_stay_small_and_in_one_folder():
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    found = circles({module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules})
    assert all(len(circle) <= CIRCLE_MODULES_MAX for circle in found), found
    across = [sorted(circle) for circle in found if len({module.rpartition(".")[0] for module in circle}) > 1]
    assert across == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}
