"""Goal: produce and consume do what their options say. Method: whole commands against one broker in this process."""

import json

import pytest

from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau_cli.commands.consume import _on_error
from moldau_cli.records.reading import OnError
from support.client.socket_cluster import cluster
from support.commands import run_command


@pytest.fixture(scope="module")
def broker():
    with cluster() as fake:
        yield fake


@pytest.fixture
def shell(broker, request):
    """Runs commands on a topic of two partitions that belongs to the test."""
    topic = request.node.name.translate(str.maketrans("[]", "--"))
    broker.add_topic(topic, 2)

    def run(command, *arguments, given="", code=0):
        done = run_command(command, topic, *arguments, "-b", broker.bootstrap, given=given)
        assert done.returncode == code, done
        return done

    run.topic = topic
    run.partitions = broker.topics[topic]
    return run


def test_lines_with_keys_headers_and_nulls(shell):
    options = ("-p", "0", "-K", ":", "-H", "all=1", "--parse-headers", "--null", "NULL", "--timestamp", "5000")
    shell("produce", *options, given="h:x\tk:v\nNULL\tk:NULL\n")
    wanted = shell("consume", "-e", "-Z", "-", "-f", r"%p %o %k %s %h %T %S\n").stdout
    assert wanted == "0 0 k v all=1,h=x 5000 1\n0 1 k - all=1 5000 -1\n"


def test_json_lines_copy_a_topic(shell):
    given = "".join(
        json.dumps(each) + "\n"
        for each in (
            {"key": "k", "value": "v", "headers": [{"name": "h", "value": None}], "partition": 1, "timestamp": 7},
            {"key_base64": "/w==", "value": None, "partition": 1, "timestamp": 8},
        )
    )
    shell("produce", "--input", "jsonl", given=given)
    copied = shell("consume", "-e", "--output", "jsonl", "-p", "1").stdout
    shell("produce", "--input", "jsonl", "-p", "0", given=copied)
    again = shell("consume", "-e", "--json", "-p", "0").stdout
    assert [{**json.loads(line), "partition": 1} for line in again.splitlines()] == [
        json.loads(line) for line in copied.splitlines()
    ]


def test_pipes_keep_texts_of_json(shell):
    """A copy with the same format on both sides has the same bytes; the text "3" became a number, "a b" an error."""
    values = [b'"3"', b'"a b"', b"null", b'{"a":"1"}', b"[1.5]"]
    shell("produce", "-p", "0", given=b"\n".join(values).decode())
    options = ("--value-format", "json", "-p", "0")
    lines = shell("consume", "-e", *options).stdout
    documents = shell("consume", "-e", *options, "--json").stdout.replace('"partition": 0', '"partition": 1')
    shell("produce", *options, given=lines)
    shell("produce", "--input", "jsonl", "--value-format", "json", given=documents)
    assert [record.value for record in shell.partitions[0].records()] == values * 2
    assert [record.value for record in shell.partitions[1].records()] == values
    done = shell("produce", "--input", "jsonl", *options, "-f", r"%s\n", given='{"value": "x"}\n')
    assert done.stdout == '"x"\n'


def test_files_are_lines_or_whole_records(shell, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a\nb\n")
    second.write_bytes(b"c;d")
    shell("produce", str(first), str(second), "-p", "0")
    shell("produce", "--input", "file", str(first), "-p", "1", "-z", "zstd")
    assert shell("consume", "-e", "-p", "0").stdout == "a\nb\nc;d\n"
    assert shell("consume", "-e", "-p", "1", "--output", "raw").stdout == "a\nb\n"
    shell("produce", str(second), "-p", "1", "-D", ";", "-c", "1")
    assert shell("consume", "-e", "-p", "1", "-o", "-1", "-D", r"\0").stdout == "c\0"


def test_acknowledged_records_are_written(shell):
    done = shell("produce", "-p", "1", "-f", r"%t %p %o %s\n", given="x\ny\n")
    assert done.stdout == f"{shell.topic} 1 0 x\n{shell.topic} 1 1 y\n"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_reach_the_broker(shell, codec):
    shell("produce", "-p", "0", "-z", codec, given="x" * 500 + "\n")
    names = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
    assert names[shell.partitions[0].batches[0][22] & 7] == codec
    assert shell("consume", "-e").stdout == "x" * 500 + "\n"


def test_options_become_settings_of_the_producer(shell):
    shell("produce", "--acks", "1", "--no-idempotence", "--partitioner", "round-robin", given="x\n")
    refused = shell("produce", "--acks", "1", "--idempotence", given="x\n", code=2)
    assert "idempotence" in refused.stderr


def test_ranges_by_offset_time_and_count(shell):
    lines = "".join(json.dumps({"value": f"v{at}", "timestamp": at * 1000, "partition": 0}) + "\n" for at in range(10))
    shell("produce", "--input", "jsonl", given=lines)

    def read(*options):
        return shell("consume", *options).stdout.split()

    assert read("-o", "2:4") == ["v2", "v3"]
    assert read("-o", "-2", "-e") == ["v8", "v9"]
    assert read("-o", "s@3000", "-o", "e@5000") == ["v3", "v4"]
    assert read("--from", "1970-01-01T00:00:08", "-e") == ["v8", "v9"]
    assert read("--from", "1000", "--to", "3000") == ["v1", "v2"]
    assert read("--tail", "3", "-c", "1") == ["v7"]
    assert read("-o", "10", "--timeout-ms", "50") == []
    assert read("--from-beginning", "-c", "2") == ["v0", "v1"]


def test_following_waits_for_new_records(shell, broker):
    """The second record arrives while the consumer waits for it."""
    shell("produce", "-p", "0", "--no-idempotence", given="line\n")
    log = shell.partitions[0]

    def fetch(number, request):
        if len(log.batches) == 1 and any(
            each.fetch_offset == 1 for topic in request.topics for each in topic.partitions
        ):
            log.append(log.batches[0])
        return broker.on_fetch(number, request)

    broker.handlers[ApiKey.FETCH] = fetch
    try:
        assert shell("consume", "--tail", "1", "-c", "2").stdout == "line\nline\n"
    finally:
        del broker.handlers[ApiKey.FETCH]


def test_several_topics_and_patterns(shell, broker):
    other = f"{shell.topic}-other"
    broker.add_topic(other, 1)
    shell("produce", "-p", "0", given="one\n")
    run_command("produce", other, "-b", broker.bootstrap, given="two\n")
    assert sorted(shell("consume", other, "-e").stdout.split()) == ["one", "two"]
    found = run_command("consume", "--include", f"{shell.topic}-o.*", "-e", "-b", broker.bootstrap)
    assert found.stdout == "two\n"
    missing = run_command("consume", "--include", "no-such.*", "-e", "-b", broker.bootstrap)
    assert (missing.returncode, missing.stderr) == (2, "moldau: --include: no topic matches 'no-such.*'\n")


def test_numbers_and_texts_have_kafkas_bytes(shell):
    shell("produce", "-p", "0", "--value-format", "long", "--key-format", "hex", "-K", ":", given="ff00:5\n00:-1\n")
    assert [record.value for record in shell.partitions[0].records()] == [b"\0" * 7 + b"\5", b"\xff" * 8]
    shown = shell("consume", "-e", "--value-format", "long", "--key-format", "hex", "-K", "=")
    assert shown.stdout == "ff00=5\n00=-1\n"


def test_records_that_do_not_fit_end_nothing(shell):
    """They are named, and the command fails when it has written the others, unless options say otherwise."""
    shell("produce", "-p", "0", given='{"a":1}\nno json\n{"a":2}\n')
    read = ("consume", "-e", "--value-format", "json")
    named = f"skipped {shell.topic}-0 offset 1: "
    reported = shell(*read, code=1)
    assert reported.stdout == '{"a":1}\n{"a":2}\n'
    note, end = reported.stderr.splitlines()
    assert note.startswith(f"{named}the value cannot be deserialized: ")
    assert "seek" not in note, "that is advice to programs"
    assert end == "moldau: 1 record was left out that cannot be deserialized (--skip-errors)"
    skipped = shell(*read, "--skip-errors")
    assert (skipped.stdout, skipped.stderr.count("\n")) == (reported.stdout, 1)
    assert skipped.stderr.startswith(named)
    ended = shell(*read, "--end-at-error", code=1)
    assert ended.stdout == '{"a":1}\n'
    assert f"{shell.topic}-0 offset 1: the value " in ended.stderr
    assert "seek" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_group_ends_at_a_record_that_does_not_fit():
    """It would commit the offset behind the record, so leaving it out must be asked for."""
    assert _on_error(skips=False, ends=False, in_group=True) is OnError.END
    assert _on_error(skips=True, ends=False, in_group=True) is OnError.SKIP


def test_a_wrong_format_does_not_fill_the_screen(shell):
    shell("produce", "-p", "0", given="no json\n" * 30)
    done = shell("consume", "-e", "--value-format", "json", code=1)
    assert done.stderr.count(": the value ") == 10
    assert done.stderr.splitlines()[10:] == [
        "more records cannot be deserialized; they are skipped without a line each",
        "moldau: 30 records were left out that cannot be deserialized (--skip-errors)",
    ]


def test_a_wrong_line_comes_after_the_delivered_ones(shell):
    """The records before a wrong line are delivered, and the error names the line."""
    done = shell("produce", "-p", "0", "--value-format", "integer", given="1\n2\nthree\n4\n", code=2)
    assert "stdin:3: " in done.stderr
    assert "2 records acknowledged" in done.stderr
    assert len(shell.partitions[0].values()) == 2


def test_a_refused_record_fails_the_command(shell, broker):
    broker.fail_next(ApiKey.PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
    done = shell("produce", "-p", "0", given="x\n", code=2)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["produce", "t", "--key-separator", ""], "--key-separator is empty"),
        (["produce", "t", "-k", "a", "-K", ":"], "exclude each other"),
        (["produce", "t", "--input", "file"], "needs FILE"),
        (["produce", "t", "--transaction-size", "5"], "needs --transactional-id"),
        (["produce", "t", "--parse-headers", "--headers-separator", ":"], "must differ"),
        (["produce", "t", "--parse-headers", "--null", ","], "--null must differ"),
        (["produce", "t", "-f", "%t", "--json"], "excludes --json"),
        (["produce", "t", "--value-format", "avro"], "needs --registry, or --value-schema"),
        (["produce", "t", "--value-schema", "x"], "needs --value-format"),
        (["consume"], "give TOPIC or --include"),
        (["consume", "t", "--include", "x"], "give TOPIC or --include"),
        (["consume", "t", "-o", "stored"], "needs --group"),
        (["consume", "t", "-g", "g", "-e"], "--group excludes"),
        (["consume", "t", "--skip-errors", "--end-at-error"], "--skip-errors excludes --end-at-error"),
        (["consume", "t", "-g", "g", "-p", "0"], "--group excludes"),
        (["consume", "t", "--from-beginning", "-o", "1"], "--from-beginning excludes"),
        (["consume", "t", "--output", "raw", "-f", "%s"], "--format excludes --output"),
        (["consume", "t", "--output", "raw", "--json"], "--output excludes --json"),
        (["consume", "t", "--value-format", "protobuf", "--value-schema", "/missing"], "cannot read /missing"),
        (["consume", "t", "--key-format", "json", "--key-message", "M"], "needs --key-format"),
        (["consume", "t", "-o", "x"], "--offset: expected beginning"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_contradictions_are_one_line(arguments, words, broker):
    done = run_command(*arguments, "-b", broker.bootstrap)
    assert done.returncode == 2
    text = json.loads(done.stderr)["error"] if "--json" in arguments else done.stderr
    assert words in text
    assert done.stderr.count("\n") == 1
