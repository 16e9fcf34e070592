"""The generator of mutants: each operator makes its change and no other, and trials find what a test notices."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from support.mutation.areas import AREAS, ROOT, module_name
from support.mutation.campaign import draw, known_survivors
from support.mutation.operators import mutants_of
from support.mutation.report import PageError, updated
from support.mutation.swap import NotSwappable, swap_in

SAMPLE = dedent('''
    """A sample."""
    from dataclasses import dataclass

    @dataclass
    class Batch:
        leader_epoch: int
        partition_epoch: int

    class Log:
        def append(self, batch: Batch, now_ms: int = 0) -> int:
            """Appends, unless the epoch is old."""
            assert batch is not None
            if batch.leader_epoch < self.epoch:
                raise ValueError(f"epoch {self.epoch + 1}")
            if not (self.open and self.ready):
                return min(self.end, 5)
            self.batches.append(batch)
            self.end += 1
            return self.end - 1
''')


def _changes(source):
    return [(each.operator, each.before, each.after) for each in mutants_of("sample", source)]


def test_each_operator_makes_its_change():
    changes = _changes(SAMPLE)
    assert ("comparison", "batch.leader_epoch < self.epoch", "batch.leader_epoch <= self.epoch") in changes
    assert ("field", "batch.leader_epoch", "batch.partition_epoch") in changes
    assert ("statement", "self.batches.append(batch)", "") in changes
    assert ("statement", "self.end += 1", "") in changes
    assert ("off-by-one", "self.end - 1", "self.end") in changes
    assert ("connective", "self.open and self.ready", "self.open or self.ready") in changes
    assert ("term-dropped", "self.open and self.ready", "self.ready") in changes
    assert ("negation", "not (self.open and self.ready)", "self.open and self.ready") in changes
    assert ("bound", "min(self.end, 5)", "max(self.end, 5)") in changes
    assert ("guard", "if batch.leader_epoch < self.epoch: ...", "") in changes


def test_words_defaults_and_assertions_stay():
    befores = [before for _, before, _ in _changes(SAMPLE)]
    assert not [before for before in befores if "is not None" in before or before == "self.epoch + 1"]
    assert not [before for before in befores if before.startswith("f'") or "Appends" in before]
    assert befores.count("0") == 0  # the default of now_ms


def test_a_mutant_differs_in_one_place_only():
    plain = subprocess.run(
        [sys.executable, "-c", "import ast, sys; print(ast.unparse(ast.parse(sys.stdin.read())))"],
        input=SAMPLE, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for mutant in mutants_of("sample", SAMPLE):
        changed = mutant.source().splitlines()
        assert changed != plain
        if mutant.operator in ("comparison", "field", "off-by-one", "bound"):
            assert sum(one != other for one, other in zip(changed, plain, strict=True)) == 1


def test_swapped_code_runs_where_the_function_is_held(monkeypatch):
    from moldau_broker.replication import timer_wheel

    path = ROOT / "data_plane/moldau_broker/replication/timer_wheel.py"
    held = timer_wheel.TimerWheel.cancel
    mutant = next(
        each for each in mutants_of(timer_wheel.__name__, path.read_text()) if each.place == "TimerWheel.cancel"
    )
    before = held.__code__
    try:
        swap_in(mutant)
        assert held.__code__.co_code != before.co_code
    finally:
        held.__code__ = before


def test_a_function_that_is_not_there_is_refused():
    mutant = next(mutants_of("moldau_broker.replication.timer_wheel", SAMPLE))
    with pytest.raises(NotSwappable, match=r"no function Log\.append"):
        swap_in(mutant)


def test_areas_name_files_and_tests_that_exist():
    for area in AREAS:
        assert area.files()
        for path in area.files():
            assert path.exists()
            assert module_name(path).startswith(("moldau", "pyspark_moldau"))
        for test in area.tests:
            assert (ROOT / test).exists(), test
    assert draw(AREAS[0], 5, 1) == draw(AREAS[0], 5, 1)


@pytest.mark.proof
def test_known_survivors_are_mutants_of_the_present_code():
    keys = {
        mutant.key
        for area in AREAS
        for path in area.files()
        if any(key.startswith(f"{module_name(path)}:") for key in known_survivors())
        for mutant in mutants_of(module_name(path), path.read_text())
    }
    assert not set(known_survivors()) - keys


def test_the_page_keeps_rows_of_other_draws():
    """The score of a draw when it was new stays; what other draws left open stays listed."""
    names = [area.name for area in AREAS]
    row = {"test": 17, "seed": 2, "survived": 1, "uncalled": 0, "equivalent": 3, "seconds": 5}
    survivor = {"key": "a.b:f: 1 -> 2", "line": 3, "outcome": "survived"}
    head = "| core | draw | drawn | first | tests | seeds | equivalent | open | score |\n" + "|---" * 9 + "|\n"
    page = f"# Page\n\n{head}| replica | 1 | 25 | | 25 | 0 | 0 | 0 | 100% |\n\nText.\n"
    first = updated(page, {"replica": {**row, "survivors": [survivor]}}, 2, names)
    assert "| replica | 1 | 25 | | 25 | 0 | 0 | 0 | 100% |\n| replica | 2 | 23 | 95% | 17 | 2 | 3 | 1 | 95% |" in first
    assert first.endswith("Text.\n\n## Open\n- replica, draw 2: `a.b:f: 1 -> 2`\n")
    mended = {**row, "test": 18, "survived": 0, "survivors": []}
    both = updated(first, {"replica": mended, "quotas": {**row, "survivors": [survivor]}}, 2, names)
    assert "| replica | 2 | 23 | 95% | 18 | 2 | 3 | 0 | 100% |" in both
    assert both.index("| quotas | 2 | 23 | 95% |") < both.index("| replica | 1 |")
    assert both.endswith("## Open\n- quotas, draw 2: `a.b:f: 1 -> 2`\n")
    with pytest.raises(PageError, match="no line"):
        updated("# Page\n", {}, 1, names)


def test_the_kept_page_can_be_updated():
    text = (ROOT / "docs/proof/mutation.md").read_text()
    assert updated(text, {}, 1, [area.name for area in AREAS]) == text


@pytest.mark.proof
def test_a_trial_tells_found_mutants_from_survivors(tmp_path):
    result = tmp_path / "result.json"
    arguments = ["--area", "delayed operations", "--mutants", "20", "--work", str(tmp_path), "--result", str(result)]
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    subprocess.run(
        [sys.executable, "-m", "support.mutation.campaign", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=300,
    )  # fmt: skip
    assert '"test": 1' in result.read_text()
