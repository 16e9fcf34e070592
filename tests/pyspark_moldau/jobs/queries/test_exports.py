"""Goal: an export writes the rows that its file names, once for each version, and says what became of them.

Method: a session that notes its calls, or fails as Spark does.
"""

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException, PySparkException

from pyspark_moldau.jobs import export
from pyspark_moldau.jobs.config.cluster import ClusterKeys
from pyspark_moldau.jobs.config.job_config import SinkConfig
from pyspark_moldau.jobs.config.settings import Section
from pyspark_moldau.jobs.errors import JobConfigError, JobError
from pyspark_moldau.jobs.export import ExportJob, ExportReport, run_export
from pyspark_moldau.jobs.files import OWNER

JAVA_ERROR = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})


class Rows:
    """Rows of a table: what is done to them goes into a list."""

    def __init__(self, calls, failure, count):
        self.calls, self.failure, self.rows = calls, failure, count

    def _note(self, name, *given):
        self.calls.append((name, *given))
        if name in self.failure:
            raise self.failure[name]
        return self

    def where(self, text):
        return self._note("where", text)

    def repartition(self, number):
        return self._note("repartition", number)

    def sortWithinPartitions(self, *names):
        return self._note("sort", *names)

    def option(self, name, value):
        return self._note("option", name, value)

    def parquet(self, path):
        return self._note("parquet", path)

    @property
    def write(self):
        return self

    def format(self, name):
        return self._note("format", name)

    def options(self, **given):
        return self._note("options", given)

    def mode(self, name):
        return self._note("mode", name)

    def save(self):
        return self._note("save")

    def count(self):
        self._note("count")
        return self.rows


@pytest.fixture
def exporting(tmp_path, monkeypatch):
    """Returns a function that runs an export; it returns the report, and the calls of the session."""
    checked = []
    monkeypatch.setattr(export, "check_job", lambda *given: checked.append(given))
    monkeypatch.setattr(export, "to_records", lambda rows, sink: rows._note("to_records", sink))
    monkeypatch.setattr(export, "read_table", lambda session, path: session.rows._note("read_table", path))

    def function(*, where="", order_by=(), is_own=False, failure=None, written=5, count=5, table="table"):
        calls = []
        (tmp_path / "table").mkdir(exist_ok=True)
        if is_own:
            (tmp_path / "table" / OWNER).touch()
        keys = ClusterKeys(servers="b:1", keys={"bootstrap.servers": "b:1"})
        config = SimpleNamespace(root=Section("job.toml", "", {}), cluster=keys)
        sink = SinkConfig(path=None, format="", partition_by=(), topic="out", key="a", value="")
        job = ExportJob(
            config=config,
            sink=sink,
            table=tmp_path / table,
            where=where,
            order_by=order_by,
            name="daily",
            version=7,
        )
        asked = []
        monkeypatch.setattr(
            "pyspark_moldau.sink.driver.written_rows",
            lambda options, names, version: (asked.append((options, names, version)), written)[1],
        )
        rows = Rows(calls, failure or {}, count)
        report = run_export(job, SimpleNamespace(rows=rows, read=rows))
        ((options, names, version),) = asked
        assert (options.topic, options.app_id, options.version, names.app_id, version) == (
            "out",
            "daily",
            7,
            "daily",
            7,
        )
        assert checked.pop() == (config, "export", {}, sink)
        return report, calls

    return function


OPTIONS = {
    "kafka.bootstrap.servers": "b:1",
    "topic": "out",
    "deliveryGuarantee": "exactly-once",
    "txnAppId": "daily",
    "txnVersion": "7",
}


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("where", ["", "a > 1"])
@pytest.mark.parametrize("order_by", [(), ("a", "b")])
def test_an_export_writes_the_rows_that_its_file_names(exporting, tmp_path, is_own, where, order_by):
    """One task writes rows that have an order."""
    report, calls = exporting(where=where, order_by=order_by, is_own=is_own)
    path = tmp_path / "table"
    assert report == ExportReport(rows=5, table_rows=5)
    sink = SinkConfig(path=None, format="", partition_by=(), topic="out", key="a", value="")
    assert calls == [
        ("option", "mergeSchema", "true"),  # files of a folder may have other columns than its first one
        ("read_table", path) if is_own else ("parquet", str(path)),
        *([("where", where)] if where else []),
        *([("repartition", 1), ("sort", *order_by)] if order_by else []),
        ("to_records", sink),
        *(("format", "moldau"), ("options", OPTIONS), ("mode", "append"), ("save",), ("count",)),
    ]


@pytest.mark.parametrize(("written", "count", "rows"), [(5, 5, 5), (5, 8, 5), (0, 8, 0), (None, 8, None), (None, 0, 0)])
def test_a_report_has_the_rows_of_the_version(exporting, written, count, rows):
    report, _ = exporting(written=written, count=count)
    assert report == ExportReport(rows=rows, table_rows=count)


def test_a_folder_with_a_name_like_a_pattern_is_read(exporting, tmp_path):
    """Spark took its name for a pattern: the folder "does not exist"."""
    folder = tmp_path / "final [2]"
    folder.mkdir()
    _, calls = exporting(table=folder.name)
    assert calls[1] == ("parquet", str(folder).replace("[2]", r"\[2\]"))


def test_a_table_may_be_a_pattern_and_must_be_there(exporting):
    for pattern in ("y=*", "y=201?", "[ab]", "{a,b}"):
        assert exporting(table=pattern)[0].rows == 5
    with pytest.raises(JobConfigError, match=r"^job\.toml: \[export\] table: .*absent does not exist; give the table"):
        exporting(table="absent")


def test_what_spark_refuses_is_named_with_its_place(exporting):
    wrong = AnalysisException("[UNRESOLVED] no column x\nmore")
    for name, given in (("where", {"where": "x > 1"}), ("sort", {"order_by": ("x",)}), ("parquet", {})):
        message = r"^\[export\] table, where or order_by: \[UNRESOLVED\] no column x$"
        with pytest.raises(JobConfigError, match=message):
            exporting(failure={name: wrong}, **given)
    for name in ("save", "count"):
        for error in (PySparkException("full\nx.SinkError: refused"), JAVA_ERROR("full\nx.SinkError: refused")):
            with pytest.raises(JobError, match=r"^export daily, version 7: x\.SinkError: refused$") as caught:
                exporting(failure={name: error})
            assert caught.value.__cause__ is error
        with pytest.raises(ZeroDivisionError):
            exporting(failure={name: ZeroDivisionError()})
