"""Goal: the suite wastes no processor time. Method: the table of ``support.order`` against the tree; the collector."""

import gc
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.order import SECONDS, SPREAD, TOGETHER, longest_first, portion_of
from support.shared import SharedResources

ROOT = Path(__file__).parents[1]


def test_files_of_the_order_exist():
    named = {*SECONDS, *SPREAD, *TOGETHER, *TOGETHER.values()}
    assert sorted(name for name in named if not (ROOT / name.partition("::")[0]).exists()) == []
    single = [name.partition("::") for name in SECONDS if "::" in name]
    assert {file for file, _, _ in single} <= SPREAD, "the tests of other files stay together"
    for file, _, test in single:
        text = (ROOT / file).read_text()
        name, _, case = test.rstrip("]").partition("[")
        assert f"def {name}(" in text
        assert not case or (ROOT / file).with_name("corpus").joinpath(f"{case}.json").exists()


def test_portions_are_files_sessions_or_single_tests():
    assert portion_of("tests/test_order.py::test_a[x::y]") == "tests/test_order.py"
    assert portion_of("tests/interop/test_kcat.py::test_a") == portion_of("tests/interop/test_clients.py::test_b")
    assert portion_of("tests/simulation/test_corpus.py::test_a[b]") == "tests/simulation/test_corpus.py::test_a[b]"


def test_files_with_the_shared_session_are_one_portion():
    """Two portions would start and stop the one Spark session of the process for each other."""
    pattern = re.compile(r"^from support\.spark\.shared import .*\bshared_", re.MULTILINE)
    users = [path for path in (ROOT / "tests").rglob("test_*.py") if pattern.search(path.read_text())]
    assert len(users) > 5
    portions = {portion_of(path.relative_to(ROOT).as_posix()) for path in users}
    assert portions == {"tests/pyspark_moldau"}


class Item:
    def __init__(self, nodeid):
        self.nodeid = nodeid
        self.path = Path(nodeid.partition("::")[0])


def test_the_longest_go_first_and_equals_stay():
    corpus = "tests/simulation/test_corpus.py::test_kept_runs_end_as_they_must"
    names = ["tests/a.py::b", "tests/a.py::a", f"{corpus}[other]", f"{corpus}[first-server-silent]", "tests/b.py::a"]
    ordered = [item.nodeid for item in longest_first([Item(name) for name in names])]
    assert ordered == [names[3], names[2], names[0], names[1], names[4]]


def test_waiting_portions_are_spread_among_computing_ones():
    waiting = [f"tests/processes/test_{number}.py::x" for number in range(4)]
    computing = [f"tests/test_{number}.py::x" for number in range(12)]
    ordered = [item.nodeid for item in longest_first([Item(name) for name in computing + waiting])]
    assert [ordered.index(name) for name in waiting] == [0, 4, 8, 12]
    assert [name for name in ordered if name in computing] == computing


def test_shared_resources_end_with_the_last_test():
    """A cluster of all clients' tests does not run on while other files are tested."""
    events = []

    @contextmanager
    def cluster():
        events.append("started")
        yield "address"
        events.append("stopped")

    shared = SharedResources()
    names = ["tests/interop/test_clients.py::a", "tests/a.py::b", "tests/interop/test_kcat.py::c", "tests/z.py::d"]
    shared.collected([Item(name) for name in names])
    for name in names:
        shared.test_begins(name)
        if name.startswith("tests/interop"):
            assert shared.get("cluster", cluster) == shared.get("cluster", cluster) == "address"
        events.append(name)
        shared.test_ended(name)
    assert events == ["started", *names[:3], "stopped", names[3]]


def test_a_portion_leaves_no_environment_variables(monkeypatch):
    """A Spark session's variables kept all later nodes of the same process from being forks."""
    monkeypatch.setenv("MOLDAU_KEPT", "old")
    monkeypatch.setenv("MOLDAU_GONE", "old")
    shared = SharedResources()
    names = ["tests/a.py::a", "tests/a.py::b"]
    shared.collected([Item(name) for name in names])
    running = os.environ["PYTEST_CURRENT_TEST"]
    os.environ.update({"MOLDAU_KEPT": "new", "MOLDAU_MADE": "new"})
    del os.environ["MOLDAU_GONE"]
    shared.test_ended(names[0])
    assert os.environ["MOLDAU_MADE"] == "new", "the portion goes on"
    shared.test_ended(names[1])
    assert "MOLDAU_MADE" not in os.environ
    assert (os.environ["MOLDAU_KEPT"], os.environ["MOLDAU_GONE"]) == ("old", "old")
    assert os.environ["PYTEST_CURRENT_TEST"] == running


def test_a_run_that_is_cut_short_ends_what_is_shared():
    events = []

    @contextmanager
    def cluster():
        yield "address"
        events.append("stopped")

    shared = SharedResources()
    shared.test_begins("tests/interop/test_clients.py::a")
    shared.get("cluster", cluster)
    shared.close()
    shared.close()
    assert events == ["stopped"]


def test_collected_modules_are_left_out_of_garbage_collection():
    """Each of the thousands of simulated runs would otherwise spend a fifth of a second on them."""
    assert gc.get_freeze_count() > 10_000


@pytest.mark.parametrize(("following", "is_exempt"), [("tests/a.py::c", False), ("tests/b.py::a", True)])
def test_leftovers_of_a_file_are_left_out_too(request, monkeypatch, following, is_exempt):
    """Reports of tests, and modules that tests load, would make each later simulated run slower."""
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    monkeypatch.setattr(conftest, "SHARED", SharedResources())
    left = [[]]
    steps = conftest.pytest_runtest_protocol(Item("tests/a.py::b"), Item(following))
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(None)
    assert all(each is not left for each in gc.get_objects()) == is_exempt
