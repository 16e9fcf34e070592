"""Goal: ``moldau pipeline`` refuses a wrong file in one line with exit code 2, before Spark starts."""

import json
import logging
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moldau.records import IMPLEMENTATION
from moldau_cli.commands import pipeline
from moldau_cli.main import main
from pyspark_moldau.jobs import load
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.queries.running import JobReport
from pyspark_moldau.session import packaging

COMMANDS = ("load", "aggregate", "sessions", "join", "export", "views build", "views list", "views follow")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_refused(command, tmp_path, capsys):
    assert main(["pipeline", *command.split(), str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file or directory; give the TOML file of a job" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_file_is_refused(command, tmp_path, capsys):
    file = tmp_path / "job.toml"
    file.write_text('[cluster]\n"bootstrap.servers" = "127.0.0.1:9092"\n[run]\ncheckpoint = "state"\ncoers = 2\n')
    assert main(["pipeline", *command.split(), str(file)]) == 2
    error_text = capsys.readouterr().err
    assert "[run] coers: unknown key; did you mean cores?" in error_text
    assert error_text.count("\n") == 1


def test_an_error_of_the_jvm_is_one_line(monkeypatch, tmp_path, capsys):
    """PySpark does not translate each of them; one of the file system is java.io.IOException."""
    text = "An error occurred while calling o1.start.\n: java.io.IOException: Mkdirs failed\n\tat org.A(B.java:1)"

    class Py4JJavaError(Exception):
        __module__ = "py4j.protocol"

    def fail(*_):
        raise Py4JJavaError(text)

    monkeypatch.setattr(load, "load_job", fail)
    assert main(["pipeline", "load", str(tmp_path / "job.toml")]) == 1
    assert capsys.readouterr().err == "moldau: java.io.IOException: Mkdirs failed\n"


def test_an_interrupt_is_no_traceback(monkeypatch, tmp_path, capsys, caplog):
    """py4j logs the calls that PySpark's handler of the signal interrupts, with all their frames."""

    def interrupted(*_):
        for text in ("Exception while sending command.", "KeyboardInterrupt while sending command."):
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                logging.exception(text)
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "load_job", interrupted)
    assert main(["pipeline", "load", str(tmp_path / "job.toml")]) == 130
    assert caplog.records == []
    assert capsys.readouterr().err.strip() in ("", "moldau: interrupted")
    logging.getLogger().error("heard")
    assert [record.getMessage() for record in caplog.records] == ["heard"]


@pytest.mark.parametrize(("files", "shown"), [((1, 1), False), ((20, 2), True), (None, False)])
def test_a_load_names_files_that_it_compacted(monkeypatch, tmp_path, capsys, files, shown):
    done = JobReport(rows={"main": 4}, batches={"main": 1}, late_rows=0, dead_letters={})
    monkeypatch.setattr(load, "load_job", lambda *_: None)
    monkeypatch.setattr(load, "run_load", lambda _: load.LoadReport(job=done, files=files))
    assert main(["pipeline", "load", str(tmp_path / "job.toml")]) == 0
    assert ("compacted     20 files into 2" in (found := capsys.readouterr().out)) == shown
    assert ("compacted" in found) == shown


def test_a_terminal_shows_that_a_job_runs(monkeypatch, tmp_path, capsys):
    """Spark takes seconds to start, and a job with an interval runs until it is interrupted."""
    shown = []

    def load_job(*_):
        shown.append(capsys.readouterr().err)
        raise JobConfigError("wrong")

    monkeypatch.setattr(load, "load_job", load_job)
    for is_terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=is_terminal: answer)
        assert main(["pipeline", "load", str(tmp_path / "job.toml")]) == 2
    assert ["Ctrl-C ends it" in text for text in shown] == [False, True]


def test_missing_packages_are_reported(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(pipeline, "PACKAGES", ("pyarrow", "no_such_package", "nor.this"))
    assert main(["pipeline", "load", str(tmp_path / "none.toml")]) == 2
    assert "pipeline jobs need no_such_package, nor.this, not installed here" in capsys.readouterr().err


def test_versions_of_a_view_are_switched(tmp_path, capsys):
    """Switching and listing need no Spark."""
    file = tmp_path / "view.toml"
    file.write_text(
        '[cluster]\n"bootstrap.servers" = "127.0.0.1:9092"\n[run]\ncheckpoint = "state"\n[source]\ntopics = ["t"]\n'
        '[view]\npath = "view"\nquery = "select 1"\n'
    )
    for number in (1, 2):
        folder = tmp_path / "view" / f"v{number}"
        folder.mkdir(parents=True)
        (folder / "version.json").write_text(
            f'{{"number": {number}, "form": "stream", "query_hash": "", "is_complete": true, "end_offsets": []}}'
        )
    assert main(["pipeline", "views", "follow", str(file)]) == 1
    assert "has no current version; build one and switch to it" in capsys.readouterr().err
    for version in ("1", "2"):
        assert main(["pipeline", "views", "switch", str(file), version]) == 0
    assert main(["pipeline", "views", "list", str(file)]) == 0
    listed = capsys.readouterr().out
    assert ["2", "stream", "yes", "current"] in [line.split() for line in listed.splitlines()]
    assert ["1", "stream", "yes", "former"] in [line.split() for line in listed.splitlines()]
    assert main(["pipeline", "views", "rollback", str(file)]) == 0
    assert capsys.readouterr().out == "version 1 is current again\n"
    assert main(["pipeline", "views", "switch", str(file), "7"]) == 2
    assert "no version 7; there are: 1, 2" in capsys.readouterr().err


IMPORTS = """
import cramjam, crc32c, fastavro, fastjsonschema, google.protobuf, lz4.frame, trio
import cryptography.hazmat.primitives.serialization.pkcs12 as stores
import moldau, moldau.records, pyspark_moldau
print(moldau.records.IMPLEMENTATION)
print(*(each.__file__ for each in (moldau, pyspark_moldau, trio, stores)), sep="\\n")
"""


def test_equal_contents_give_equal_packages(tmp_path, monkeypatch, capsys):
    """Without the libraries, which take most of the time."""
    monkeypatch.setattr(packaging, "ROOTS", ())
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    assert main(["pipeline", "package", str(first)]) == 0
    assert '"spark.executorEnv.PYTHONPATH" = "./moldau"' in capsys.readouterr().out
    assert main(["pipeline", "package", str(second)]) == 0
    assert first.read_bytes() == second.read_bytes()


def test_the_package_for_workers_is_whole(tmp_path, capsys):
    """A Python without any installed package imports Moldau from it, and what reads PKCS12 stores."""
    package = tmp_path / "package.zip"
    assert main(["--json", "pipeline", "package", str(package)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["spark.archives"] == f"{package}#moldau"
    place = tmp_path / "unpacked"
    with zipfile.ZipFile(package) as archive:
        archive.extractall(place)
        names = archive.namelist()
    words = [sys.executable, "-S", "-E", "-c", f"import sys; sys.path.insert(0, {str(place)!r})\n{IMPORTS}"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert found[0] == IMPLEMENTATION
    assert [Path(name).is_relative_to(place) for name in found[1:]] == [True] * 4
    assert not [name for name in names if {"__pycache__", "pyspark", "pandas"} & set(Path(name).parts)]


def test_an_unwritable_package_is_reported(tmp_path, capsys):
    assert main(["pipeline", "package", str(tmp_path / "none" / "x.zip")]) == 2
    (error_text,) = capsys.readouterr().err.splitlines()
    assert error_text.startswith(f"moldau: cannot write {tmp_path / 'none' / 'x.zip'}: No such file or directory")
