"""The document of planted bugs: measured verdicts, and the bugs that the suites of single parts plant."""

import inspect
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from moldau_jepsen.simulation.mutants.mutant_table import document
from moldau_jepsen.simulation.mutants.mutants import MUTANTS, MutantVerdict, owner_of, planted
from moldau_jepsen.simulation.mutants.suites import load_suites

ROOT = Path(__file__).parents[4]
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
FOUND = MutantVerdict(
    name="sequence-numbers-ignored",
    area="log",
    text="sequence numbers are not looked at",
    profile="replication",
    found=True,
    seeds=3,
    found_by="producer-sequence",
    detail="seed 3: ...",
)
SURVIVOR = MutantVerdict(
    name="gremlin", area="client", text="bites", profile="swarm", found=False, seeds=200, found_by="", detail=""
)


def test_verdicts_and_suites_of_single_parts_are_listed():
    text = document([FOUND, SURVIVOR], ROOT)
    assert "1 of 2 found; at most 3 seeds." in text
    what = "sequence numbers are not looked at"
    row = f"| `sequence-numbers-ignored` | log | {what} | replication | 3 | `producer-sequence` |"
    assert row in text.splitlines()
    assert "| `gremlin` | client | bites | swarm |  | **survived 200 seeds** |" in text.splitlines()
    for suite in load_suites(ROOT):
        assert f"**{suite.area}**, {len(suite.bugs)} bugs (`{suite.path}`):" in text
        for bug in suite.bugs:
            assert f"| `{bug.name}` | {bug.text} | {', '.join(bug.judges)} |" in text.splitlines()


def test_each_rule_alone_has_its_row():
    alone = replace(FOUND, rule="duplicate")
    helpless = replace(SURVIVOR, rule="one-leader")
    text = document([FOUND, alone, helpless], ROOT)
    assert "1 of 1 found; at most 3 seeds." in text  # trials of rules are no hunts of mutants
    assert "| `duplicate` | `sequence-numbers-ignored` | replication | 3 |" in text.splitlines()
    assert "| `one-leader` | `gremlin` | swarm | **none in 200 seeds** |" in text.splitlines()
    assert "Each rule alone" not in document([FOUND], ROOT)


def test_every_bug_has_a_name_of_its_own_and_a_judge():
    bugs = [bug for suite in load_suites(ROOT) for bug in suite.bugs]
    names = [*MUTANTS, *(bug.name for bug in bugs)]
    assert len(set(names)) == len(names)
    for bug in bugs:
        assert bug.text, bug.name
        assert bug.judges, bug.name


def test_bugs_of_single_parts_leave_nothing_behind():
    for bug in (bug for suite in load_suites(ROOT) for bug in suite.bugs):
        places = [(owner_of(given, name), name) for given, name, _ in bug.patches()]
        before = [vars(owner)[name] for owner, name in places]
        with planted(bug):
            assert [vars(owner)[name] for owner, name in places] != before, bug.name
        assert [vars(owner)[name] for owner, name in places] == before, bug.name


def test_each_replaced_import_is_used_where_it_is_replaced():
    """A bug whose code has moved to another module would change nothing, and survive."""
    bugs = [*MUTANTS.values(), *(bug for suite in load_suites(ROOT) for bug in suite.bugs)]
    replaced = [
        (given, name, bug.name)
        for bug in bugs
        for given, name, _ in bug.patches()
        if isinstance(given, ModuleType) and getattr(vars(given)[name], "__module__", None) != given.__name__
    ]
    assert len(replaced) > 10
    names = {given: names_in(given) for given, *_ in replaced}
    assert [bug for given, name, bug in replaced if name not in names[given]] == []


def test_each_replacement_takes_what_the_original_takes():
    """One that lacks a parameter, or demands one more, would end its node or the test instead of doing what it says."""
    checked = 0
    for bug in [*MUTANTS.values(), *(bug for suite in load_suites(ROOT) for bug in suite.bugs)]:
        for given, name, replacement in bug.patches():
            original = vars(owner_of(given, name))[name]
            if inspect.isfunction(original) and inspect.isfunction(replacement):
                checked += 1
                assert left_out(original, replacement) == [], f"{bug.name}: {name}"
                assert demanded_besides(original, replacement) == [], f"{bug.name}: {name}"
    assert checked > 200


def left_out(original, replacement):
    """Returns the parameters of a function that another one cannot be called with."""
    has, takes = inspect.signature(original).parameters, inspect.signature(replacement).parameters
    kinds = {each.kind for each in takes.values()}
    positional = [name for name, each in has.items() if each.kind in BY_POSITION]
    room = sum(each.kind in BY_POSITION for each in takes.values())
    lacking = [] if inspect.Parameter.VAR_POSITIONAL in kinds else positional[room:]
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        named = [name for name, each in has.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
        lacking += [name for name in named if name not in takes]
    return lacking


def demanded_besides(original, replacement):
    """Returns the parameters without a default that no call of the original gives."""
    has, takes = inspect.signature(original).parameters, inspect.signature(replacement).parameters
    demanded = {name: each for name, each in takes.items() if each.default is inspect.Parameter.empty}
    if inspect.Parameter.VAR_POSITIONAL in {each.kind for each in has.values()}:
        return []
    room = sum(each.kind in BY_POSITION for each in has.values())
    positional = [name for name, each in demanded.items() if each.kind in BY_POSITION][room:]
    named = [name for name, each in demanded.items() if each.kind is inspect.Parameter.KEYWORD_ONLY]
    return [*positional, *(name for name in named if name not in has)]


def names_in(module):
    """The global names and attributes that the functions of a module use."""
    found, left = set(), [compile(Path(module.__file__).read_text(), module.__file__, "exec")]
    for code in left:
        inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        left.extend(inner)
        found.update(name for each in inner for name in each.co_names)
    return found


def test_a_folder_without_suites_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        document([FOUND], tmp_path)
