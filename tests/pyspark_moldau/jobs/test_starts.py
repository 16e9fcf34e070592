"""Goal: all queries of a job that begins at the ends of its topics begin at the same ones. Method: a log in memory."""

import json

import pytest

from pyspark_moldau.jobs.config.folders import MAIN, check_folder
from pyspark_moldau.jobs.load import load_job
from pyspark_moldau.jobs.queries import reading
from pyspark_moldau.jobs.queries.running import DEAD_LETTERS
from support.spark.memory_log import MemoryLog

JOB = """
[cluster]
"bootstrap.servers" = "h:1"
[run]
checkpoint = "state"
[source]
topics = ["t"]
starting_offsets = "latest"
[source.payload]
format = "json"
schema = "schema.json"
dead_letter_topic = "dead"
[sink]
table = "table"
"""
RECORD = (1, None, b"{", ())


class Session:
    """Stands in for Spark's; it keeps the options of the last query."""

    readStream = property(lambda self: self)

    def format(self, name):
        return self

    def options(self, **given):
        self.given = given
        return self

    def load(self):
        return self


@pytest.fixture
def log(monkeypatch):
    made = MemoryLog([("t", 0)])
    made.append(("t", 0), RECORD, RECORD)
    monkeypatch.setattr(reading, "connect_cluster", lambda client: made)
    return made


@pytest.fixture
def job(tmp_path):
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "string"}}}')
    (tmp_path / "job.toml").write_text(JOB)
    return load_job(tmp_path / "job.toml")


def check(job):
    """Does what a run does first."""
    return check_folder(job.config.root, job.config.checkpoint, "load", job.sink.path)


def start_of(job):
    session = Session()
    reading._raw(session, job.config, job.source, streaming=True)
    return json.loads(session.given["startingOffsets"])


def test_dead_letters_start_where_the_main_query_starts(log, job):
    """A poison record that comes between the starts of the two is in neither the table nor the dead-letter topic."""
    check(job)
    assert start_of(job) == {"t": {"0": 2}}
    log.append(("t", 0), RECORD)
    assert start_of(job) == {"t": {"0": 2}}


@pytest.mark.parametrize("first", [MAIN, DEAD_LETTERS])
def test_a_query_that_starts_in_a_later_run_starts_there_too(log, job, first):
    """Each query of the job may be the one that has planned a batch when the run is killed."""
    check(job)
    assert start_of(job) == {"t": {"0": 2}}
    offsets = job.config.checkpoint / first / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    log.append(("t", 0), RECORD)
    log.records["t", 1], log.starts["t", 1] = [], 0
    check(job)
    assert start_of(job) == {"t": {"0": 2, "1": -2}}


def test_a_run_before_any_batch_leaves_no_start(log, job):
    check(job)
    assert start_of(job) == {"t": {"0": 2}}
    log.append(("t", 0), RECORD)
    check(job)
    assert start_of(job) == {"t": {"0": 3}}
