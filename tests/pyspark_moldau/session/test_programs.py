"""Goal: Spark's Python processes start fast, and no other user can choose what they run.

Method: the wrapper runs with the path that Spark gives it; directories that others could write to stand in the way.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

pyspark = pytest.importorskip("pyspark")

from pyspark_moldau.session import programs, sessions  # noqa: E402 - pyspark is looked for first

LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
SHOW = (
    "import importlib.util, os, sys\n"
    "print(importlib.util.find_spec('pyspark').origin, importlib.util.find_spec('py4j').origin)\n"
    "print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')\n"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Makes ``tmp_path`` the directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    programs._directory_of_process.cache_clear()
    return tmp_path


def shown(program, *path):
    words = [program, "-c", SHOW, "a b", "c"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_wrapper_takes_the_archives_off_the_path(temporary):
    program = programs.python_for_workers(programs.own_directory())
    (py4j,) = LIBRARY.glob("py4j-*-src.zip")
    assert stat.S_IMODE(os.stat(program).st_mode) == 0o755, "no other user can write to it"
    places, path = shown(program, LIBRARY / "pyspark.zip", py4j, "/jar", temporary).splitlines()
    assert places.split()[0] == pyspark.__file__
    assert Path(places.split()[1]).is_file()
    assert path == f"/jar:{temporary}|a b|c"
    assert shown(program, "/x", LIBRARY / "pyspark.zip").splitlines()[1].split("|")[0] == f"/x:{LIBRARY}/pyspark.zip"
    assert programs.python_for_workers(programs.own_directory()) == program
    assert [path.name for path in programs.own_directory().iterdir()] == [Path(program).name]


def test_a_local_session_runs_the_wrapper(temporary, monkeypatch):
    """The choice of a user stays."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "python-of-a-user")
        monkeypatch.delenv(name)
    sessions._use_this_machine()
    wrapper = programs.python_for_workers(programs.own_directory())
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == wrapper
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-a-user")
    sessions._use_this_machine()
    assert os.environ["PYSPARK_PYTHON"] == "python-of-a-user"


@pytest.mark.parametrize("reason", ["another Spark", "PySpark elsewhere", "no programs", "a package without a file"])
def test_where_the_wrapper_does_not_help_there_is_none(temporary, monkeypatch, reason):
    if reason == "another Spark":
        monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    elif reason == "PySpark elsewhere":
        monkeypatch.setattr(programs.site, "getsitepackages", list)
    elif reason == "a package without a file":
        monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: SimpleNamespace(origin=None))
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert programs.python_for_workers(programs.own_directory()) == sys.executable


@pytest.mark.parametrize("taken", ["open to others", "link", "file", "another user's"])
def test_programs_are_only_kept_where_others_cannot_write(temporary, monkeypatch, taken):
    """Another user could make a directory of this name first, with a program in it that a session would run."""
    name = temporary / f"moldau-spark-{os.getuid()}"
    if taken == "open to others":
        name.mkdir()
        name.chmod(0o777)
    elif taken == "link":
        (temporary / "other").mkdir()
        name.symlink_to(temporary / "other")
    elif taken == "file":
        name.write_text("")
    else:
        uid = os.getuid()
        name = temporary / f"moldau-spark-{uid + 1}"
        name.mkdir(mode=0o700)
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    at_exit = []
    monkeypatch.setattr(programs.atexit, "register", lambda *given, **named: at_exit.append((given, named)))
    chosen = programs.own_directory()
    assert at_exit == [((shutil.rmtree, chosen), {"ignore_errors": True})], "it goes with the process"
    assert chosen not in (name, name.resolve())
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert programs.own_directory() == chosen


def test_processes_share_a_directory_that_is_their_own(temporary):
    assert programs.own_directory() == temporary / f"moldau-spark-{os.getuid()}"
    assert stat.S_IMODE(programs.own_directory().stat().st_mode) == 0o700
    assert programs.own_directory() == temporary / f"moldau-spark-{os.getuid()}"


def test_a_process_that_is_slower_leaves_no_draft(tmp_path, monkeypatch):
    """Another one makes the file between the look at it and the link."""
    path = tmp_path / "program"
    path.write_text("of the other")
    monkeypatch.setattr(Path, "exists", lambda path: False)
    programs.place(path, "of this one", 0o755)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("program", "of the other")]
