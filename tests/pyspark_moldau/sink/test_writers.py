"""Goal: what tasks report is what the driver commits, and an error of the sink is the line that Spark shows first.

Method: the writers that Spark calls, pickled as Spark pickles them, with a cluster that notes its calls.
"""

import itertools
import logging
import pickle

import pytest

from pyspark_moldau.client_options import OptionError
from pyspark_moldau.errors import SinkError
from pyspark_moldau.plans import plan_of
from pyspark_moldau.sink import writer
from pyspark_moldau.sink.core.effects import Entry, Kind, Report
from pyspark_moldau.sink.core.refusals import ProtocolRefusedError, TryAgainError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.names import Names
from pyspark_moldau.sink.writer import MoldauBatchWriter, MoldauStreamWriter, Written

BASE = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
ONCE = BASE | {"deliveryGuarantee": "exactly-once"}
NAMED = ONCE | {"txnAppId": "daily", "txnVersion": "7"}
PROPERTIES = {"sql.streaming.queryId": "q1", "streaming.sql.batchId": "5", "spark.jobGroup.id": "r1"}


def report_of(partition, batch=5, rows=3):
    entry = None
    if rows:
        entry = Entry(transactional_id=f"t{partition}", producer_id=1, producer_epoch=0, rows=rows, fingerprint=2)
    return Report(partition=partition, batch=batch, kind=Kind.PREPARED if rows else Kind.EMPTY, entry=entry)


class Context:
    """The context of a task."""

    def __init__(self, properties=None, partition=0, attempt=0):
        self.properties = PROPERTIES if properties is None else properties
        self.partition, self.attempt = partition, attempt

    def getLocalProperty(self, name):
        return self.properties.get(name)

    def partitionId(self):
        return self.partition

    def attemptNumber(self):
        return self.attempt


@pytest.fixture
def calls(monkeypatch):
    """The calls of the cluster; a task writes three rows, unless the test sets ``rows``."""
    found = []

    def once(options, attempt, rows):
        found.append(("exactly once", attempt, rows))
        return report_of(attempt.partition, attempt.batch, rows)

    monkeypatch.setattr(
        "pyspark_moldau.sink.task.write_at_least_once",
        lambda options, rows: found.append(("at least once", rows)) or rows,
    )
    monkeypatch.setattr("pyspark_moldau.sink.task.write_exactly_once", once)
    monkeypatch.setattr(
        "pyspark_moldau.sink.driver.commit_batch",
        lambda options, names, batch, run, reports, plan: found.append(
            ("commit", names, batch, run, reports, *([plan] if plan else []))
        ),
    )
    monkeypatch.setattr(
        "pyspark_moldau.sink.driver.abort_batch", lambda options, names, batch: found.append(("abort", names, batch))
    )
    return found


def raising(error):
    def refused(*_):
        raise error

    return refused


def in_task(monkeypatch, context):
    monkeypatch.setattr(writer, "_context", lambda: context)


def batch_writer(options):
    return pickle.loads(pickle.dumps(MoldauBatchWriter(parse_sink_options(options, streaming=False))))


def stream_writer(options):
    return pickle.loads(pickle.dumps(MoldauStreamWriter(parse_sink_options(options, streaming=True))))


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_at_least_once_is_written_by_tasks_alone(calls, make, rows):
    """The driver has nothing to commit or abort."""
    one = make(BASE)
    message = one.write(rows)
    assert message == Written(rows=rows)
    rest = () if make is batch_writer else (5,)
    for messages in ([], [message], [message, None]):
        one.commit(messages, *rest)
        one.abort(messages, *rest)
    assert calls == [("at least once", rows)]


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("options", [ONCE, NAMED], ids=["once", "named"])
def test_a_batch_is_committed_by_its_name_and_version(calls, monkeypatch, options, rows):
    """A job without a name has one of its own, which no later start repeats, so it leaves no notes."""
    one = batch_writer(options)
    messages = []
    for partition, attempt in ((2, 0), (0, 3), (1, 1)):
        in_task(monkeypatch, Context(partition=partition, attempt=attempt))
        messages.append(one.write(rows))
    attempts = [call[1] for call in calls]
    version = 7 if options is NAMED else 0
    names = attempts[0].names
    run = attempts[0].run
    assert names.has_notes == (options is NAMED)
    assert names.app_id == ("daily" if options is NAMED else run)
    assert [(each.names, each.batch, each.run, each.partition, each.attempt) for each in attempts] == [
        (names, version, run, partition, attempt) for partition, attempt in ((2, 0), (0, 3), (1, 1))
    ]
    assert [message.rows for message in messages] == [rows] * 3
    calls.clear()
    one.commit(messages)
    one.abort(messages)
    reports = [report_of(partition, version, rows) for partition in range(3)]
    assert calls == [("commit", names, version, run, reports), ("abort", names, version)]
    assert batch_writer(options)._run != run, "each job is a run of its own"


@pytest.mark.parametrize("rows", [0, 3])
def test_a_micro_batch_is_committed_by_its_query_and_number(calls, monkeypatch, rows):
    one = stream_writer(ONCE)
    in_task(monkeypatch, Context(partition=1, attempt=2))
    second = one.write(rows)
    in_task(monkeypatch, Context(partition=0, attempt=0))
    first = one.write(rows)
    attempts = [call[1] for call in calls]
    names = Names(app_id="q1", has_notes=True)
    assert (first.rows, second.rows) == (rows, rows)
    assert [(each.names, each.batch, each.run, each.partition, each.attempt) for each in attempts] == [
        (names, 5, "r1", 1, 2),
        (names, 5, "r1", 0, 0),
    ]
    calls.clear()
    one.commit([second, first], 5)
    one.abort([second, None], 5)
    assert calls == [
        ("commit", names, 5, "r1", [report_of(0, rows=rows), report_of(1, rows=rows)]),
        ("abort", names, 5),
    ]


@pytest.mark.parametrize("missing", PROPERTIES)
@pytest.mark.parametrize("value", [None, ""])
def test_a_task_that_spark_gives_no_batch_writes_nothing(calls, monkeypatch, missing, value):
    in_task(monkeypatch, Context(PROPERTIES | {missing: value}))
    with pytest.raises(
        SinkError, match=r"^deliveryGuarantee exactly-once: Spark names no query .* txnAppId and txnVer"
    ):
        stream_writer(ONCE).write(3)
    assert not calls


MESSAGES = {
    "of task 0": Written(rows=3, app_id="q1", run="r1", report=report_of(0)),
    "of task 1": Written(rows=3, app_id="q1", run="r1", report=report_of(1)),
    "of batch 4": Written(rows=3, app_id="q1", run="r1", report=report_of(1, batch=4)),
    "lost": None,
}


def test_only_one_report_of_each_task_is_committed(calls):
    """A batch of which a report is missing, comes twice or is of another batch would be there in part."""
    one = stream_writer(ONCE)
    for names in itertools.chain.from_iterable(itertools.product(MESSAGES, repeat=count) for count in range(4)):
        calls.clear()
        messages = [MESSAGES[name] for name in names]
        numbers = sorted(each.report.partition for each in messages if each is not None)
        if not names:
            one.commit(messages, 5)
            assert not calls, "a batch without tasks has nothing to commit"
        elif sorted(names) in (["of task 0"], ["of task 0", "of task 1"]):
            one.commit(messages, 5)
            ((name, _, batch, run, reports),) = calls
            assert (name, batch, run, [each.partition for each in reports]) == ("commit", 5, "r1", [*range(len(names))])
        else:
            message = rf"^deliveryGuarantee exactly-once: batch 5: {len(names)} tasks ended, and the reports are of "
            with pytest.raises(SinkError, match=message) as caught:
                one.commit(messages, 5)
            assert str(caught.value).endswith(str(numbers))
            assert not calls


def test_an_abort_needs_the_name_of_the_query():
    """No task has reported it if all failed; the next commit ends what is open."""
    assert stream_writer(ONCE).abort([None, None], 5) is None
    assert batch_writer(ONCE).abort([]) is None
    assert stream_writer(ONCE).abort([None, Written(rows=1)], 5) is None


def test_a_batch_is_committed_with_its_plan(calls, monkeypatch, tmp_path):
    """By it a checkpoint is noticed that was set back, both by a query and by a version in foreachBatch."""
    in_task(monkeypatch, Context())
    (tmp_path / "offsets").mkdir()
    for number in ("5", "7"):
        (tmp_path / "offsets" / number).write_text("v1")
    checkpoint = {"checkpointLocation": str(tmp_path)}
    stream_writer(ONCE | checkpoint).commit([MESSAGES["of task 0"]], 5)
    batch_writer(NAMED | checkpoint).commit([Written(rows=3, app_id="daily", run="r1", report=report_of(0, batch=7))])
    assert [call[5] for call in calls] == [plan_of(tmp_path, 5), plan_of(tmp_path, 7)]


@pytest.mark.parametrize("error", [ProtocolRefusedError("no"), TryAgainError("no")], ids=["refused", "again"])
def test_an_error_of_the_protocol_is_one_of_the_sink(calls, monkeypatch, error):
    for name in ("task.write_exactly_once", "driver.commit_batch", "driver.abort_batch"):
        monkeypatch.setattr(f"pyspark_moldau.sink.{name}", raising(error))
    in_task(monkeypatch, Context())
    messages = [MESSAGES["of task 0"]]
    for call in (
        lambda: batch_writer(NAMED).write(3),
        lambda: stream_writer(ONCE).write(3),
        lambda: stream_writer(ONCE).commit(messages, 5),
        lambda: stream_writer(ONCE).abort(messages, 5),
        lambda: batch_writer(NAMED | {"txnVersion": "5"}).commit(messages),
        lambda: batch_writer(NAMED | {"txnVersion": "5"}).abort(messages),
    ):
        with pytest.raises(SinkError, match=r"^deliveryGuarantee exactly-once: no$") as caught:
            call()
        assert caught.value.__cause__ is error
    monkeypatch.setattr("pyspark_moldau.sink.driver.commit_batch", raising(OptionError("option x")))
    with pytest.raises(OptionError, match=r"^option x$"):
        stream_writer(ONCE).commit(messages, 5)


@pytest.mark.parametrize("make", [MoldauBatchWriter, MoldauStreamWriter])
def test_keys_without_effect_are_warned_of_once(caplog, make):
    caplog.set_level(logging.WARNING)
    options = BASE | {"kafka.send.buffer.bytes": "1", "kafka.metric.reporters": "a.B", "kafka.acks": "all"}
    one = make(parse_sink_options(options, streaming=make is MoldauStreamWriter))
    pickle.loads(pickle.dumps(one))
    assert [record.args[0] for record in caplog.records] == ["metric.reporters", "send.buffer.bytes"]
