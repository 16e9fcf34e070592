"""Goal: a build of a view that was killed at any step is continued by the next one.

Method: the folder as the killed build leaves it; the query that fills the version is a function of the test.
"""

import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from pyspark.errors import AnalysisException

from pyspark_moldau.jobs import views
from pyspark_moldau.jobs.config.job_config import AVAILABLE_NOW
from pyspark_moldau.jobs.errors import JobError

VIEW = """
[cluster]
"bootstrap.servers" = "127.0.0.1:9092"
[run]
checkpoint = "state"
[source]
topics = ["flights"]
[view]
path = "delays"
query = "select 1"
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "check_job", lambda *given, **named: None)
    monkeypatch.setattr(views, "_run_stream", lambda job, number, session, timeout_s: f"built {number}")
    (tmp_path / "job.toml").write_text(VIEW)
    return views.view_job(tmp_path / "job.toml")


@pytest.mark.parametrize("left", [(), ("version.json.0123",)], ids=["before the note", "within the note"])
@pytest.mark.parametrize("before", [0, 1])
def test_a_version_without_a_note_is_begun_again(job, left, before):
    for number in range(1, before + 1):
        assert views.build(job, session="no session") == (views.versions_of(job.path)[-1], f"built {number}")
    folder = job.path / f"v{before + 1}"
    folder.mkdir(parents=True)
    for name in left:
        (folder / name).write_text("{")
    version, report = views.build(job, session="no session")
    assert (version.number, version.is_complete, report) == (before + 1, True, f"built {before + 1}")


@pytest.fixture
def with_letters(monkeypatch):
    """The source of the view has dead letters; its queries are kept apart by their writers."""
    monkeypatch.setattr(views, "read_dead_letters", lambda *given: "letters")
    monkeypatch.setattr(views, "topic_writer", lambda *given: "to the topic of dead letters")


def test_dead_letters_have_one_query_at_a_time(job, with_letters):
    """A version is built beside one that is followed: both would go on from the same checkpoint."""
    for _ in range(2):
        with views._letters(job, None, job.config) as one, views._letters(job, None, job.config) as other:
            assert (list(one), other) == ([views.DEAD_LETTERS], {})


@pytest.fixture
def topics(monkeypatch):
    """The ids of the topics that exist."""
    found = {"flights": "first"}
    monkeypatch.setattr(views, "topic_ids_of", lambda *given: dict(found))
    return found


def test_a_batch_copies_dead_letters(job, with_letters, topics, monkeypatch):
    records = MagicMock()
    records.cache().groupBy().agg().collect.return_value = [("flights", 0, 4)]
    monkeypatch.setattr(views, "read_batch", lambda *given: records)
    monkeypatch.setattr(views, "_queried", lambda *given: None)
    monkeypatch.setattr(views, "_write_result", lambda *given: None)
    run = []
    monkeypatch.setattr(views, "run_queries", lambda starts, timeout_s: run.append(starts) or "copied")
    version, report = views.build(job, "batch", session="no session")
    assert (version.is_complete, version.end_offsets, report) == (True, (("flights", 0, 5),), "copied")
    ((name, start),) = run[0].items()
    assert name == views.DEAD_LETTERS
    assert start.args[2].trigger == AVAILABLE_NOW, "a batch ends, whatever the trigger of the job"


@pytest.fixture
def batch(job, topics, monkeypatch):
    """A current version that a batch has built; it is served by functions that note where they were asked to begin."""
    starts = []
    monkeypatch.setattr(views, "_run_batch", lambda *given: ((("flights", 0, 5),), None))
    monkeypatch.setattr(views, "read_batch", lambda session, config, source, given: starts.append(given))
    for name in ("_queried", "_read_version"):
        monkeypatch.setattr(views, name, MagicMock())
    views.build(job, "batch", session="no session")
    views.switch(job.path, 1)
    return replace(job, merge="select 1"), starts


def test_a_batch_is_merged_with_what_came_after_it(batch):
    job, starts = batch
    views.serve_merged(job, MagicMock())
    assert starts == [{("flights", 0): 5}]


class Session:
    """A session with temporary views, by name."""

    def __init__(self, **views):
        self.views = views
        self.catalog = SimpleNamespace(getTable=self.described, dropTempView=self.views.pop)

    def described(self, name):
        if name not in self.views:
            raise AnalysisException(f"no {name}")
        return SimpleNamespace(isTemporary=True)

    def table(self, name):
        found = self.views[name]
        return SimpleNamespace(createOrReplaceTempView=lambda name: self.views.update({name: found}))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("own", [{}, {"records": "of the caller"}, {"others": "too"}])
def test_a_query_leaves_the_views_of_its_caller(own, fails):
    """A notebook may have a table ``records`` of its own; its next query must not read others."""
    session = Session(**own)

    def sql(query):
        if fails:
            raise JobError("no such column")
        return query, session.views["records"]

    session.sql = sql
    rows = SimpleNamespace(
        sparkSession=session, createOrReplaceTempView=lambda name: session.views.update({name: "of the job"})
    )
    if fails:
        with pytest.raises(JobError, match="no such column"):
            views._queried(rows, "select 1")
    else:
        assert views._queried(rows, "select 1") == ("select 1", "of the job")
    assert session.views == own


def test_a_new_result_leaves_the_former_to_its_readers(tmp_path):
    """They found it just before, and read its files for a while; older results go, also those of a replayed batch."""
    rows, results = MagicMock(), []
    rows.coalesce().write.mode().parquet = lambda path: Path(path).mkdir(parents=True)
    for batch in (0, 1, 1, 2, 3, 3):
        views._write_result(tmp_path, 1, rows, batch)
        results.append(views._result(tmp_path / "v1"))
        assert {each.name for each in (tmp_path / "v1").glob("result-*")} == {*results[-2:]}


def test_a_batch_is_not_merged_with_another_query(batch):
    """Its rows and those of the newer records would not mean the same."""
    job, starts = batch
    with pytest.raises(JobError, match="version 1 has another query or source than the file; build a new version"):
        views.serve_merged(replace(job, query="select 2"), MagicMock())
    assert not starts


def test_a_batch_is_not_merged_with_a_topic_created_again(batch, topics):
    """The offset at which it ended would leave out the first records of the new topic."""
    job, starts = batch
    topics["flights"] = "second"
    with pytest.raises(
        JobError, match=r"flights was deleted and created again since version 1 was built.*build another"
    ):
        views.serve_merged(job, MagicMock())
    assert not starts
    file = job.path / "v1" / views.VERSION
    note = json.loads(file.read_text())
    assert note.pop("topic_ids") == [["flights", "first"]]
    file.write_text(json.dumps(note))  # as an earlier release has built it
    views.serve_merged(job, MagicMock())
    assert len(starts) == 1


def test_views_of_two_threads_query_their_own_records(monkeypatch):
    """Threads of one session share the names of its temporary views."""
    names, met = {}, threading.Event()  # the second thread has ended, or waits

    class Turns:
        lock = threading.Lock()

        def __enter__(self):
            if self.lock.locked():
                met.set()
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    def records(number, then=lambda: None):
        found = MagicMock()
        found.createOrReplaceTempView = lambda name: (names.update({name: number}), then())
        found.sparkSession.sql = lambda query: names["records"]
        return found

    def second():
        results.append(views._queried(records(2), "select 2"))
        met.set()

    monkeypatch.setattr(views, "_NAMES", Turns(), raising=False)
    results, thread = [], threading.Thread(target=second)
    results.append(views._queried(records(1, lambda: (thread.start(), met.wait())), "select 1"))
    thread.join()
    assert sorted(results) == [1, 2]
