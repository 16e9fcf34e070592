"""Goal: each setting of a job's file takes the values that it should, no others, and has the documented default.

Method: each kind of setting gets each kind of value that TOML has; each number gets the values at its bounds.
"""

import datetime
import json
from pathlib import Path

import pytest

from pyspark_moldau.jobs.aggregate import aggregate_job
from pyspark_moldau.jobs.config import job_config
from pyspark_moldau.jobs.config.job_config import duration, duration_or
from pyspark_moldau.jobs.config.settings import Section
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.export import export_job
from pyspark_moldau.jobs.join import join_job
from pyspark_moldau.jobs.load import load_job
from pyspark_moldau.jobs.sessions import sessions_job
from pyspark_moldau.jobs.views import view_job

DAY = datetime.date(2026, 1, 2)
VALUES = (True, False, 0, 1, 5, 6, -1, 1.5, "", "a", "b", "5", [], ["a"], ["a", ""], ["a", 1], {}, {"n": "v"}, DAY)
ABSENT = object()
KINDS = {
    "text": (lambda section: section.text("k"), {"a": "a", "b": "b", "5": "5"}),
    "text or a": (lambda section: section.text("k", "a"), {ABSENT: "a", "a": "a", "b": "b", "5": "5"}),
    "text or none": (lambda section: section.text("k", ""), {ABSENT: "", "": "", "a": "a", "b": "b", "5": "5"}),
    "choice": (lambda section: section.choice("k", ("a", "c")), {"a": "a"}),
    "choice or c": (lambda section: section.choice("k", ("a", "c"), "c"), {ABSENT: "c", "a": "a"}),
    "number": (lambda section: section.number("k", 3, at_least=1, at_most=5), {ABSENT: 3, 1: 1, 5: 5}),
    "flag": (lambda section: section.flag("k", True), {ABSENT: True, True: True, False: False}),
    "texts": (lambda section: section.texts("k"), {"[a]": ("a",)}),
    "texts or b": (lambda section: section.texts("k", ("b",)), {ABSENT: ("b",), "[a]": ("a",), "[]": ()}),
    "mapping": (lambda section: section.mapping("k"), {"{n}": {"n": "v"}}),
    "mapping or none": (
        lambda section: section.mapping("k", required=False),
        {ABSENT: {}, "{n}": {"n": "v"}, "{}": {}},
    ),
    "dotted": (lambda section: section.dotted("k"), {ABSENT: {}, "{n}": {"n": "v"}, "{}": {}}),
    "section": (lambda section: type(section.section("k")), {"{n}": Section, "{}": Section}),
    "section or none": (
        lambda section: section.section("k", required=False).name,
        {ABSENT: "s.k", "{n}": "s.k", "{}": "s.k"},
    ),
    "path": (lambda section: section.path("k", Path("/x")), {name: Path("/x") / name for name in ("a", "b", "5")}),
}
"""How a setting is taken, and what is made of the values that are right."""
NAMES = {"[]": [], "[a]": ["a"], "{}": {}, "{n}": {"n": "v"}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_takes_the_values_of_its_kind(kind):
    """True is no number, an empty text stands for none, and a section is without the keys that were taken."""
    take, right = KINDS[kind]
    expected = [(NAMES.get(value, value) if isinstance(value, str) else value, made) for value, made in right.items()]
    for value in (ABSENT, *VALUES):
        section = Section("job.toml", "s", {} if value is ABSENT else {"k": value})
        found = [made for each, made in expected if each is value or (type(each) is type(value) and each == value)]
        if found:
            assert take(section) == found[0], value
            section.finish()
            continue
        with pytest.raises(JobConfigError, match=r"^job\.toml: \[s\] k: "):
            take(section)


@pytest.mark.parametrize("take", [lambda section: section.mapping("k"), lambda section: section.dotted("k")])
def test_numbers_and_booleans_have_the_text_of_kafka(take):
    given = {"yes": True, "no": False, "n": 0, "x": 1.5, "t": "", "all": ["a", "b"]}
    expected = {"yes": "true", "no": "false", "n": "0", "x": "1.5", "t": "", "all": "a,b"}
    assert take(Section("job.toml", "s", {"k": given})) == expected
    for wrong in (DAY, ["a", 1], None):
        with pytest.raises(JobConfigError, match=r"\[s\] k: n: expected a string or a number, got a \w+$"):
            take(Section("job.toml", "s", {"k": given | {"n": wrong}}))


def test_names_with_dots_may_be_tables():
    given = {"a": {"b": {"c": 1}, "d": "x"}, "a.e": True}
    assert Section("job.toml", "s", {"k": given}).dotted("k") == {"a.b.c": "1", "a.d": "x", "a.e": "true"}


DURATIONS = {
    **dict.fromkeys(["1 second", "10 seconds", "2 minutes", "1 hour", "52 weeks", f"{10**9 - 1} seconds"], True),
    **dict.fromkeys(["0 seconds", "01 hour", f"{10**9} days", "1 month", "1  hour", "1hour", "-1 hour", "1.5 hours"]),
    **dict.fromkeys(["1 hour ", "often", "x 1 hour"]),
}


@pytest.mark.parametrize("text", DURATIONS)
def test_a_duration_is_a_number_and_a_unit(text):
    for take in (lambda section: duration(section, "k"), lambda section: duration_or(section, "k", "now")):
        section = Section("job.toml", "s", {"k": text})
        if DURATIONS[text]:
            assert take(section) == text
            continue
        with pytest.raises(JobConfigError, match=r"\[s\] k: expected .*'10 seconds'.*, got"):
            take(section)
    assert duration_or(Section("job.toml", "s", {}), "k", "now") == "now"
    assert duration_or(Section("job.toml", "s", {"k": "now"}), "k", "now") == "now"


@pytest.mark.parametrize("name", ["a", ".a", "...", "A-Z_0.9", "x" * 249])
def test_a_topic_has_a_name_of_kafka(name):
    section = Section("job.toml", "s", {})
    assert job_config.check_topic(section, "topic", name) == name
    for wrong in ("", ".", "..", "x" * 250, f"{name}/", f" {name}", f"{name}\n", "é"):
        with pytest.raises(JobConfigError, match=r"\[s\] topic: .* is no name of a topic"):
            job_config.check_topic(section, "topic", wrong)


CLUSTER = {"cluster": {"bootstrap.servers": "b:1"}, "run": {"checkpoint": "state"}}
TABLE = {"sink": {"table": "t"}}
SOURCE = {"source": {"topics": ["flights"]}}
FILES = {
    "load": (load_job, CLUSTER | SOURCE | TABLE),
    "aggregate": (
        aggregate_job,
        CLUSTER
        | SOURCE
        | TABLE
        | {"aggregate": {"watermark": "1 day", "window": "2 hours", "columns": {"n": "count(*)"}}},
    ),
    "sessions": (
        sessions_job,
        CLUSTER
        | SOURCE
        | TABLE
        | {"sessions": {"watermark": "1 day", "gap": "2 hours", "keys": {"k": "key"}, "columns": {"n": "count(*)"}}},
    ),
    "join": (
        join_job,
        CLUSTER
        | TABLE
        | {"left": SOURCE["source"], "right": {"topics": ["others"]}}
        | {
            "join": {
                "left_watermark": "1 day",
                "right_watermark": "2 days",
                "before": "3 hours",
                "after": "4 hours",
                "on": "l.key = r.key",
                "columns": {"a": "l.value"},
            }
        },
    ),
    "view": (view_job, CLUSTER | SOURCE | {"view": {"path": "v", "query": "select 1"}}),
    "export": (export_job, CLUSTER | {"sink": {"topic": "o"}, "export": {"table": "t", "name": "n", "version": 7}}),
}
"""The shortest file of each job: what reads it, and its sections."""


def text_of(document):
    """Returns a document of two levels as TOML, whose texts, numbers and lists are those of JSON."""
    parts = []
    for name, section in document.items():
        tables = {key: value for key, value in section.items() if isinstance(value, dict)}
        parts += [
            f"[{name}]",
            *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in section.items() if key not in tables),
        ]
        for key, table in tables.items():
            parts += [
                f"[{name}.{key}]",
                *(f"{json.dumps(each)} = {json.dumps(value)}" for each, value in table.items()),
            ]
    return "\n".join(parts)


@pytest.fixture
def read(tmp_path):
    """Returns a function that reads the file of a job, with some sections changed."""

    def function(kind, **changes):
        reader, document = FILES[kind]
        changed = document | {name: document.get(name, {}) | more for name, more in changes.items()}
        (tmp_path / "job.toml").write_text(text_of(changed))
        return reader(tmp_path / "job.toml")

    return function


def test_a_setting_that_is_left_out_has_its_default(read, tmp_path):
    load = read("load")
    assert (load.config.trigger, load.config.cores, dict(load.config.session)) == ("available-now", 2, {})
    assert (load.config.checkpoint, load.config.folder) == (tmp_path / "state", tmp_path)
    assert (load.source.topics, load.source.starting_offsets) == (("flights",), "earliest")
    assert load.source.options == {"kafka.isolation.level": "read_committed"}
    assert load.source.payload == job_config.PayloadConfig()
    assert load.sink == job_config.SinkConfig(
        path=tmp_path / "t", format="parquet", partition_by=("topic", "date"), topic="", key="", value=""
    )
    assert load.compact_files == 0
    aggregate = read("aggregate")
    assert (aggregate.event_time, aggregate.where, aggregate.output) == ("timestamp", "", "append")
    assert (aggregate.watermark, aggregate.window, aggregate.slide) == ("1 day", "2 hours", "2 hours")
    assert (aggregate.keys, aggregate.columns, aggregate.sink.partition_by) == ({}, {"n": "count(*)"}, ())
    sessions = read("sessions")
    assert (sessions.event_time, sessions.where, sessions.events_max) == ("timestamp", "", 100_000)
    assert (sessions.watermark, sessions.gap_ms) == ("1 day", 7_200_000)
    assert (sessions.keys, sessions.columns) == ({"k": "key"}, {"n": ("count", "1")})
    join = read("join")
    assert (join.kind, join.times, join.watermarks) == ("inner", ("timestamp", "timestamp"), ("1 day", "2 days"))
    assert (join.before, join.after, join.on, join.columns) == ("3 hours", "4 hours", "l.key = r.key", {"a": "l.value"})
    assert (join.left.topics, join.right.topics) == (("flights",), ("others",))
    view = read("view")
    assert (view.path, view.query, view.merge) == (tmp_path / "v", "select 1", "")
    export = read("export")
    assert (export.table, export.where, export.order_by, export.name, export.version) == (
        tmp_path / "t",
        "",
        (),
        "n",
        7,
    )
    assert (export.sink.topic, export.sink.path, export.sink.key, export.sink.value) == ("o", None, "", "")


NUMBERS = [
    ("load", "run", "cores", 1, 1024, lambda job: job.config.cores),
    ("load", "load", "compact_files", 0, 10**6, lambda job: job.compact_files),
    (
        *("load", "source", "max_offsets_per_trigger", 1, 2**31 - 1),
        lambda job: int(job.source.options["maxOffsetsPerTrigger"]),
    ),
    (
        *("load", "source", "max_records_per_task", 1, 2**31 - 1),
        lambda job: int(job.source.options["maxRecordsPerPartition"]),
    ),
    ("sessions", "sessions", "events_max", 1, 10**7, lambda job: job.events_max),
    ("export", "export", "version", 0, 2**31 - 1, lambda job: job.version),
]


@pytest.mark.parametrize(("kind", "section", "key", "least", "most", "found"), NUMBERS)
def test_a_number_may_be_at_its_bounds_and_not_beyond(read, kind, section, key, least, most, found):
    for value in (least, most):
        assert found(read(kind, **{section: {key: value}})) == value
    for value in (least - 1, most + 1):
        with pytest.raises(JobConfigError, match=rf"\[{section}\] {key}: expected an integer from {least} to {most}"):
            read(kind, **{section: {key: value}})


TEXTS = [
    ("load", "run", "trigger", "5 minutes", lambda job: job.config.trigger),
    ("load", "source", "starting_offsets", "latest", lambda job: job.source.starting_offsets),
    ("load", "source", "isolation_level", "read_uncommitted", lambda job: job.source.options["kafka.isolation.level"]),
    ("load", "sink", "format", "delta", lambda job: job.sink.format),
    ("load", "sink", "partition_by", ["date"], lambda job: [*job.sink.partition_by]),
    (
        "load",
        "cluster",
        "isolation.level",
        "READ_UNCOMMITTED",
        lambda job: job.source.options["kafka.isolation.level"].upper(),
    ),
    ("aggregate", "aggregate", "slide", "1 hour", lambda job: job.slide),
    ("aggregate", "aggregate", "event_time", "value.at", lambda job: job.event_time),
    ("aggregate", "aggregate", "where", "key is not null", lambda job: job.where),
    ("sessions", "sessions", "event_time", "value.at", lambda job: job.event_time),
    ("sessions", "sessions", "where", "key is not null", lambda job: job.where),
    ("sessions", "sessions", "gap", "3 seconds", lambda job: f"{job.gap_ms // 1000} seconds"),
    ("join", "join", "type", "left-outer", lambda job: job.kind),
    ("join", "join", "left_time", "value.at", lambda job: job.times[0]),
    ("join", "join", "right_time", "value.at", lambda job: job.times[1]),
    ("view", "view", "merge", "select 2", lambda job: job.merge),
    ("export", "export", "where", "a > 1", lambda job: job.where),
    ("export", "export", "order_by", ["a", "b"], lambda job: [*job.order_by]),
    ("export", "sink", "key", "a", lambda job: job.sink.key),
    ("export", "sink", "value", "b", lambda job: job.sink.value),
]


@pytest.mark.parametrize(("kind", "section", "key", "value", "found"), TEXTS)
def test_a_setting_that_is_given_counts(read, kind, section, key, value, found):
    assert found(read(kind, **{section: {key: value}})) == value


SECTIONS = [(kind, name) for kind, (_, document) in FILES.items() for name in (*document, "kafka", "spark")]


@pytest.mark.parametrize(
    ("kind", "section"), [each for each in SECTIONS if each[1] not in ("cluster", "kafka", "spark")]
)
def test_no_section_takes_a_key_that_it_does_not_know(read, kind, section):
    """A misspelt key would be without effect, and the job would run by a default."""
    with pytest.raises(JobConfigError, match=rf"\[{section}\] zzz: unknown key; known here: "):
        read(kind, **{section: {"zzz": "x"}})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("aggregate", {"aggregate": {"output": "update"}}, r"\[aggregate\] output: update writes changes"),
        ("view", {"source": {"starting_offsets": "latest"}}, r"\[view\] source: a view begins at offset zero"),
        ("sessions", {"sessions": {"columns": {"n": "avg(a)"}}}, r"columns: n: expected one of first, last, sum"),
        ("sessions", {"sessions": {"columns": {"n": "count()"}}}, r"columns: n: expected one of .* with an argument"),
        ("load", {"sink": {"topic": "o"}}, r"\[sink\] table: give either table"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(read, kind, changes, message):
    with pytest.raises(JobConfigError, match=message):
        read(kind, **changes)


@pytest.mark.parametrize("name", ["a%20b", "%7e", "a[1]", "a^b", "a|b", "a\\b", "a\tb"])
def test_no_delta_table_is_in_a_folder_that_deltalake_misreads(read, name):
    """It unquotes the first ones, so that the second batch found no table, and its Rust code panics at others."""
    with pytest.raises(JobConfigError, match=r"\[sink\] table: .*the path of a Delta table must not contain '"):
        read("load", sink={"table": name, "format": "delta"})
    assert read("load", sink={"table": name, "format": "parquet"}).sink.path.name == name
    assert read("load", sink={"table": "a b=ü%+#?", "format": "delta"}).sink.path.name == "a b=ü%+#?"


def test_changes_may_be_written_to_a_topic(tmp_path):
    (_, document) = FILES["aggregate"]
    document = document | {"sink": {"topic": "o"}, "aggregate": document["aggregate"] | {"output": "update"}}
    (tmp_path / "job.toml").write_text(text_of(document))
    job = aggregate_job(tmp_path / "job.toml")
    assert (job.output, job.sink.topic, job.sink.path) == ("update", "o", None)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("count(*)", ("count", "1")),
        (" sum( value.a ) ", ("sum", " value.a ")),
        ("list(f(a, b))", ("list", "f(a, b)")),
        ("max(a\n+ b)", ("max", "a\n+ b")),
    ],
)
def test_a_column_of_sessions_is_a_function_of_an_expression(read, text, call):
    assert read("sessions", sessions={"columns": {"n": text}}).columns == {"n": call}


@pytest.mark.parametrize(
    ("size", "is_read"), [(job_config.SCHEMA_BYTES_MAX, True), (job_config.SCHEMA_BYTES_MAX + 1, False)]
)
def test_a_schema_file_has_a_limit(read, tmp_path, size, is_read):
    (tmp_path / "s.json").write_bytes(b"x" * size)
    payload = {"source": {"payload": {"format": "json", "schema": "s.json", "dead_letter_topic": "dead"}}}
    if is_read:
        assert len(read("load", **payload).source.payload.schema) == size
        return
    with pytest.raises(JobConfigError, match=r"\[source\.payload\] schema: .*s\.json has more than 4194304 bytes"):
        read("load", **payload)


@pytest.mark.parametrize("kind", job_config.FORMATS)
def test_a_payload_takes_the_settings_of_its_format(read, tmp_path, kind):
    """A registry is for Avro, a message for Protobuf, and raw values have none of the settings."""
    (tmp_path / "schema").write_bytes(b"x")
    wanted = {} if kind == "raw" else {"schema": "schema", "dead_letter_topic": "dead"}
    wanted |= {"message": "a.B"} if kind == "protobuf" else {}
    extra = {"avro": {"registry": "http://al:p%40ss@h:1/"}}.get(kind, {})
    read("load", source={"payload": {"format": kind} | wanted})
    payload = read("load", source={"payload": {"format": kind} | wanted | extra}).source.payload
    assert payload == job_config.PayloadConfig(
        format=kind,
        schema=b"x" if wanted else b"",
        registry="http://h:1" if extra else "",
        registry_login="al:p@ss" if extra else "",
        message=wanted.get("message", ""),
        dead_letter_topic=wanted.get("dead_letter_topic", ""),
    )
    for key in {"schema", "dead_letter_topic", "message", "registry"} - extra.keys():
        given = wanted | {key: "http://h"}
        if key in wanted:
            del given[key]
        message = "must be given" if key in wanted else "(unknown key|is for avro)"
        with pytest.raises(JobConfigError, match=rf"\[source\.payload\] {key}: {message}"):
            read("load", source={"payload": {"format": kind} | given})


def test_a_file_of_tls_may_be_left_empty(read, tmp_path):
    """An empty value takes a key of the command back; a path in another folder stays one."""
    keys = read("load", cluster={"ssl.truststore.location": "", "ssl.keystore.location": "/k.pem"}).config.cluster.keys
    assert (keys["ssl.truststore.location"], keys["ssl.keystore.location"]) == ("", "/k.pem")


@pytest.mark.parametrize("text", ["36501 days", "999999999 weeks", "5215 weeks"])
def test_a_duration_stays_within_the_times_of_spark(text):
    """Spark failed with an overflow, or joined all records for ever."""
    for take in (lambda section: duration(section, "k"), lambda section: duration_or(section, "k", "now")):
        with pytest.raises(JobConfigError, match=f"expected at most 36500 days, got '{text}'"):
            take(Section("job.toml", "s", {"k": text}))
    assert duration(Section("job.toml", "s", {"k": "999999999 seconds"}), "k") == "999999999 seconds"
