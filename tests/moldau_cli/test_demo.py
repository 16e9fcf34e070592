"""Goal: the demo runs from start to end on any file, ends with the proof, and leaves no process behind.

Bad input is reported in one line. Method: the demo as a separate process, without Spark, which has its own tests.
"""

import json
import sys
from pathlib import Path

import pytest

from moldau_cli.main import main
from moldau_jepsen.launcher import open_cluster
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
