"""Goal: each option of ``consume`` and ``produce`` has its effect, and no other one.

Method: the commands run up to the client; the requests, rules and settings that it would get are compared.
"""

import math
import time
from dataclasses import replace

import pytest

from moldau_cli.commands import consume, produce
from moldau_cli.records.core.lines import LineRules, parse_document, parse_line
from moldau_cli.records.core.positions import Origin, Span
from moldau_cli.records.core.values import Content, Row
from moldau_cli.records.formats import DataFormat, Encoding
from moldau_cli.records.reading import OnError, Request
from support.client.sample_admin import NOON_MS
from support.commands import run_command

AN_HOUR_AGO_MS = NOON_MS - 3_600_000
ROW = Row("t", 1, 42, 1_700_000_000_000, Content(b"k", b"k"), Content(b"v", b"v"), (("h", b"x"),))
TOMBSTONE = ROW._replace(key=Content(None, None), value=Content(None, None))
ALL = Span(origin=Origin.EARLIEST)


@pytest.fixture
def read(monkeypatch):
    """Returns what ``consume`` would read with: request, settings, writer, separators of bare values, and the check."""

    def run(work, address, *, settings):
        asked.append((*work.args, work.keywords["checks_offset"], address, settings))
        return True

    def read(*words):
        done = run_command("consume", *words, "-b", "h:1")
        assert done == (0, "", "")
        request, config, deserializers, write, values, checks_offset, address, settings = asked.pop()
        assert (address, settings) == ("h:1", config)
        assert config.pop("bootstrap.servers") == "h:1"
        return request, config, write, values, checks_offset, deserializers

    asked = []
    monkeypatch.setattr(consume, "run", run)
    monkeypatch.setattr(time, "time_ns", lambda: NOON_MS * 1_000_000)
    return read


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("t", {}),
        ("t u t", {"topics": ("t", "u")}),
        ("--include t.*", {"topics": (), "pattern": "t.*"}),
        ("t --from-beginning", {"span": ALL}),
        ("t -e", {"span": replace(ALL, to_end=True)}),
        ("t -o end -e", {"span": Span(to_end=True)}),
        ("t -o 20", {"span": Span(origin=Origin.OFFSET, number=20)}),
        ("t -o 20:30", {"span": Span(origin=Origin.OFFSET, number=20, to_offset=30)}),
        ("t -o 20:30 -e", {"span": Span(origin=Origin.OFFSET, number=20, to_offset=30, to_end=True)}),
        ("t -o 20:end", {"span": Span(origin=Origin.OFFSET, number=20, to_end=True)}),
        ("t -n 5", {"span": Span(origin=Origin.LAST, number=5)}),
        ("t --from 7", {"span": Span(origin=Origin.TIME, number=7)}),
        ("t --from 7 --to 9", {"span": Span(origin=Origin.TIME, number=7, to_time_ms=9)}),
        ("t --from 1h", {"span": Span(origin=Origin.TIME, number=NOON_MS - 3_600_000)}),
        (
            "t --from 2h --to 1h",
            {"span": Span(origin=Origin.TIME, number=NOON_MS - 7_200_000, to_time_ms=AN_HOUR_AGO_MS)},
        ),
        ("t -o s@-1h", {"span": Span(origin=Origin.TIME, number=AN_HOUR_AGO_MS)}),
        ("t --to 9", {"span": replace(ALL, to_time_ms=9)}),
        ("t -o s@7 -o e@9", {"span": Span(origin=Origin.TIME, number=7, to_time_ms=9)}),
        ("t -c 5", {"count": 5}),
        ("t --timeout-ms 9", {"idle_ms": 9}),
        ("t -p 2 -p 1 -p 2", {"partitions": frozenset({1, 2})}),
        ("t -g g", {"group": "g", "errors": OnError.END}),
        ("t -g g --from-beginning", {"group": "g", "errors": OnError.END, "span": ALL}),
        ("t -g g -o stored", {"group": "g", "errors": OnError.END, "span": Span(origin=Origin.STORED)}),
        ("t -g g --skip-errors", {"group": "g", "errors": OnError.SKIP}),
        ("t --skip-errors", {"errors": OnError.SKIP}),
        ("t --end-at-error", {"errors": OnError.END}),
    ],
)
def test_what_is_read(read, words, expected):
    request, config, *_ = read(*words.split())
    assert request == Request(**{"topics": ("t",), "span": Span(), **expected})
    reset = "earliest" if request.span.origin is Origin.EARLIEST else "latest"
    own = {"group.id": "g"} if request.group else {}
    assert config == {**consume.SETTINGS, "auto.offset.reset": reset, **own}
    assert config.get("group.id") == request.group


@pytest.mark.parametrize(
    ("words", "settings", "checks"),
    [
        ("--isolation-level read_committed", {"isolation.level": "read_committed"}, True),
        ("--isolation-level read_uncommitted", {"isolation.level": "read_uncommitted"}, True),
        ("-X fetch.min.bytes=3 -X client.id=c", {"fetch.min.bytes": "3", "client.id": "c"}, True),
        ("-X auto.offset.reset=none", {"auto.offset.reset": "none"}, True),
        ("-X auto.offset.reset=earliest", {"auto.offset.reset": "earliest"}, False),
        ("-X request.timeout.ms=7", {"request.timeout.ms": "7"}, True),
        (
            "-X isolation.level=read_committed --isolation-level read_uncommitted",
            {"isolation.level": "read_uncommitted"},
            True,
        ),
    ],
)
def test_settings_of_the_consumer(read, words, settings, checks):
    _, config, _, _, checks_offset, deserializers = read("t", *words.split())
    assert config == {**consume.SETTINGS, "auto.offset.reset": "latest", **settings}
    assert checks_offset is checks
    assert set(deserializers.values()) == {None}


@pytest.mark.parametrize(
    ("words", "written", "tombstone", "separators"),
    [
        ((), b"v\n", b"\n", (b"\n", b"")),
        (("-D", r"\0", "-Z", "NULL"), b"v\0", b"NULL\0", (b"\0", b"NULL")),
        (("-k",), b"k\tv\n", b"\t\n", None),
        (("-K", ":", "-Z", "-"), b"k:v\n", b"-:-\n", None),
        (("-k", "-K", ":"), b"k:v\n", b":\n", None),
        (("-f", r"%t %o %s;", "-Z", "-"), b"t 42 v;", b"t 42 -;", None),
        (("--output", "raw"), b"v", b"", None),
        (("--output", "text"), b"v\n", b"\n", None),
    ],
)
def test_forms_of_records(read, words, written, tombstone, separators):
    _, _, write, values, *_ = read("t", *words)
    assert (write(ROW), write(TOMBSTONE), values) == (written, tombstone, separators)


@pytest.mark.parametrize("words", [("--json",), ("--output", "jsonl")])
def test_json_is_a_line_for_each_record(read, words):
    _, _, write, values, *_ = read("t", *words)
    assert values is None
    assert write(ROW) == (
        b'{"topic": "t", "partition": 1, "offset": 42, "timestamp": 1700000000000, "key": "k", "value": "v", '
        b'"headers": [{"name": "h", "value": "x"}]}\n'
    )


@pytest.mark.parametrize("field", ["key", "value"])
def test_values_of_a_format_are_not_written_as_they_are(read, field):
    *_, values, _, deserializers = read("t", f"--{field}-format", "string")
    assert values is None
    assert [name for name, each in deserializers.items() if each is not None] == [f"{field}_deserializer"]


@pytest.mark.parametrize(
    ("request_", "start_ms", "silence_ms"),
    [
        (Request(span=ALL), math.inf, math.inf),
        (Request(span=ALL, group="g"), math.inf, math.inf),
        (Request(span=ALL, idle_ms=1), 3000, 3000),
        (Request(span=ALL, idle_ms=1, group="g"), 15_000, 3000),
        (Request(span=ALL, idle_ms=20_000, group="g"), 20_000, 20_000),
    ],
)
def test_how_long_a_reader_waits(request_, start_ms, silence_ms):
    assert (request_.start_ms, request_.silence_ms) == (start_ms, silence_ms)


@pytest.fixture
def written(monkeypatch):
    """Returns what ``produce`` would send with: job, settings and encodings."""

    def send(job, config, encodings, registry):
        assert registry is None
        sent.append((job, config, encodings))

    def run(work, address, *, settings):
        assert (address, settings["bootstrap.servers"]) == ("h:1", "h:1")
        work()

    def written(*words):
        assert run_command("produce", "t", *words, "-b", "h:1").returncode == 0
        job, config, encodings = sent.pop()
        del config["bootstrap.servers"]
        return job, config, encodings

    sent = []
    monkeypatch.setattr(produce, "_send", send)
    monkeypatch.setattr(produce, "run", run)
    return written


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        ((), {}),
        (("-K", ":"), {"key_separator": b":"}),
        (("-k", "a"), {"key": b"a"}),
        (("-k", ""), {"key": b""}),
        (("-p", "0"), {"partition": 0}),
        (("-H", "a=1", "-H", "b= x=y", "-H", "a=2"), {"headers": (("a", b"1"), ("b", b" x=y"), ("a", b"2"))}),
        (("--parse-headers",), {"headers_delimiter": b"\t"}),
        (("--headers-delimiter", "|"), {}),
        (
            (
                *("--parse-headers", "--headers-delimiter", "|", "--headers-separator", ";"),
                *("--headers-key-separator", "="),
            ),
            {"headers_delimiter": b"|", "headers_separator": b";", "headers_key_separator": b"="},
        ),
        (("-Z", r"\N"), {"null": b"N"}),
        (("-Z", ""), {"null": b""}),
        (("--tombstone",), {"tombstones": True}),
        (("--timestamp", "0"), {"timestamp": 0}),
        (("--timestamp", "2026-03-01T12:00:00"), {"timestamp": 1_772_366_400_000}),
        (("--key-format", "json"), {"json_key": True}),
        (("--value-format", "msgpack"), {"json_value": True}),
        (("--key-format", "long", "--value-format", "string"), {}),
    ],
)
def test_how_lines_become_records(written, words, rules):
    job, config, _ = written(*words)
    assert job.rules == LineRules(topic="t", **rules)
    assert (job.topic, job.sources, job.parse, job.delimiter, job.count) == ("t", [], parse_line, b"\n", None)
    assert (job.transaction_records, job.report) == (None, None)
    assert config == produce.SETTINGS


@pytest.mark.parametrize(
    ("words", "job"),
    [
        (("--input", "jsonl"), {"parse": parse_document}),
        (("-D", r"\0"), {"delimiter": b"\0"}),
        (("-c", "7"), {"count": 7}),
    ],
)
def test_how_input_is_read(written, words, job):
    made, _, _ = written(*words)
    assert {name: getattr(made, name) for name in job} == job


def test_files_are_records_or_lines(written, tmp_path):
    sources = [tmp_path / "a", tmp_path / "b"]
    job, _, _ = written(*map(str, sources), "--input", "file")
    assert (job.sources, job.parse) == (sources, None)
    job, _, _ = written(*map(str, sources))
    assert (job.sources, job.parse) == (sources, parse_line)


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        (("-z", "zstd"), {"compression.type": "zstd"}),
        (("--acks", "1"), {"acks": "1"}),
        (("--partitioner", "round-robin"), {"partitioner.class": "round-robin"}),
        (("--idempotence",), {"enable.idempotence": "true"}),
        (("--no-idempotence",), {"enable.idempotence": "false"}),
        (("--transactional-id", "x"), {"transactional.id": "x"}),
        (("-X", "linger.ms=9", "-X", "client.id=c"), {"linger.ms": "9", "client.id": "c"}),
        (("-X", "acks=0", "--acks", "all"), {"acks": "all"}),
    ],
)
def test_settings_of_the_producer(written, words, settings):
    _, config, encodings = written(*words)
    assert config == {**produce.SETTINGS, **settings}
    assert encodings == (Encoding(field="key"), Encoding(field="value"))


@pytest.mark.parametrize(("words", "records"), [((), 0), (("--transaction-size", "3"), 3)])
def test_records_of_a_transaction(written, words, records):
    assert written("--transactional-id", "x", *words)[0].transaction_records == records


def test_formats_of_keys_and_values_stay_apart(written, tmp_path):
    schema = tmp_path / "s.avsc"
    words = ("--key-format", "long", "--value-format", "avro", "--value-schema", str(schema))
    assert written(*words)[2] == (
        Encoding(field="key", format=DataFormat.LONG),
        Encoding(field="value", format=DataFormat.AVRO, schema=schema),
    )
    words = ("--key-format", "protobuf", "--key-schema", str(schema), "--key-message", "a.B")
    assert written(*words)[2] == (
        Encoding(field="key", format=DataFormat.PROTOBUF, schema=schema, message="a.B"),
        Encoding(field="value"),
    )
