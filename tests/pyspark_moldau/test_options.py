"""Goal: wrong options are reported before any connection. Method: option mappings in, values or errors out."""

import pytest

from pyspark_moldau.options import EARLIEST, LATEST, OptionError, Position, parse_options, wants_headers

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092,[::1]:9093", "subscribe": "b, a,b"}


def parse(*, streaming=True, without=(), **more):
    options = {key: value for key, value in BASE.items() if key not in without}
    return parse_options(options | {key.replace("__", "."): value for key, value in more.items()}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source():
    options = parse()
    assert options.client.bootstrap == (("127.0.0.1", 9092), ("::1", 9093))
    assert options.subscription.topics == ("b", "a")
    assert options.starting == Position(everywhere=LATEST)
    assert parse(streaming=False).starting == Position(everywhere=EARLIEST)
    assert parse(streaming=False).ending == Position(everywhere=LATEST)
    assert options.fail_on_data_loss is True
    assert options.include_headers is False


def test_names_are_case_insensitive():
    assert parse(STARTINGOFFSETS="Earliest", MaxOffsetsPerTrigger="10").max_offsets_per_trigger == 10
    assert wants_headers({"IncludeHeaders": "TRUE"}) is True


def test_offsets_by_partition_keep_their_special_values():
    starting = parse(startingOffsets='{"a": {"0": 5, "1": -2}, "b": {"0": -1}}').starting
    assert starting.offsets == {"a": {0: 5, 1: EARLIEST}, "b": {0: LATEST}}


def test_timestamps_take_precedence_over_offsets():
    """One timestamp overrides timestamps by partition, which override offsets."""
    by_partition = '{"a": {"0": 7}}'
    assert parse(startingTimestamp="5", startingOffsetsByTimestamp=by_partition).starting.timestamp_ms == 5
    found = parse(startingOffsets="earliest", startingOffsetsByTimestamp=by_partition).starting
    assert found.timestamps == {"a": {0: 7}}
    assert found.latest_if_no_match is False


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": ["subscribe"]}, "exactly one of assign, subscribe, subscribePattern must be given; found none"),
        ({"assign": '{"a": [0]}'}, "found assign, subscribe"),
        ({"without": ["kafka.bootstrap.servers"]}, "kafka.bootstrap.servers must be given"),
        ({"kafka__bootstrap__servers": "host"}, "expected host:port, got 'host'"),
        ({"kafka__bootstrap__servers": "host:99999"}, "expected host:port, got 'host:99999'"),
        ({"kafka__auto__offset__reset": "latest"}, "use the option startingOffsets"),
        ({"kafka__enable__auto__commit": "true"}, "commits no offsets"),
        ({"kafka__security__protocol": "SASL_SSL"}, "speaks PLAINTEXT, not SASL_SSL"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"maxOffsetsPerTrigger": "0"}, "expected a positive number, got '0'"),
        ({"minPartitions": "x"}, "minPartitions: expected a positive number"),
        ({"startingOffsets": "soon"}, "expected earliest, latest or"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "got partition 'x' at 1"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "got partition '0' at -3"),
        ({"startingOffsets": '{"a": '}, "startingOffsets: expected"),
        ({"failOnDataLoss": "maybe"}, "expected true or false, got 'maybe'"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"streaming": False, "startingOffsets": "latest"}, "a batch query cannot start at latest"),
        ({"streaming": False, "endingOffsets": '{"a": {"0": -2}}'}, "cannot end at earliest"),
        ({"streaming": False, "maxOffsetsPerTrigger": "9"}, "maxOffsetsPerTrigger is for streaming queries"),
        ({"without": ["subscribe"], "subscribePattern": "a("}, "is not a regular expression"),
        ({"without": ["subscribe"], "assign": '{"a": ["0"]}'}, 'expected {"topic": \\[0, 1\\]}'),
        ({"without": ["subscribe"], "assign": "{}"}, "no partition is named"),
        ({"kafka__isolation__level": "serializable"}, "read_uncommitted or read_committed"),
        ({"kafka__max__partition__fetch__bytes": "999999999999"}, "at most 268435456"),
    ],
)
def test_a_mistake_names_the_option_and_what_would_be_right(changes, message):
    with pytest.raises(OptionError, match=message.replace("?", r"\?").replace("(", r"\(")):
        parse(**changes)
