"""Goal: an error of one record names its line, and the lines before it are delivered.

Method: whole commands at a broker; a producer that refuses its second record.
"""

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli.errors import UsageError
from moldau_cli.records.core.lines import LineRules, parse_line
from moldau_cli.records.sending import Job, send_all
from support.client.socket_cluster import cluster
from support.commands import run_command


@pytest.fixture(scope="module")
def broker():
    with cluster() as fake:
        fake.add_topic("t")
        yield fake


@pytest.mark.parametrize(
    ("options", "line", "said"),
    [
        (("--input", "jsonl"), '{"value": 3}', "value must be bytes or None, not int 3; --value-format json and"),
        (("--input", "jsonl"), '{"value": "a", "key": [1]}', "key must be bytes or None, not list [1]; --value-format"),
        (("--input", "jsonl", "-X", "max.request.size=500"), '{"value": "%s"}' % ("a" * 600), "MESSAGE_TOO_LARGE"),
        (("--input", "jsonl"), '{"value": "a", "partition": 99}', "topic t has partition 0, not 99"),
        (("--input", "jsonl"), "[]", "expected a JSON object, not list"),
        (("--input", "jsonl"), '{"value": "a", "timestamp": 9223372036854775808}', "timestamp 9223372036854775808 is"),
    ],
)
def test_the_line_of_a_wrong_record_is_named(broker, options, line, said):
    """Some errors named neither the line nor what to do; a timestamp above all was a traceback."""
    lines = f'{{"value": "first"}}\n{line}\n{{"value": "third"}}\n'
    done = run_command("produce", "t", *options, "-b", broker.bootstrap, given=lines)
    assert done.returncode == 2
    note, error = done.stderr.splitlines()
    assert note == "1 record acknowledged"
    assert error.startswith("moldau: stdin:2: ")
    assert said in error


class Refusing:
    """A producer that refuses each record with a code."""

    def __init__(self, code):
        self.code = code

    async def send(self, topic, value, **_):
        await trio.lowlevel.checkpoint()
        raise KafkaError(self.code)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UsageError),
        (ErrorCode.MESSAGE_TOO_LARGE, UsageError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, KafkaError),
    ],
)
def test_an_error_of_the_topic_names_no_line(tmp_path, code, kind):
    source = tmp_path / "lines"
    source.write_bytes(b"a\n")
    job = Job(topic="t", sources=[source], rules=LineRules(), parse=parse_line)
    with pytest.raises(kind) as raised:
        trio.run(send_all, Refusing(code), job, trio.CancelScope())
    assert (f"{source}:1: " in str(raised.value)) == (kind is UsageError)
