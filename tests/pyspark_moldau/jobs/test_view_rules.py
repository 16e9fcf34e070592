"""Goal: the current version of a view is whole and the one that was chosen, after any builds, switches and rollbacks.

Method: a state machine of Hypothesis that builds, fails, switches and rolls back, and keeps the versions as a list.
"""

import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.sql.types import DateType, DoubleType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_moldau.jobs import views
from pyspark_moldau.jobs.errors import JobBusyError, JobConfigError, JobError
from pyspark_moldau.jobs.views import JobReport

FILE = """
[cluster]
"bootstrap.servers" = "127.0.0.1:9092"
[run]
checkpoint = "state"
[source]
topics = ["flights"]
[view]
path = "view"
query = "select 1"
"""
QUERIES = ("select 1", "select 2")
FORMS = ("stream", "batch")
REPORT = JobReport(rows={}, batches={})


class BrokenError(Exception):
    """The end of a build before its version is whole."""


def view_in(folder):
    (folder / "job.toml").write_text(FILE)
    return views.view_job(folder / "job.toml")


@contextmanager
def without_spark(run):
    """Replaces what needs Spark or a cluster: ``run`` is called with the form and the number of a version."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views, "check_job", lambda *given, **named: None)
        patched.setattr(views, "topic_ids_of", lambda *given: {"flights": "id"})
        patched.setattr(views, "_run_stream", lambda job, number, session, timeout_s: run("stream", number))
        patched.setattr(
            views, "_run_batch", lambda job, number, session, timeout_s: ((("flights", 0, 5),), run("batch", number))
        )
        yield


class Views(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.job = view_in(Path(self.folder.name))
        self.path = self.job.path
        self.versions = []  # form, query, is_complete
        self.current = self.former = 0

    def teardown(self):
        self.folder.cleanup()

    @rule(form=st.sampled_from(FORMS), query=st.sampled_from(QUERIES), fails=st.booleans())
    def build(self, form, query, fails):
        """An unfinished newest version of the same form and query is continued; any other build makes a new one."""
        continues = self.versions and self.versions[-1] == (form, query, False)
        if not continues:
            self.versions.append((form, query, False))
        number = len(self.versions)
        built = []

        def run(*given):
            built.append(given)
            assert not views.versions_of(self.path)[-1].is_complete, "a version is whole when its rows are there"
            if fails:
                raise BrokenError
            return REPORT

        with without_spark(run):
            if fails:
                with pytest.raises(BrokenError):
                    views.build(replace(self.job, query=query), form, "no session")
            else:
                version, report = views.build(replace(self.job, query=query), form, "no session")
                assert (version.number, version.form, version.is_complete, report) == (number, form, True, REPORT)
                is_batch = form == "batch"
                assert version.end_offsets == ((("flights", 0, 5),) if is_batch else ())
                assert version.topic_ids == ((("flights", "id"),) if is_batch else ())
                self.versions[-1] = (form, query, True)
        assert built == [(form, number)]

    @rule(number=st.integers(0, 6))
    def switch(self, number):
        if not 1 <= number <= len(self.versions):
            known = ", ".join(map(str, range(1, len(self.versions) + 1))) or "none"
            with pytest.raises(JobConfigError, match=f"has no version {number}; there are: {known}$"):
                views.switch(self.path, number)
        elif not self.versions[number - 1][2]:
            with pytest.raises(JobError, match=f"version {number} is not complete; run build again"):
                views.switch(self.path, number)
        elif number == self.current:
            with pytest.raises(JobError, match=f"version {number} is current already"):
                views.switch(self.path, number)
        else:
            assert views.switch(self.path, number) == (number, self.current)
            self.current, self.former = number, self.current

    @rule()
    def rollback(self):
        """A second one goes forward again."""
        if not self.former:
            with pytest.raises(JobError, match="has no former version to go back to"):
                views.rollback(self.path)
            return
        assert views.rollback(self.path) == (self.former, self.current)
        self.current, self.former = self.former, self.current

    @rule(query=st.sampled_from(QUERIES))
    def follow(self, query):
        runs = []
        job = replace(self.job, query=query)
        with without_spark(lambda *given: runs.append(given) or REPORT):
            form, built_by, _ = self.versions[self.current - 1] if self.current else ("", "", False)
            if not self.current:
                message = "has no current version; build one and switch to it"
            elif form == "batch":
                message = f"version {self.current} is a batch; build another one"
            elif built_by != query:
                message = f"version {self.current} has another query or source than the file; build a new version"
            else:
                assert views.follow(job, "no session") is REPORT
                assert runs == [("stream", self.current)]
                return
            with pytest.raises(JobError, match=message):
                views.follow(job, "no session")
            assert not runs

    @rule()
    def read(self):
        session = MagicMock()
        if not self.current:
            with pytest.raises(JobError, match="has no current version"):
                views.read_view(self.path, session)
            return
        with pytest.raises(JobError, match=f"version {self.current} has no rows: its topics are empty"):
            views.read_view(self.path, session)
        views.write_atomically(self.path / f"v{self.current}" / views.RESULT, '{"result": "result-3-x"}')
        views.read_view(self.path, session)
        session.read.parquet.assert_called_once_with(str(self.path / f"v{self.current}" / "result-3-x"))
        (self.path / f"v{self.current}" / views.RESULT).unlink()

    @invariant()
    def all_versions_are_known(self):
        found = [(version.form, version.is_complete) for version in views.versions_of(self.path)]
        assert found == [(form, is_complete) for form, _, is_complete in self.versions]
        assert [version.number for version in views.versions_of(self.path)] == [*range(1, len(found) + 1)]
        assert views.current_of(self.path) == (self.current, self.former)


TestViews = Views.TestCase


def test_a_version_is_that_of_its_query_topics_and_payload(tmp_path):
    job = view_in(tmp_path)
    hashes = {views.hash_of(job)}
    source = job.source
    changed = [
        replace(job, query="select 2"),
        replace(job, source=replace(source, topics=("flights", "more"))),
        replace(job, source=replace(source, payload=replace(source.payload, format="json"))),
        replace(job, source=replace(source, payload=replace(source.payload, schema=b"other"))),
    ]
    hashes |= {views.hash_of(each) for each in changed}
    assert len(hashes) == 1 + len(changed)
    same = [
        replace(job, merge="select 3"),
        replace(job, path=tmp_path),
        replace(job, source=replace(source, options={})),
    ]
    same.append(replace(job, source=replace(source, payload=replace(source.payload, registry_login="al:secret"))))
    assert {views.hash_of(each) for each in same} == {views.hash_of(job)}


@pytest.mark.parametrize("first", ["build", "follow"])
@pytest.mark.parametrize("second", ["build", "follow"])
def test_a_version_has_one_run_at_a_time(tmp_path, first, second):
    """Two would write the same batches; a version that is whole may be followed while the next one is built."""
    job, met = view_in(tmp_path), []
    calls = {
        "build": lambda: views.build(job, "stream", "no session"),
        "follow": lambda: views.follow(job, "no session"),
    }

    def run(form, number):
        if not met:
            met.append(number)
            if first == second:
                with pytest.raises(
                    JobBusyError, match=f"another run of this job is at work in .*v{number}; let it end"
                ):
                    calls[second]()
            else:
                calls[second]()
                assert met == [number, 3 - number]
        else:
            met.append(number)
        return REPORT

    with without_spark(lambda *given: REPORT):
        calls["build"]()
        views.switch(job.path, 1)
    with without_spark(run):
        calls[first]()


class Compared:
    """A version as a multiset of rows."""

    def __init__(self, columns, rows, kind=None):
        self.columns, self.rows = columns, rows
        self.schema = StructType([StructField(name, kind or LongType()) for name in columns])

    def exceptAll(self, other):
        left = list(self.rows)
        for row in other.rows:
            if row in left:
                left.remove(row)
        return Compared(self.columns, left)

    def limit(self, number):
        return Compared(self.columns, self.rows[:number])

    def collect(self):
        return self.rows

    def count(self):
        return len(self.rows)


def test_the_rows_of_two_versions_are_compared_by_number(monkeypatch):
    found = {1: Compared(["a"], [1, 1, 2, 3, 4, 5, 6, 7]), 2: Compared(["a"], [1, 8]), 3: Compared(["b"], [])}
    monkeypatch.setattr(views, "_read_version", lambda session, path, number: found[number])
    difference = views.compare(Path("x"), 1, 2, None)
    assert (difference.only_first, difference.only_second) == (7, 1)
    assert difference.examples == ["1: 1", "1: 2", "1: 3", "1: 4", "1: 5", "2: 8"]
    assert views.compare(Path("x"), 1, 1, None) == views.Difference(only_first=0, only_second=0, examples=[])
    with pytest.raises(JobError, match=r"version 1 has the columns \['a'\], version 3 \['b'\]"):
        views.compare(Path("x"), 1, 3, None)


@pytest.mark.parametrize(
    ("kind", "is_compared"), [(IntegerType(), True), (DoubleType(), True), (StringType(), False), (DateType(), False)]
)
def test_columns_of_other_kinds_are_not_compared(monkeypatch, kind, is_compared):
    """Spark would take the text 1 for the number, and a date for a time."""
    found = {1: Compared(["n"], [1]), 2: Compared(["n"], [1], kind)}
    monkeypatch.setattr(views, "_read_version", lambda session, path, number: found[number])
    if is_compared:
        assert views.compare(Path("x"), 1, 2, None).only_first == 0
        return
    message = f"^column n is bigint in version 1 and {kind.simpleString()} in version 2; cast it in the query"
    with pytest.raises(JobError, match=message):
        views.compare(Path("x"), 1, 2, None)


def test_a_merge_needs_a_batch_and_a_query(tmp_path):
    job = view_in(tmp_path)
    with without_spark(lambda *given: REPORT):
        views.build(job, "stream", "no session")
        views.build(job, "batch", "no session")
    views.switch(job.path, 1)
    with pytest.raises(JobError, match="version 1 is a stream; it follows the log by itself"):
        views.serve_merged(replace(job, merge="select 3"), SimpleNamespace())
    views.switch(job.path, 2)
    with pytest.raises(JobError, match=r"\[view\] merge: must be given, to combine the rows of the batch"):
        views.serve_merged(job, SimpleNamespace())


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_frees_its_records_and_has_one_result(tmp_path, monkeypatch, fails):
    """Records are kept in memory between the look at their ends and the query, so that both see the same."""
    job, steps = view_in(tmp_path), []
    records = MagicMock()
    records.cache.return_value = records
    records.groupBy().agg().collect.return_value = [("b", 1, 8), ("a", 0, 4)]
    records.unpersist = lambda: steps.append("freed")

    def write(path, number, rows, batch):
        steps.append((path, number, rows, batch))
        if fails:
            raise BrokenError

    monkeypatch.setattr(views, "read_batch", lambda session, config, source: records)
    monkeypatch.setattr(views, "_queried", lambda rows, query: (rows, query))
    monkeypatch.setattr(views, "_write_result", write)
    monkeypatch.setattr(views, "run_queries", lambda *given: steps.append("letters"))
    if fails:
        with pytest.raises(BrokenError):
            views._run_batch(job, 3, "no session", None)
    else:
        assert views._run_batch(job, 3, "no session", None) == ((("a", 0, 5), ("b", 1, 9)), None)
    assert steps == [(job.path, 3, (records, "select 1"), 0), "freed"], "raw values have no dead letters"
