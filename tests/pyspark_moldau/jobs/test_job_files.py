"""Goal: a wrong setting of a job's file is reported with file, section, key, value and remedy, before Spark starts."""

import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import types

from moldau_cli.commands.pipeline import export_text
from pyspark_moldau.errors import ReadTimeoutError, SinkError
from pyspark_moldau.jobs.aggregate import aggregate_job, run_aggregate
from pyspark_moldau.jobs.config import folders, job_config
from pyspark_moldau.jobs.errors import JobBusyError, JobConfigError, JobError
from pyspark_moldau.jobs.export import ExportReport, export_job, reason_of, run_export
from pyspark_moldau.jobs.files import OWNER
from pyspark_moldau.jobs.join import join_job, run_join
from pyspark_moldau.jobs.load import load_job, run_load
from pyspark_moldau.jobs.queries import running as running_module
from pyspark_moldau.jobs.queries.running import first_line, for_jobs, running
from pyspark_moldau.jobs.sessions import column_type, run_sessions, sessions_job
from pyspark_moldau.jobs.tables import own_table
from pyspark_moldau.jobs.views import view_job

LOAD = """
[cluster]
"bootstrap.servers" = "127.0.0.1:9092"
[run]
checkpoint = "state"
[source]
topics = ["flights"]
max_offsets_per_trigger = 1000
[source.payload]
format = "json"
schema = "flight.json"
dead_letter_topic = "flights-dead"
[sink]
table = "tables/flights"
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "flight.json").write_text('{"type":"object","properties":{"a":{"type":"string"}}}')
    return tmp_path


def write(folder, text):
    path = folder / "job.toml"
    path.write_text(text)
    return path


def raising(error):
    """Returns a function that raises the error."""

    def function(*_, **__):
        raise error

    return function


RUNS = {
    "load": lambda path: run_load(load_job(path), "no session"),
    "aggregate": lambda path: run_aggregate(aggregate_job(path), "no session"),
    "sessions": lambda path: run_sessions(sessions_job(path), "no session"),
    "join": lambda path: run_join(join_job(path), "no session"),
}


def test_a_good_file_is_read(folder):
    job = load_job(write(folder, LOAD + '[load]\ncompact_files = 8\n[spark]\n"spark.driver.memory" = "1g"\n'))
    assert job.config.cluster.source_options() == {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    assert job.config.checkpoint == folder / "state"
    assert job.source.options == {"maxOffsetsPerTrigger": "1000", "kafka.isolation.level": "read_committed"}
    assert job.sink.path == folder / "tables" / "flights"
    assert (job.sink.format, job.sink.partition_by) == ("parquet", ("topic", "date"))
    assert job.compact_files == 8
    assert load_job(write(folder, "\ufeff" + LOAD)).sink == job.sink, "editors of Windows begin a file with this mark"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[cluster]", "[cluster", "not a TOML file"),
        ("[cluster]", "x = " + "[" * 3000 + "]" * 3000 + "\n[cluster]", "not a TOML file: it is nested too deeply"),
        (
            '"bootstrap.servers" = "127.0.0.1:9092"',
            'x = "y"',
            r'job.toml: \[cluster\]: "bootstrap.servers" must be given',
        ),
        ('topics = ["flights"]', 'topics = "flights"', r"\[source\] topics: expected a list of strings"),
        ('topics = ["flights"]', "topics = []", r"\[source\] topics: expected a list of strings"),
        ('["flights"]', '["a/b"]', "'a/b' is no name of a topic"),
        ('["flights"]', '["flights-dead"]', "is the dead-letter topic too"),
        ("= 1000", "= 0", "max_offsets_per_trigger: expected an integer from 1"),
        ("max_offsets_per_trigger", "max_offset_per_trigger", "unknown key; did you mean max_offsets_per_trigger"),
        ('"json"', '"xml"', "expected one of raw, json, avro, protobuf, got 'xml'"),
        ('"flight.json"', '"none.json"', r"\[source.payload\] schema: .*none.json: No such file"),
        ('dead_letter_topic = "flights-dead"', "", "dead_letter_topic: must be given"),
        ('"flights-dead"', '"flights-dead"\nregistry = "http://x"', "registry: is for avro"),
        ('table = "tables/flights"', "", "give either table"),
        ('table = "tables/flights"', 'topic = "t"', "a load writes a table"),
        ('"state"', '"state"\ntrigger = "often"', "expected available-now, or a duration"),
        ('"tables/flights"', '"s3a://bucket/flights"', r"\[sink\] table: 's3a://bucket/flights' is a URL"),
        (
            '"tables/flights"',
            '"12:30/fl[1]"',
            r"12:30/fl\[1\]: Spark reads no path with both ':' and '\[' in it; rename",
        ),
        ('"state"', '"file:/data/state"', r"\[run\] checkpoint: 'file:/data/state' is a URL"),
        ("[sink]", "[sinks]", r"\[sink\]: must be given; is sinks meant"),
        ('topics = ["flights"]', 'topic = ["flights"]', r"\[source\] topics: must be given; is topic meant?"),
        ("[run]", "[extra]\n[run]", r"\[extra\]: unknown key"),
    ],
)
def test_a_wrong_setting_is_refused(folder, old, new, message):
    assert old in LOAD
    with pytest.raises(JobConfigError, match=message):
        load_job(write(folder, LOAD.replace(old, new, 1)))


PASSWORD = "s3cr3t-w0rd"
SECURED = """
[kafka]
security.protocol = "SASL_SSL"
ssl.truststore.location = "ca.pem"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "etl"
sasl.password = "${env:MOLDAU_TEST_PASSWORD}"
compression.type = "zstd"
fetch.min.bytes = 1000
"""


def test_the_keys_of_a_secured_cluster_are_read(folder, monkeypatch):
    """Names may be quoted or not; each option goes to the clients that know it; nothing shows the password."""
    monkeypatch.setenv("MOLDAU_TEST_PASSWORD", PASSWORD)
    job = load_job(write(folder, LOAD + SECURED))
    source, sink = job.config.cluster.source_options(), job.config.cluster.sink_options()
    login = {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(folder / "ca.pem"),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "etl",
        "kafka.sasl.password": PASSWORD,
    }
    assert source == login | {"kafka.fetch.min.bytes": "1000"}
    assert sink == login | {"kafka.compression.type": "zstd"}
    assert PASSWORD not in repr(job)


def test_a_file_may_have_a_byte_order_mark(folder):
    assert load_job(write(folder, f"\ufeff{LOAD}")).sink


def test_a_registry_may_refer_to_a_secret(folder, monkeypatch):
    monkeypatch.setenv("MOLDAU_TEST_LOGIN", f"al:{PASSWORD}%40")
    (folder / "flight.json").write_text('{"type": "record", "name": "R", "fields": []}')
    avro = LOAD.replace('"json"', '"avro"\nregistry = "https://${env:MOLDAU_TEST_LOGIN}@host:8081/"')
    job = load_job(write(folder, avro))
    assert (job.source.payload.registry, job.source.payload.registry_login) == (
        "https://host:8081",
        f"al:{PASSWORD}@",
    )
    assert PASSWORD not in repr(job)
    shown_logins = ("http://al:pass/word@host", "http://al:1/word@host", "http://al:pass#word@host")
    several = ("http://one:1,http://two:2", "http://one, two")
    wrongs = ("ftp://host", "http://[host", "http://host:99999", "http://host?a=b", "http://", *several, *shown_logins)
    for wrong in wrongs:
        with pytest.raises(JobConfigError, match=r"registry: (must be|is no URL)") as caught:
            load_job(write(folder, avro.replace("https://${env:MOLDAU_TEST_LOGIN}@host:8081/", wrong)))
        assert "word" not in str(caught.value)
    monkeypatch.delenv("MOLDAU_TEST_LOGIN")
    with pytest.raises(JobConfigError, match=r"\[source.payload\] registry: .*MOLDAU_TEST_LOGIN"):
        load_job(write(folder, avro))


@pytest.mark.parametrize("key", ["ssl.truststore.location", "ssl.keystore.location", "ssl.ca.location"])
def test_files_of_tls_are_relative_to_the_job(folder, key):
    table = f'[kafka]\nsecurity.protocol = "SSL"\n{key} = "keys/one.pem"\n'
    cluster = load_job(write(folder, LOAD + table)).config.cluster
    found = {options[f"kafka.{key}"] for options in (cluster.source_options(), cluster.sink_options())}
    assert found == {str(folder / "keys" / "one.pem")}


def test_a_command_gives_keys_that_the_file_leaves_out(folder):
    text = LOAD.replace('[cluster]\n"bootstrap.servers" = "127.0.0.1:9092"', "")
    given = {"bootstrap.servers": "b:1", "sasl.username": "al", "isolation.level": "read_uncommitted"}
    job = load_job(write(folder, text + '[kafka]\nsasl.username = "etl"\n'), given)
    assert job.config.cluster.servers == "b:1"
    assert job.config.cluster.keys["sasl.username"] == "etl"
    assert job.source.options["kafka.isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('sasl.username = "etl"\n"sasl.username" = "al"', "sasl.username is given twice"),
        ('"bootstrap.servers" = "b:1"', r"\[kafka\] bootstrap.servers: is in \[cluster\] too"),
        ('sasl.mechanism = "SECRET"', r"\[cluster\]: sasl.mechanism = 'SECRET': must be one of"),
        ('sasl.pasword = "SECRET"', "did you mean sasl.password"),
        ('isolation.levle = "SECRET"', "isolation.levle: unknown key of a client; did you mean isolation.level"),
        ("sasl.password = [1]", "sasl.password: expected a string or a number, got a list"),
        ('sasl.password = "${env:MOLDAU_NOT_THERE}"', "there is no environment variable MOLDAU_NOT_THERE"),
        ('sasl.password = "SECRET ${file:none.properties:x}"', "file:none.properties:x.*No such file"),
        ('acks = "1"', "acks: 1 is impossible"),
        ('transactional.id = "x"', "transactional.id is not supported"),
    ],
)
def test_a_wrong_client_key_is_reported_without_its_value(folder, table, message):
    with pytest.raises(JobConfigError, match=message) as caught:
        load_job(write(folder, f"{LOAD}[kafka]\n{table}\n"))
    if "mechanism" not in table:
        assert "SECRET" not in str(caught.value)


def test_settings_of_spark_may_be_references(folder, monkeypatch):
    monkeypatch.setenv("MOLDAU_TEST_PASSWORD", PASSWORD)
    text = LOAD + '[spark]\n"spark.hadoop.fs.s3a.secret.key" = "${env:MOLDAU_TEST_PASSWORD}"\n'
    job = load_job(write(folder, text))
    assert job.config.session == {"spark.hadoop.fs.s3a.secret.key": PASSWORD}
    assert PASSWORD not in repr(job)


READERS = {
    "load.toml": load_job,
    "aggregate.toml": aggregate_job,
    "sessions.toml": sessions_job,
    "join.toml": join_job,
    "view.toml": view_job,
    "export.toml": export_job,
}


def documented():
    """Returns the files of docs/pipelines.md by name."""
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
    return dict(re.findall(r"^```toml\n# (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", READERS)
def test_the_files_of_the_documentation_are_right(folder, name):
    assert set(documented()) == set(READERS)
    READERS[name](write(folder, documented()[name]))


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "aggregate",
            "keys = { origin",
            "keys = { window_start",
            r"keys\.window_start: the job itself has a column of",
        ),
        ("aggregate", "{ flights =", "{ Origin =", r"\[aggregate\] columns\.Origin: keys\.origin has a column of this"),
        ("sessions", "route =", "session_end =", r"\[sessions\] columns\.session_end: the job itself has"),
        ("sessions", "route =", "plane =", r"columns\.plane: keys\.plane has a column of this name; give this one"),
    ],
)
def test_columns_of_a_result_have_names_of_their_own(folder, name, old, new, message):
    text = documented()[f"{name}.toml"]
    assert old in text
    with pytest.raises(JobConfigError, match=message):
        READERS[f"{name}.toml"](write(folder, text.replace(old, new, 1)))


@pytest.mark.parametrize("name", ["aggregate", "sessions", "join"])
def test_a_job_reads_nothing_that_it_writes(folder, name):
    """Each further run would take the results of the one before it for records."""
    text = documented()[f"{name}.toml"]
    topic = re.search(r'topics = \["(\w+)"\]', text)[1]
    text = re.sub(r'^table = ".*"$', f'topic = "{topic}"', text, flags=re.MULTILINE)
    place = "left" if name == "join" else "source"
    with pytest.raises(
        JobConfigError, match=rf"\[sink\] topic: {topic} is in \[{place}\] topics too, and the job would"
    ):
        RUNS[name](write(folder, text))


def test_the_letters_of_one_side_are_not_read_as_the_other(folder):
    payload = '[left.payload]\nformat = "json"\nschema = "flight.json"\ndead_letter_topic = "arrivals"\n[right]'
    text = documented()["join.toml"].replace("[right]", payload, 1)
    with pytest.raises(
        JobConfigError, match=r"\[left.payload\] dead_letter_topic: arrivals is in \[right\] topics too"
    ):
        RUNS["join"](write(folder, text))


@pytest.mark.parametrize(
    ("function", "argument", "wanted"),
    [
        ("sum", types.StringType(), "numbers"),
        ("sum", types.TimestampType(), "numbers"),
        ("sum", types.ArrayType(types.LongType()), "numbers"),
        ("max", types.StructType(), "values that have an order"),
        ("min", types.MapType(types.StringType(), types.LongType()), "values that have an order"),
        ("first", types.StringType("UNICODE_CI"), "texts without a collation"),
        (
            "list",
            types.StructType().add("a", types.ArrayType(types.StringType("UNICODE"))),
            "texts without a collation",
        ),
        ("count", types.StringType("UNICODE_CI"), None),
        ("sum", types.DecimalType(10, 2), None),
        ("sum", types.BooleanType(), None),
        ("max", types.StringType(), None),
        ("min", types.BinaryType(), None),
        ("list", types.StructType(), None),
        ("count", types.StringType(), None),
    ],
)
def test_a_function_of_a_session_fits_its_argument(function, argument, wanted):
    """A session that closes would fail otherwise, with an error about types of Python, at each further start."""
    if wanted is None:
        assert column_type("c", function, argument) is not None
        return
    with pytest.raises(
        JobConfigError, match=rf"\[sessions\] columns: c: {function} takes {wanted}, and its argument is"
    ):
        column_type("c", function, argument)


def test_the_cause_of_a_failure_is_one_line():
    text = "An error occurred.\n: org.SparkException: Could not parse Master URL: 'y'\n\tat org.A(B.java:1)"
    assert first_line(text) == "org.SparkException: Could not parse Master URL: 'y'"
    lost = "flights was deleted and created again; set failOnDataLoss to false to continue without them"
    text = (
        f"[PYTHON_ERROR] Failed when Python streaming data source plans: pyspark_moldau.errors.DataLossError: {lost}\n"
    )
    assert first_line(text + "\tat org.A(B.java:1)") == lost
    assert for_jobs(lost).endswith("set [source] fail_on_data_loss = false to continue without them")


def test_the_cause_of_a_failed_write_is_shown():
    """Spark says only that a task failed while it wrote rows."""
    failed = "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/t"
    cause = "java.io.IOException: No space left on device"
    text = f": {failed}\n\tat A.b(C.java:1)\nCaused by: org.apache.hadoop.fs.FSError: {cause}\nCaused by: {cause}\n"
    assert first_line(text) == f"{failed} ({cause})"
    assert first_line(f": {failed}\n\tat A.b(C.java:1)\n") == failed
    lost = "Caused by: org.A: worker: pyspark_moldau.errors.DataLossError: records 0..4 of t-0 are gone\n"
    assert first_line(text + lost) == "records 0..4 of t-0 are gone"


def test_records_that_are_gone_may_be_left_out(folder):
    job = load_job(write(folder, LOAD.replace("max_offsets", "fail_on_data_loss = false\nmax_offsets")))
    assert job.source.options["failOnDataLoss"] == "false"
    with pytest.raises(JobConfigError, match=r"\[source\] fail_on_data_loss: expected true or false, got 'no'"):
        load_job(write(folder, LOAD.replace("max_offsets", "fail_on_data_loss = 'no'\nmax_offsets")))


@pytest.fixture
def nowhere():
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"127.0.0.1:{port}"


def test_a_first_run_soon_reports_a_wrong_address(folder, nowhere, monkeypatch):
    """A later run waits for an outage to end."""
    monkeypatch.setattr(job_config, "FIRST_MS", 100)
    file = write(folder, LOAD.replace("127.0.0.1:9092", nowhere))
    with pytest.raises(ReadTimeoutError, match=rf"no broker at {nowhere} answered within 0\.1 s"):
        run_load(load_job(file), "no session")
    commit = folder / "state" / "main" / "commits" / "0"
    commit.parent.mkdir(parents=True)
    commit.write_text("v1")
    own_table(folder / "tables" / "flights", "q1", "parquet", ["topic", "date"])
    monkeypatch.setattr(job_config, "FIRST_MS", 50_000)
    servers = f'"bootstrap.servers" = "{nowhere}"'
    given = file.read_text().replace(servers, f'{servers}\n"default.api.timeout.ms" = 200')
    with pytest.raises(ReadTimeoutError, match=r"within 0\.2 s"):
        run_load(load_job(write(folder, given)), "no session")


def test_a_checkpoint_of_another_job_is_refused(folder, nowhere, monkeypatch):
    """Spark would go on from it: an aggregation would take what a load has read for read, and leave it out."""
    monkeypatch.setattr(job_config, "FIRST_MS", 100)
    with pytest.raises(ReadTimeoutError):
        run_load(load_job(write(folder, LOAD.replace("127.0.0.1:9092", f"{nowhere}"))), "no session")
    aggregate = LOAD.split("[sink]")[0].replace("127.0.0.1:9092", nowhere) + (
        "[sink]\ntable = 'delays'\n[aggregate]\nevent_time = 'timestamp'\nwatermark = '1 hour'\nwindow = '1 hour'\n"
        "keys = { k = 'key' }\ncolumns = { n = 'count(*)' }\n"
    )
    with pytest.raises(ReadTimeoutError):  # nothing has been read yet, so the folder becomes this job's
        run_aggregate(aggregate_job(write(folder, aggregate)), "no session")
    commit = folder / "state" / "main" / "commits" / "0"
    commit.parent.mkdir(parents=True)
    commit.write_text("v1")
    own_table(folder / "delays", "q1", "parquet", [])
    for kind, text in (("load", LOAD), ("aggregate", aggregate.replace("'delays'", "'others'"))):
        with pytest.raises(JobConfigError, match=r"state is that of another job \(aggregate to \.\./delays\).*delete"):
            RUNS[kind](write(folder, text))
    moved = folder.rename(folder.with_name("moved"))
    given = aggregate.replace("[run]", '"default.api.timeout.ms" = 100\n[run]')
    with pytest.raises(ReadTimeoutError):
        run_aggregate(aggregate_job(write(moved, given)), "no session")


STATEFUL = [
    ("aggregate", "columns", '{ flights = "count(*)", delay', '{ delay = "sum(value.delay)", late'),
    ("aggregate", "window", 'window = "1 hour"', 'window = "1 hour"\nslide = "30 minutes"'),
    ("aggregate", "keys", 'origin = "value.origin"', 'plane = "value.plane"'),
    ("sessions", "columns", "[sessions.columns]", '[sessions.columns]\nworst = "max(value.delay)"'),
    ("sessions", "keys", 'plane = "value.plane"', 'origin = "value.origin"'),
    ("join", "columns", 'departure = "l.value"', 'departure = "l.topic"'),
    ("join", "on", 'on = "l.key = r.key"', 'on = "l.value = r.value"'),
]


@pytest.mark.parametrize(("name", "setting", "old", "new"), STATEFUL)
def test_a_state_is_not_taken_for_another(folder, nowhere, monkeypatch, name, setting, old, new):
    """Spark compares the types in a state: columns in another order would swap the values of open windows."""
    monkeypatch.setattr(job_config, "FIRST_MS", 100)
    monkeypatch.setattr(job_config, "KNOWN_MS", 100)
    text = documented()[f"{name}.toml"].replace("127.0.0.1:9092", nowhere)
    changed = text.replace(old, new, 1)
    assert changed != text

    def run(given):
        with pytest.raises((JobConfigError, ReadTimeoutError)) as caught:
            RUNS[name](write(folder, given))
        return None if caught.type is ReadTimeoutError else str(caught.value)

    assert (run(text), run(changed), run(text)) == (None, None, None), "there is no state yet"
    planned = folder / "state" / name / "main" / "offsets" / "0"
    planned.parent.mkdir(parents=True)
    planned.write_text("v1")
    shown = "slide" if "slide" in new else setting
    assert re.search(rf"\[{name}\] {shown}: is .*, and the state in .*main was made with .* Set it back", run(changed))
    assert run(text) is None, "the note is still that of the state"
    assert run(text.replace('watermark = "2 hours"', 'watermark = "3 hours"')) is None
    note = json.loads((folder / "state" / name / folders.JOB).read_text())
    del note[folders.STATE]  # as an earlier release left it
    (folder / "state" / name / folders.JOB).write_text(json.dumps(note))
    assert (run(text), run(changed) is None) == (None, False)


def test_a_table_that_is_gone_is_not_begun_again(folder, nowhere, monkeypatch):
    """Its disk is not mounted, or it was removed: a new table would lack the rows that count as read."""
    monkeypatch.setattr(job_config, "FIRST_MS", 100)
    monkeypatch.setattr(job_config, "KNOWN_MS", 100)
    text = LOAD.replace("127.0.0.1:9092", nowhere)

    def is_begun():
        with pytest.raises((JobConfigError, ReadTimeoutError)) as caught:
            run_load(load_job(write(folder, text)), "no session")
        return caught.type is ReadTimeoutError or str(caught.value)

    assert is_begun() is True
    (folder / "state" / "dead-letters" / "commits").mkdir(parents=True)
    (folder / "state" / "dead-letters" / "commits" / "0").write_text("v1")
    assert is_begun() is True, "the query that copies dead letters writes no table"
    (folder / "state" / "main" / "commits").mkdir(parents=True)
    (folder / "state" / "main" / "commits" / "0").write_text("v1")
    assert re.search(r"\[sink\] table: .* is not there any more, .*mounted.* remove .*main to read", str(is_begun()))
    own_table(folder / "tables" / "flights", "q1", "parquet", ["topic", "date"])
    assert is_begun() is True
    (folder / "tables" / "flights" / OWNER).rename(folder / "elsewhere")
    assert is_begun() is not True
    (folder / "state" / folders.JOB).unlink()  # the way to go on without the rows
    assert is_begun() is True


@pytest.mark.parametrize("has_locks", [True, False], ids=["locks", "a file system without locks"])
def test_two_runs_of_a_job_do_not_meet(folder, nowhere, monkeypatch, has_locks):
    """As a timetable starts them when one takes too long: both would write the same batches, and compact the table."""
    monkeypatch.setattr(job_config, "FIRST_MS", 100)
    job = load_job(write(folder, LOAD.replace("127.0.0.1:9092", nowhere)))
    if not has_locks:
        monkeypatch.setattr(folders.fcntl, "flock", raising(OSError("no locks")))
    error, text = (
        (JobError, "another run of this job is at work in") if has_locks else (ReadTimeoutError, "no broker at")
    )
    with folders.held(job.config.root, job.config.checkpoint), pytest.raises(error, match=text):
        run_load(job, "no session")
    with pytest.raises(ReadTimeoutError):
        run_load(job, "no session")


@pytest.mark.parametrize("run", [run_load, run_aggregate, run_join, run_sessions])
def test_each_job_with_a_sink_keeps_other_runs_away(folder, run):
    job = load_job(write(folder, LOAD))
    queried = {"window": "1 hour", "slide": None, "keys": {}, "columns": {}, "kind": "inner", "on": "id = id"}
    topics = {"source": job.source, "left": job.source, "right": job.source, "sink": job.sink}
    job = SimpleNamespace(config=job.config, **topics, **queried)
    with folders.held(job.config.root, job.config.checkpoint), pytest.raises(JobBusyError, match="another run"):
        run(job, "no session")


def test_a_job_is_held_until_its_queries_have_ended(folder, monkeypatch):
    """The folder is locked before it is looked at, and free again if the check refuses the job."""
    job, seen = load_job(write(folder, LOAD)), []

    def is_held():
        try:
            with folders.held(job.config.root, job.config.checkpoint):
                return False
        except JobBusyError:
            return True

    monkeypatch.setattr(running_module, "check_job", lambda *given, state: seen.append((is_held(), given, state)))
    with running(job.config, "load", {"source": job.source}, job.sink, "a session", state={"keys": "k"}) as session:
        assert (session, is_held()) == ("a session", True)
    assert seen == [(True, (job.config, "load", {"source": job.source}, job.sink), {"keys": "k"})]
    assert not is_held()
    monkeypatch.setattr(running_module, "check_job", raising(JobConfigError("no")))
    with pytest.raises(JobConfigError, match="no"), running(job.config, "load", {}, job.sink, "a session"):
        raise AssertionError("a job that was refused does not run")
    assert not is_held()


def test_folders_are_looked_at_before_spark_starts(folder, nowhere):
    (folder / "state").write_text("a file")
    with pytest.raises(JobConfigError, match=r"\[run\] checkpoint: .*state cannot be used: File exists; name a folder"):
        run_load(load_job(write(folder, LOAD)), "no session")
    text = LOAD.split("[source]")[0] + "[sink]\ntopic = 't'\n[export]\ntable = 'absent'\nname = 'n'\nversion = 1\n"
    with pytest.raises(JobConfigError, match=r"\[export\] table: .*absent does not exist"):
        run_export(export_job(write(folder, text)), "no session")


def test_an_export_names_what_its_version_does_not_have(folder):
    text = LOAD.split("[source]")[0] + "[sink]\ntopic = 't'\n[export]\ntable = 'f'\nname = 'n'\nversion = 1\n"
    job = export_job(write(folder, text))
    for rows, count, answer in (
        (5, 5, "n, version 1: 5 rows are in topic t"),
        (5, 8, "5 rows are in topic t\nit was written before, and the table has 8 rows for it now: .* greater version"),
        (None, 8, "n, version 1: it was written before; the table has 8 rows for it now"),
    ):
        assert re.search(f"{answer}$", export_text(job, ExportReport(rows=rows, table_rows=count)))


def test_an_export_calls_name_and_version_by_its_own_keys(folder):
    """Its errors named options of the sink, and that of a long name came after the start of Spark."""
    text = LOAD.split("[source]")[0] + "[sink]\ntopic = 't'\n[export]\ntable = 'f'\nversion = 1\nname = '{}'\n"
    assert export_job(write(folder, text.format("ü" * 150))).name == "ü" * 150
    with pytest.raises(JobConfigError, match=r"\[export\] name: expected at most 150 characters, got 151"):
        export_job(write(folder, text.format("x" * 151)))
    refused = SinkError("batch 3: batch 5 is decided already. A job needs a txnVersion above 5")
    assert reason_of(refused).endswith("A job needs a [export] version above 5")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(JobConfigError, match="No such file"):
        export_job(tmp_path / "none.toml")


def test_a_table_keeps_its_query(tmp_path):
    own_table(tmp_path / "t", "q1", "parquet", ["date"])
    own_table(tmp_path / "t", "q1", "parquet", ["date"])
    with pytest.raises(JobError, match="written by another query"):
        own_table(tmp_path / "t", "q2", "parquet", ["date"])
    with pytest.raises(JobError, match="has format 'parquet', and the job says 'delta'"):
        own_table(tmp_path / "t", "q1", "delta", ["date"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(JobError, match="something other than a table"):
        own_table(tmp_path / "other", "q1", "parquet", [])
    (tmp_path / "t" / OWNER).write_text("{")
    with pytest.raises(JobError, match="damaged"):
        own_table(tmp_path / "t", "q1", "parquet", ["date"])
