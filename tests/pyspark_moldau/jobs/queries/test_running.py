"""Goal: the queries of a job all end with it, and its error says which of them failed and why.

Method: queries that end as a list says, in all small combinations; the clock is one of the test.
"""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.errors import IllegalArgumentException

from pyspark_moldau import session as session_module
from pyspark_moldau.jobs.config.cluster import ClusterKeys
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.queries import running
from pyspark_moldau.jobs.queries.running import SLOW_START, STARTS_MAX, TORN_TASK, first_line, job_session, run_queries

POLL_S = 0.25  # a sum of these is exact
ENDS, FAILS, SLOW, TORN = "ends", "fails", "slow", "torn"


class Query:
    """A query that is active at some looks, and then ends without or with an error."""

    def __init__(self, looks, outcome, batch):
        self.looks, self.outcome, self.stopped = looks, outcome, 0
        report = {"numInputRows": 5, "stateOperators": [], "observedMetrics": {}}
        self.recentProgress = [report | {"batchId": batch}]

    @property
    def isActive(self):
        self.looks -= 1
        return self.looks >= 0

    def exception(self):
        texts = {
            FAILS: "pyspark_moldau.errors.DataLossError: gone",
            SLOW: f"java.io.IOException: {SLOW_START}",
            TORN: f"Lost task 0.3 in stage 0.0 (TID 6) (localhost executor driver): {TORN_TASK}",
        }
        return None if self.outcome is ENDS else Exception(texts[self.outcome])

    def stop(self):
        self.stopped += 1


@pytest.fixture
def clock(monkeypatch):
    """Time passes only while the job waits for its queries."""
    now = [100.0]
    monkeypatch.setattr(running, "POLL_S", POLL_S)
    monkeypatch.setattr(
        running,
        "time",
        SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)),
    )
    return now


def starting(scripts):
    """Returns the starts of queries by name, each with a list of looks and outcomes, and all that were started."""
    made = {name: [] for name in scripts}

    def start(name):
        looks, outcome = scripts[name][len(made[name])]
        made[name].append(Query(looks, outcome, len(made[name])))
        return made[name][-1]

    return {name: lambda name=name: start(name) for name in scripts}, made


SCRIPTS = [
    *([(looks, ENDS)] for looks in (0, 1, 3)),
    *([(looks, FAILS)] for looks in (0, 2)),
    [(0, SLOW), (1, ENDS)],
    [(1, TORN), (0, ENDS)],
    [(0, SLOW)] * (STARTS_MAX - 1) + [(2, ENDS)],
    [(0, SLOW)] * STARTS_MAX,
    [(1, SLOW), (0, FAILS)],
]


def test_a_job_succeeds_if_all_its_queries_do(clock):
    """A query that Spark did not start well gets a few tries; the first failure ends the job, and every query stops."""
    for scripts in itertools.product(SCRIPTS, repeat=2):
        starts, made = starting(dict(zip(("main", "dead-letters"), scripts, strict=True)))
        failing = [name for name, script in zip(made, scripts, strict=True) if script[-1][1] is not ENDS]
        if failing:
            with pytest.raises(JobError, match=f"^query ({'|'.join(failing)}) failed: ") as caught:
                run_queries(starts)
            failed = next(name for name in failing if f"query {name} " in str(caught.value))
            cause = SLOW_START if made[failed][-1].outcome is SLOW else "gone"
            assert cause in str(caught.value), scripts
            assert [each.outcome for each in made[failed]] == [
                outcome for _, outcome in scripts[list(made).index(failed)]
            ]
        else:
            report = run_queries(starts)
            assert report.batches == {name: len(queries) for name, queries in made.items()}
            assert report.rows == {name: 5 * len(queries) for name, queries in made.items()}
        for queries in made.values():
            assert queries[-1].stopped == 1, scripts


def test_queries_that_were_started_stop_if_another_cannot_start(clock):
    starts, made = starting({"main": [(9, ENDS)]})

    def refused():
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        run_queries(starts | {"dead-letters": refused})
    assert made["main"][0].stopped == 1


@pytest.mark.parametrize("looks", range(3, 9))
def test_a_job_has_its_time_and_no_more(clock, looks):
    """A query that has ended at the first look after its time has ended in time."""
    starts, made = starting({"main": [(looks, ENDS)], "dead-letters": [(0, ENDS)]})
    if looks <= 5:
        assert run_queries(starts, 1.0).rows == {"main": 5, "dead-letters": 5}
    else:
        with pytest.raises(JobError, match=r"^the queries main, dead-letters did not end within 1 s$"):
            run_queries(starts, 1.0)
    assert clock[0] <= 101.0 + POLL_S
    assert [queries[0].stopped for queries in made.values()] == [1, 1]


def test_a_query_that_cannot_be_stopped_leaves_no_other_running(clock):
    """Spark gives up a stop after ``spark.sql.streaming.stopTimeout``; the others went on without the folder's lock."""
    names = ("main", "dead-letters-left", "dead-letters-right")
    for stuck in names:
        starts, _ = starting({name: [(99, ENDS)] for name in names} | {"main": [(1, FAILS)]})
        run = {name: start() for name, start in starts.items()}

        def refused(query=run[stuck]):
            query.stopped += 1
            raise TimeoutError("it does not stop")

        run[stuck].stop = refused
        with pytest.raises(TimeoutError, match="it does not stop") as caught:
            run_queries({name: lambda query=query: query for name, query in run.items()})
        assert isinstance(caught.value.__context__, JobError), "why the job ended is shown too"
        assert [query.stopped for query in run.values()] == [1, 1, 1]


def test_a_report_has_the_figures_of_each_query(clock):
    """Late rows are those of all queries; only copies of dead letters count as such, whatever they observe."""
    starts, made = starting({name: [(0, ENDS)] for name in ("main", "dead-letters-left", "dead-letters-right")})
    former = dict(starts)

    def start(name, rows, late, dead):
        query = former[name]()
        operators = [{"numRowsDroppedByWatermark": each} for each in late]
        figures = {
            "numInputRows": rows,
            "stateOperators": operators,
            "observedMetrics": {"dead-letters": {"records": dead}},
        }
        query.recentProgress = [figures | {"batchId": 0}]
        return query

    report = run_queries(
        {
            "main": lambda: start("main", 5, [2, 3], 9),
            "dead-letters-left": lambda: start("dead-letters-left", 6, [], 1),
            "dead-letters-right": lambda: start("dead-letters-right", 7, [4], 2),
        }
    )
    assert report.rows == {"main": 5, "dead-letters-left": 6, "dead-letters-right": 7}
    assert report.batches == dict.fromkeys(made, 1)
    assert (report.late_rows, report.dead_letters) == (9, {"dead-letters-left": 1, "dead-letters-right": 2})


def test_an_error_of_the_source_names_the_setting_of_the_job(clock):
    starts, made = starting({"main": [(0, FAILS)]})
    lost = Exception("pyspark_moldau.errors.DataLossError: t-0 is gone; set failOnDataLoss to false to continue")

    def start():
        query = starts["main"]()
        query.exception = lambda: lost
        return query

    with pytest.raises(JobError, match=r"^query main failed: t-0 is gone; set \[source\] fail_on_data_loss = false to"):
        run_queries({"main": start})
    assert made["main"][0].stopped == 1


def test_queries_without_a_limit_run_until_they_end(clock):
    starts, _ = starting({"main": [(10_000, ENDS)]})
    assert run_queries(starts).batches == {"main": 1}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "unknown"),
        ("  \n\n", "unknown"),
        ("one\ntwo", "one"),
        ("  first line  \nat x.Error", "first line"),
        ("An error\nValueError\nKeyError: 'a'\nmore", "KeyError: 'a'"),
        ("java.A: x\nb.CError: first\nd.EException: second\nat f", "d.EException: second"),
        (": e.FError: y", "e.FError: y"),
        ("not an Error at all: y\nsecond", "not an Error at all: y"),
        (f"e.FError: {'y' * 2000}", f"e.FError: {'y' * 990}"),
        ("x\npyspark_moldau.errors.SinkError: a: b", "a: b"),
        (
            "pyspark_moldau.jobs.errors.JobError: pyspark_moldau.errors.SinkError: c",
            "pyspark_moldau.errors.SinkError: c",
        ),
        ("x: [TASK_WRITE_FAILED]\nCaused by: a: full", "x: [TASK_WRITE_FAILED] (a: full)"),
        ("x: other\nCaused by: a: full", "x: other"),
        ("x: [TASK_WRITE_FAILED]\nCaused by: no colon", "x: [TASK_WRITE_FAILED]"),
        ("x: [TASK_WRITE_FAILED]\nCaused by: a: one\nCaused by: b: two", "x: [TASK_WRITE_FAILED] (b: two)"),
    ],
)
def test_the_line_of_an_error_is_the_last_that_names_a_cause(text, line):
    assert first_line(text) == line


@pytest.fixture
def spark(monkeypatch):
    """The starts of Spark; one of them fails if the test says so."""
    calls, failure = [], {}

    def start(name):
        def function(*given, **named):
            calls.append((name, given, named))
            if name in failure:
                raise failure[name]
            return f"the session of {name}"

        return function

    for name in ("cluster_session", "local_session", "start_jvm"):
        monkeypatch.setattr(session_module, name, start(name))
    return calls, failure


def config(tmp_path, trigger="available-now", **settings):
    keys = ClusterKeys(servers="b:1", keys={"bootstrap.servers": "b:1", "acks": "all", "fetch.min.bytes": "1"})
    return SimpleNamespace(session=settings, checkpoint=tmp_path / "state", cores=3, cluster=keys, trigger=trigger)


@pytest.mark.parametrize("settings", [{}, {"spark.master": "local[7]"}, {"spark.log.level": "INFO"}], ids=str)
def test_a_job_without_a_cluster_has_a_session_here(spark, tmp_path, settings):
    calls, _ = spark
    log = tmp_path / "state" / "spark.log"
    log.parent.mkdir()
    log.write_text("of the run before")
    assert job_session(config(tmp_path, **settings)) == "the session of local_session"
    level = settings.get("spark.log.level", "ERROR")
    named = {"cores": 3, "settings": settings, "log_level": level}
    assert calls == [("start_jvm", (log, settings), {}), ("local_session", ("moldau-pipeline",), named)]
    assert not log.exists()


@pytest.mark.parametrize("level", [None, "INFO"])
def test_a_job_on_a_cluster_has_a_session_there(spark, tmp_path, level):
    """Spark's own log would hide the line that says why a query ended."""
    calls, _ = spark
    settings = {"spark.master": "spark://h:7077"} | ({} if level is None else {"spark.log.level": level})
    assert job_session(config(tmp_path, **settings)) == "the session of cluster_session"
    named = {"settings": settings, "log_level": level or "FATAL"}
    assert calls == [("cluster_session", ("moldau-pipeline",), named)]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("start", ["start_jvm", "local_session", "cluster_session"])
def test_a_spark_that_does_not_start_is_explained(spark, tmp_path, start):
    _, failure = spark
    settings = {"spark.master": "spark://h:7077"} if start == "cluster_session" else {}
    of_java = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})
    failure[start] = of_java("An error\n: java.lang.IllegalArgumentException: memory must be at least 450M")
    master = settings.get("spark.master", "local")
    message = rf"^\[spark\] Spark does not start with spark.master {master}: java\.lang\.IllegalArg.*: memory must"
    with pytest.raises(JobError, match=message):
        job_session(config(tmp_path, **settings))
    failure[start] = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")
    with pytest.raises(RuntimeError, match="JAVA_GATEWAY_EXITED"):  # it has written no log
        job_session(config(tmp_path, **settings))
    if start == "start_jvm":
        error = failure.pop(start)

        def exiting(log, _):
            log.write_text("Unrecognized option")
            raise error

        session_module.start_jvm = exiting  # the fixture puts the function back
        with pytest.raises(JobError, match=r"^\[spark\] Spark's JVM does not start; the end of .*spark\.log says why$"):
            job_session(config(tmp_path, **settings))


def test_a_job_refuses_a_session_of_spark_connect(tmp_path):
    """Its micro-batches run in another process; the job failed in the first of them."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    message = "a job cannot run in a session of Spark Connect, .* leave the session out, or give one of local_session"
    with pytest.raises(JobError, match=message), running.running(config(tmp_path), "load", {}, None, session):
        pass
    assert not list(tmp_path.iterdir()), "the folder is not the job's yet"


class Writer:
    """Stands in for Spark's writer of a stream; it notes its calls."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, *given, named)) or self


@pytest.mark.parametrize("trigger", ["available-now", "10 seconds"])
def test_a_query_has_the_trigger_and_checkpoint_of_its_job(tmp_path, trigger):
    writer = Writer()
    running.started(writer, "main", config(tmp_path, trigger), Path("/state/main"))
    wanted = {"availableNow": True} if trigger == "available-now" else {"processingTime": trigger}
    assert writer.calls == [
        ("queryName", "main", {}),
        ("option", "checkpointLocation", "/state/main", {}),
        ("trigger", wanted),
        ("start", {}),
    ]


def test_a_topic_is_written_exactly_once(tmp_path):
    rows = SimpleNamespace(writeStream=Writer())
    running.topic_writer(rows, config(tmp_path), "out")
    options = {
        "kafka.bootstrap.servers": "b:1",
        "kafka.acks": "all",
        "topic": "out",
        "deliveryGuarantee": "exactly-once",
    }
    assert rows.writeStream.calls == [("format", "moldau", {}), ("options", options)]


def test_a_second_job_in_a_session_says_so(tmp_path):
    """Spark tells the queries of a session apart by their names, which are the same in all jobs."""

    class Writer:
        def __getattr__(self, name):
            return lambda *_, **__: self

        def start(self):
            raise IllegalArgumentException(
                "Cannot start query with name main as a query with that name is already active"
            )

    with pytest.raises(JobError, match=r"query main cannot start: another job is at work in this session; let it end"):
        running.started(Writer(), "main", config(tmp_path, running.AVAILABLE_NOW), tmp_path)
