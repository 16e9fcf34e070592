"""Goal: ``pytest --forks`` reports what one process would report, whatever a test does to its process.

Method: a small suite of its own, run by another pytest with and without forks.
"""

import re
import signal
import tomllib
from pathlib import Path

import pytest

from support.kit.own_pytest import run_pytest

CONFTEST = """
import os, pytest
from support.forked import add_option, run_forked

def pytest_addoption(parser):
    add_option(parser)

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    return run_forked(session)

def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"begun in {os.getpid()}")
"""
MANY_ENDS = """
import os, pytest, warnings

@pytest.fixture(scope="module")
def kept():
    print("made in", os.getpid())
    yield os.getpid()
    print("ended in", os.getpid())

def test_passes(kept, tmp_path):
    (tmp_path / "file").write_text("x")
    assert kept == os.getpid()

def test_fails(kept):
    print("printed words")
    os.write(2, b"words of a descriptor")
    assert kept == 1

@pytest.mark.skip(reason="for a reason")
def test_skipped(): pass

@pytest.mark.xfail(strict=True)
def test_expected(): assert False

def test_error_of_a_fixture(absent): pass

@pytest.mark.filterwarnings("default")
def test_warns(): warnings.warn("an omen")
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def counts(done):
    """The numbers of pytest's last line."""
    return re.sub(r" in [\d.]+s.*", "", done.stdout.splitlines()[-1])


def test_forks_report_what_one_process_does(suite):
    for name in "abc":
        (suite / f"test_{name}.py").write_text(MANY_ENDS)
    forked, alone = (run_pytest(suite, "-rA", "--forks", number) for number in ("2", "0"))
    assert counts(forked) == counts(alone)
    assert counts(forked) == "3 failed, 6 passed, 3 skipped, 3 xfailed, 3 warnings, 3 errors"
    assert forked.returncode == alone.returncode == 1
    for words in ("printed words", "words of a descriptor", "for a reason", "fixture 'absent' not found", "an omen"):
        assert forked.stdout.count(words) == alone.stdout.count(words) > 0, words
    forks = set(re.findall(r"made in (\d+)", forked.stdout))
    assert 1 <= len(forks) <= 2, "a quick one may run all files"
    assert forks.isdisjoint(re.findall(r"begun in (\d+)", forked.stdout))
    assert re.findall(r"made in (\d+)", alone.stdout) == 3 * re.findall(r"begun in (\d+)", alone.stdout)


def test_forks_share_the_directory_that_is_named(suite):
    """Pytest empties it when it is first asked for, so that must not happen in each fork."""
    for name in "ab":
        (suite / f"test_{name}.py").write_text("def test_writes(tmp_path): (tmp_path / 'written').touch()")
    done = run_pytest(suite, "--forks", "2", "--basetemp", str(suite / "named"))
    assert counts(done) == "2 passed", done.stdout
    assert len(list(suite.glob("named/fork-*/test_writes[0-9]/written"))) == 2


def test_directories_of_passed_tests_go(suite, tmp_path_factory, monkeypatch):
    """Those of one whole run take gigabytes; what a failed test wrote stays to be looked at."""
    root = tmp_path_factory.mktemp("root")
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(root))
    settings = Path(__file__).parents[1] / "pyproject.toml"
    kept = tomllib.loads(settings.read_text())["tool"]["pytest"]["ini_options"]["tmp_path_retention_policy"]
    (suite / "pytest.ini").write_text(f"[pytest]\ntmp_path_retention_policy = {kept}\n")
    write = "(tmp_path_factory.mktemp('shared') / 'written').touch(); (tmp_path / 'written').touch()"
    for name in "ab":
        (suite / f"test_{name}.py").write_text(f"def test_writes(tmp_path, tmp_path_factory): {write}")
    assert counts(run_pytest(suite, "--forks", "2")) == "2 passed"
    assert list(root.rglob("written")) == []
    (suite / "test_b.py").write_text(f"def test_writes(tmp_path, tmp_path_factory): {write}; assert False")
    assert counts(run_pytest(suite, "--forks", "2")) == "1 failed, 1 passed"
    # Pytest numbers the directories of a fork, and a quick fork may run both files.
    left = sorted(path.parent.name.rstrip("0123456789") for path in root.rglob("written"))
    assert left == ["shared", "shared", "test_writes"]


def test_a_dead_process_fails_its_test_alone(suite):
    (suite / "test_a.py").write_text("import os\ndef test_1(): pass\ndef test_2(): os._exit(3)\ndef test_3(): pass\n")
    (suite / "test_b.py").write_text("def test_4(): pass\n")
    done = run_pytest(suite, "--forks", "2")
    assert counts(done) == "1 failed, 3 passed"
    assert "the process that ran this test ended with exit code 3" in done.stdout
    assert "test_a.py::test_2" in done.stdout


@pytest.mark.parametrize(
    ("words", "test", "last"),
    [
        (["-x"], "def test_1(): assert False", "1 failed"),
        ([], "import pytest\ndef test_1(): pytest.exit('enough')", "no tests ran"),
    ],
)
def test_no_more_tests_begin_when_one_says_so(suite, words, test, last):
    (suite / "test_a.py").write_text(f"{test}\ndef test_2(): pass\ndef test_3(): pass\n")
    done = run_pytest(suite, "--forks", "2", *words)
    assert counts(done) == last
    assert done.returncode in (1, 2)


def test_an_interrupt_ends_all_processes_in_order(suite):
    """Fixtures of the test that runs are torn down, and the run says that it was interrupted."""
    (suite / "test_a.py").write_text(
        """
import os, pathlib, pytest, signal, time
HOME = pathlib.Path(__file__).parent

@pytest.fixture
def kept():
    yield
    (HOME / "torn-down").touch()

def test_waits(kept):
    (HOME / "begun").touch()
    time.sleep(600)
"""
    )
    (suite / "test_b.py").write_text(
        """
import os, pathlib, signal, time
def test_interrupts():
    while not (pathlib.Path(__file__).parent / "begun").exists():
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGINT)
"""
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have begun this run without it
    try:
        done = run_pytest(suite, "--forks", "2")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 2
    assert "KeyboardInterrupt" in done.stdout
    assert (suite / "torn-down").exists()


def test_a_process_that_cannot_begin_is_no_success(suite):
    """Tests that no process ran must not look like tests that passed."""
    (suite / "test_a.py").write_text("def test_1(): pass\n")
    with (suite / "conftest.py").open("a") as file:
        file.write("from support import forked\ndef fails(config, slot): raise OSError\nforked._separate = fails\n")
    done = run_pytest(suite, "--forks", "2")
    assert done.returncode == 3, done.stdout
    assert "ended with exit code 1 while it ran none" in done.stdout
