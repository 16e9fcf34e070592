"""Goal: a compaction of a Parquet table loses no row and keeps none twice, wherever it was killed.

Method: folders as a compaction leaves them, and a stand-in for Spark's session; Spark does not run.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.files import OWNER
from pyspark_moldau.jobs.tables import compact_table, finish_compaction


def test_a_reader_leaves_a_running_compaction_alone(tmp_path):
    """The compaction has written a file, and no plan yet."""
    written = tmp_path / "_moldau_staging" / "0" / "new.parquet"
    written.parent.mkdir(parents=True)
    written.touch()
    finish_compaction(tmp_path)
    assert written.exists()


@pytest.mark.parametrize("has_another", [False, True])
def test_no_file_is_removed_whose_rows_are_not_elsewhere(tmp_path, has_another):
    old, new, other = (f"d=1/batch=0/{name}.parquet" for name in ("old", "compacted-new", "compacted-other"))
    (tmp_path / old).parent.mkdir(parents=True)
    (tmp_path / old).touch()
    moves = [("_moldau_staging/0/new.parquet", new)]
    if has_another:
        (tmp_path / other).touch()
        moves.append(("_moldau_staging/0/other.parquet", other))
    plan = {"moves": moves, "gone": [old]}
    (tmp_path / "_moldau_compaction.json").write_text(json.dumps(plan))
    with pytest.raises(JobError, match="is missing, and no file that it replaces was removed"):
        finish_compaction(tmp_path)
    assert (tmp_path / old).exists()


def test_a_compaction_goes_on_after_a_kill_between_its_removals(tmp_path, monkeypatch):
    """Without its plan, the rows of the files that are left would be in the table twice."""
    new, gone = "d=1/batch=0/compacted-new.parquet", [f"d=1/batch={n}/old.parquet" for n in range(2)]
    for name in (new, *gone):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    plan = {"moves": [("_moldau_staging/0/new.parquet", new)], "gone": gone}
    (tmp_path / "_moldau_compaction.json").write_text(json.dumps(plan))
    unlink = Path.unlink

    def killed(path, *, missing_ok=False):
        if path == tmp_path / gone[1]:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            finish_compaction(tmp_path)
    finish_compaction(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [new]


class Compacting:
    """Stands in for Spark's session and its readers and writers; it keeps what is read, and writes a file."""

    read = write = property(lambda self: self)

    def __init__(self, **settings):
        self.settings = settings
        self.written_with = {}
        self.conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.__delitem__)

    def schema(self, schema):
        return self

    def mode(self, mode):
        return self

    def coalesce(self, count):
        return self

    def parquet(self, *paths):
        if "_moldau_staging" in paths[0]:
            self.written_with = dict(self.settings)
            Path(paths[0]).mkdir(parents=True)
            (Path(paths[0]) / "new.parquet").touch()
        else:
            self.found = list(paths)
        return self


def test_a_compaction_leaves_the_newest_batch_alone(tmp_path):
    """Its replay overwrites its own folder, and would add its rows to those that were compacted."""
    owner = {"query": "q", "format": "parquet", "partition_by": ["d"]}
    owner["columns"] = {"type": "struct", "fields": []}
    tmp_path.joinpath(OWNER).write_text(json.dumps(owner))
    files = [tmp_path / f"d=1/batch={batch}/part.parquet" for batch in range(3)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    session = Compacting()
    assert compact_table(session, tmp_path, files_min=2) == (3, 2)
    assert session.found == [str(file) for file in files[:2]]
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet"))
    assert left == ["d=1/batch=0/compacted-new.parquet", "d=1/batch=2/part.parquet"]


@pytest.mark.parametrize("settings", [{}, {"spark.sql.parquet.outputTimestampType": "INT96"}])
def test_a_compaction_keeps_the_type_of_timestamps(tmp_path, settings):
    """Other readers take Spark's own type for nanoseconds, in which the year 9999 is another one."""
    owner = {"query": "q", "format": "parquet", "partition_by": [], "columns": {"type": "struct", "fields": []}}
    tmp_path.joinpath(OWNER).write_text(json.dumps(owner))
    for batch in range(3):
        (tmp_path / f"batch={batch}").mkdir()
        (tmp_path / f"batch={batch}/part.parquet").touch()
    session = Compacting(**settings)
    assert compact_table(session, tmp_path, files_min=2) == (3, 2)
    assert session.written_with == {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
    assert session.settings == settings


@pytest.mark.parametrize("settings", [{}, {"spark.sql.parquet.outputTimestampType": "INT96"}])
def test_a_compaction_that_fails_leaves_the_session_as_it_was(tmp_path, settings):
    """A full disk ends it, and the session may be the user's own."""
    owner = {"query": "q", "format": "parquet", "partition_by": [], "columns": {"type": "struct", "fields": []}}
    tmp_path.joinpath(OWNER).write_text(json.dumps(owner))
    for batch in range(3):
        (tmp_path / f"batch={batch}").mkdir()
        (tmp_path / f"batch={batch}/part.parquet").touch()
    session = Compacting(**settings)
    session.coalesce = lambda count: (tmp_path / "no").read_text()
    with pytest.raises(FileNotFoundError):
        compact_table(session, tmp_path, files_min=2)
    assert session.settings == settings
    assert len(list(tmp_path.rglob("part.parquet"))) == 3


@pytest.mark.parametrize("moved", [0, 1, 2])
@pytest.mark.parametrize("removed", [0, 1])
def test_a_compaction_is_finished_from_any_step(tmp_path, moved, removed):
    """The plan is complete; some files were moved or removed before the kill."""
    moves = [(f"_moldau_staging/0/{n}.parquet", f"d=1/batch=0/compacted-{n}.parquet") for n in range(2)]
    gone = [f"d=1/batch={n}/old.parquet" for n in range(2)]
    for name in gone[removed:]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
        (tmp_path / name).with_name(".old.parquet.crc").write_text("its checksum, of Hadoop")
    for index, (source, target) in enumerate(moves):
        path = tmp_path / (target if index < moved else source)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"new {index}")
    (tmp_path / "_moldau_compaction.json").write_text(json.dumps({"moves": moves, "gone": gone}))
    finish_compaction(tmp_path)
    finish_compaction(tmp_path)
    left = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {target: f"new {index}" for index, (_, target) in enumerate(moves)}
