"""Goal: the folder of a job is made, keeps its job, and is another job's only before the first batch.

Method: all pairs of jobs, with topics and tables, before and after batches of the queries of the first one.
"""

import itertools
import json

import pytest

from pyspark_moldau.jobs.config import folders
from pyspark_moldau.jobs.config.folders import JOB, START, check_folder
from pyspark_moldau.jobs.config.settings import Section
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.files import OWNER

ROOT = Section("job.toml", "", {})
JOBS = [(kind, sink) for kind in ("load", "join") for sink in ("topic", "a table", "b table")]
BEFORE = {
    "new": [],
    "planned": ["main/offsets/0"],
    "letters planned": ["dead-letters/offsets/0"],
    "letters": ["letters/commits/0"],
    "run": ["main/commits/0"],
}
"""The files that the queries of a job have left."""


def sink_of(name, tmp_path):
    """Returns the sink of a job; the folder of a table has its owner."""
    if name == "topic":
        return name
    folder = tmp_path / name
    folder.mkdir(exist_ok=True)
    (folder / OWNER).touch()
    return folder


@pytest.mark.parametrize("before", BEFORE)
def test_a_folder_is_that_of_the_first_job_with_a_batch(tmp_path, before):
    for number, (first, second) in enumerate(itertools.product(JOBS, repeat=2)):
        checkpoint = tmp_path / "states" / str(number) / "of a job"  # none of its folders is there
        assert check_folder(ROOT, checkpoint, first[0], sink_of(first[1], tmp_path)) is False
        for name in BEFORE[before]:
            (checkpoint / name).parent.mkdir(parents=True)
            (checkpoint / name).touch()
        has_run = before in ("letters", "run")
        note = (checkpoint / JOB).read_text()
        if has_run and first != second:
            with pytest.raises(JobConfigError, match=rf"^job\.toml: \[run\] checkpoint: .* job \({first[0]} to "):
                check_folder(ROOT, checkpoint, second[0], sink_of(second[1], tmp_path))
            assert (checkpoint / JOB).read_text() == note
            continue
        assert check_folder(ROOT, checkpoint, second[0], sink_of(second[1], tmp_path)) is has_run
        assert json.loads((checkpoint / JOB).read_text())["kind"] == second[0]


@pytest.mark.parametrize("note", [None, "", "{", "[]", "7"])
def test_a_folder_without_a_note_becomes_the_jobs(tmp_path, note):
    """An earlier release left none; a user may delete it to change the sink."""
    (tmp_path / "main" / "commits").mkdir(parents=True)
    (tmp_path / "main" / "commits" / "0").touch()
    if note is not None:
        (tmp_path / JOB).write_text(note)
    assert check_folder(ROOT, tmp_path, "load", "topic") is True
    assert json.loads((tmp_path / JOB).read_text()) == {"kind": "load", "sink": "topic"}


@pytest.mark.parametrize("before", BEFORE)
def test_a_start_is_kept_for_queries_that_have_planned_a_batch(tmp_path, before):
    """One query that has planned a batch is enough: the others start there too, also the main one."""
    check_folder(ROOT, tmp_path, "load", "topic")
    (tmp_path / START).write_text("{}")
    for name in BEFORE[before]:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    check_folder(ROOT, tmp_path, "load", "topic")
    assert (tmp_path / START).exists() == (before in ("planned", "letters planned"))


def test_a_table_and_its_checkpoint_may_be_moved_together(tmp_path):
    (tmp_path / "one").mkdir()
    table = sink_of("one/table", tmp_path)
    check_folder(ROOT, tmp_path / "one" / "state", "load", table)
    (tmp_path / "one/state/main/commits").mkdir(parents=True)
    (tmp_path / "one/state/main/commits/0").touch()
    (tmp_path / "one").rename(tmp_path / "two")
    assert check_folder(ROOT, tmp_path / "two" / "state", "load", tmp_path / "two" / "table") is True


def test_a_lock_ends_with_the_run(tmp_path):
    """However it ends; another folder has a lock of its own."""
    for error in (ValueError("no"), KeyboardInterrupt()):
        with (
            pytest.raises(type(error)),
            folders.held(ROOT, tmp_path / "a" / "b"),
            folders.held(ROOT, tmp_path / "other"),
        ):
            raise error
    for _ in range(2):
        with folders.held(ROOT, tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b" / folders.LOCK).exists()
