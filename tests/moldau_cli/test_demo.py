"""Goal: the demo runs from start to end on any file, ends with the proof, and leaves no process behind.

Bad input is reported in one line. Method: the demo as a separate process, without Spark, which has its own tests.
"""

import json
import sys
from pathlib import Path

import pytest

from moldau_cli.demo import run as demo_run
from moldau_cli.main import main
from moldau_jepsen.launcher import LauncherError, open_cluster
from moldau_jepsen.launcher.process import ProcessState
from support.commands import run_command
from support.started import run_started

pytestmark = pytest.mark.processes

LINES = 60_000


def demo(*arguments, cwd):
    return run_started("demo", "--no-spark", *arguments, timeout=600, cwd=cwd)


def test_the_demo_proves_exactly_once_on_any_file(tmp_path):
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"k{n % 50} {n}\n" for n in range(LINES)))
    run = demo("--input", "lines.txt", "--dir", "out", "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["acknowledged"] == document["records"] == LINES
    assert document["exactly_once"] is True
    assert [reader["seen"] for reader in document["readers"]] == [LINES]
    report = Path(document["report"]).read_text(encoding="utf-8")
    assert f"Each of {LINES:,} acknowledged records arrived exactly once." in report
    nodes = open_cluster(tmp_path / "out" / "cluster")
    assert {nodes.state(node.node_id) for node in nodes.nodes} == {ProcessState.STOPPED}


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_a_missing_package_of_spark_is_reported_first(missing, tmp_path, monkeypatch, capsys):
    """The demo once ended with a traceback, after all its other phases."""
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["demo", "--dir", str(tmp_path / "out")]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    assert f"needs {missing}, not installed here: pip install 'moldau[spark]', or leave" in reported.err
    assert "--no-spark" in reported.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "missing"], "cannot read missing"),
        (["--input", "empty"], "empty is empty"),
        (["--input", "empty", "--bogus"], "No such option"),
        (["--input", "full/file", "--dir", "full"], "holds something other than a demo"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, arguments, words):
    (tmp_path / "empty").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("line\n")
    run = run_command("demo", "--no-spark", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert words in run.stderr.splitlines()[-1]
    assert (tmp_path / "full" / "file").exists()


@pytest.mark.parametrize(
    ("directory", "words"),
    [("full", "holds something other than a demo"), ("full/file", "Not a directory"), ("full/file/d", "Not a dir")],
)
def test_a_wrong_directory_is_refused_before_any_reading(tmp_path, monkeypatch, directory, words):
    """The input was read first, and typed input was lost."""
    monkeypatch.setattr(demo_run, "load_file", lambda _: pytest.fail("the input was read"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = run_command("demo", "--no-spark", "--input", "/dev/stdin", "--dir", directory, cwd=tmp_path)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert words in refused.stderr


def test_files_put_there_meanwhile_are_kept(tmp_path, monkeypatch):
    def load(_):
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "file").touch()
        return []

    monkeypatch.setattr(demo_run, "load_file", load)
    refused = run_command("demo", "--no-spark", "--input", "/dev/stdin", "--dir", "new", cwd=tmp_path)
    assert refused.returncode == 2
    assert "new holds something other than a demo" in refused.stderr
    assert (tmp_path / "new" / "file").exists()


@pytest.mark.parametrize("directory", [".", "../link"])
def test_a_directory_is_emptied_and_not_replaced(tmp_path, monkeypatch, directory):
    """The demo deleted its working directory and failed there, and refused a link with the reason "None"."""

    def start_cluster(*_):
        assert Path.cwd() == target
        raise LauncherError("not started")

    monkeypatch.setattr(demo_run, "start_cluster", start_cluster)
    target = tmp_path / "target"
    (target / "cluster").mkdir(parents=True)
    (target / demo_run.MARKER).touch()
    (target / "report.html").touch()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "lines").write_text("line\n")
    ended = run_command("demo", "--no-spark", "--input", "../lines", "--dir", directory, cwd=target)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "moldau: not started")
    assert [path.name for path in target.iterdir()] == [demo_run.MARKER]


def test_the_directory_of_a_running_demo_is_refused(tmp_path, monkeypatch):
    """Its cluster was deleted under it; it ended with a traceback, minutes later."""
    (tmp_path / "lines").write_text("line\n")
    command = ("demo", "--no-spark", "--input", "lines", "--dir", "out")
    seconds = []

    def start_cluster(directory, _):
        (directory / "broker-1").mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.setattr(demo_run, "load_file", lambda _: pytest.fail("the input was read"))
            seconds.append(run_command(*command, cwd=tmp_path))
        assert (directory / "broker-1").exists()
        raise LauncherError("not started")

    monkeypatch.setattr(demo_run, "start_cluster", start_cluster)
    first = run_command(*command, cwd=tmp_path)
    assert first.stderr.splitlines()[-1] == "moldau: not started"
    (second,) = seconds
    assert second.returncode == 1
    assert second.stderr == f"moldau: another demo runs in {tmp_path}/out; wait for it, or give another --dir\n"
