"""Goal: wrong options are reported before any connection. Method: option mappings in, values or errors out."""

import pytest

from pyspark_moldau.client_options import security_config
from pyspark_moldau.source.core.columns import ddl
from pyspark_moldau.source.core.options import EARLIEST, LATEST, OptionError, Position, columns_of, parse_options

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
    assert "headers" not in options.columns


def test_options_of_streams_mean_nothing_in_a_batch():
    """Spark's source looks at none of them there; only a stream refuses their values."""
    options = dict.fromkeys(("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), "x")
    options |= {"maxBytesPerTrigger": "x", "publishOffsetsToGroup": "g"}
    assert parse(streaming=False, **options) == parse(streaming=False)
    for name in options.keys() - {"publishOffsetsToGroup"}:
        with pytest.raises(OptionError, match=name):
            parse(**{name: "x"})


def test_names_are_case_insensitive():
    assert parse(STARTINGOFFSETS="Earliest", MaxOffsetsPerTrigger="10").max_offsets_per_trigger == 10
    assert columns_of({"IncludeHeaders": "TRUE"})[-1] == "headers"


def test_the_type_of_timestamps_is_that_of_every_session():
    """With spark.sql.timestampType=TIMESTAMP_NTZ, DDL reads ``timestamp`` as a type that the source does not make."""
    assert ddl(columns_of({})) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp_ltz, "
        "timestampType int"
    )


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
        (
            {"startingOffsetsByTimestampStrategy": "earliest"},
            "startingOffsetsByTimestampStrategy: expected error or latest, got 'earliest'",
        ),
        ({"startingTimestamp": "-5"}, "startingTimestamp: expected milliseconds since 1970, got '-5'"),
        ({"startingTimestamp": "9223372036854775808"}, "startingTimestamp: expected milliseconds since 1970, got"),
        ({"startingTimestamp": "today"}, "startingTimestamp: expected milliseconds since 1970, got 'today'"),
        ({"without": ["kafka.bootstrap.servers"]}, "kafka.bootstrap.servers must be given"),
        ({"kafka__bootstrap__servers": "host"}, "expected host:port, got 'host'"),
        ({"kafka__bootstrap__servers": "host:99999"}, "expected host:port, got 'host:99999'"),
        ({"kafka__auto__offset__reset": "latest"}, "use the option startingOffsets"),
        ({"kafka__enable__auto__commit": "true"}, "publishOffsetsToGroup shows them"),
        (
            {"kafka__security__protocol": "SASL_SSL"},
            "kafka.sasl.mechanism: must be set with security.protocol=SASL_SSL",
        ),
        ({"topic": "a"}, "unknown option topic; name topics by the option subscribe"),
        ({"isolation.level": "read_committed"}, "unknown option isolation.level; did you mean kafka.isolation.level?"),
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"maxOffsetsPerTrigger": "0"}, "expected a positive number of at most 9223372036854775807, got '0'"),
        ({"maxOffsetsPerTrigger": "9223372036854775808"}, "expected a positive number of at most 9223372036854775807"),
        ({"minPartitions": "x"}, "minPartitions: expected a positive number"),
        ({"startingOffsets": "soon"}, "expected earliest, latest or"),
        ({"startingOffsets": ""}, "startingOffsets: expected earliest, latest or"),
        ({"streaming": False, "endingOffsets": ""}, "endingOffsets: expected earliest, latest or"),
        ({"filterPushdown": "yes"}, "filterPushdown: expected true or false, got 'yes'"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "got partition 'x' at 1"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "got partition '0' at -3"),
        ({"startingOffsets": '{"a": '}, "startingOffsets: expected"),
        ({"startingOffsets": '{"a": {"0": 1, "00": 2}}'}, "got partition 0 of a twice"),
        ({"startingOffsets": '{"a": {"0": 1, "0": 2}}'}, "startingOffsets: expected .*, got '0' twice"),
        ({"startingOffsets": '{"a": {"0": 1}, "a": {"1": 2}}'}, "got 'a' twice"),
        ({"without": ["subscribe"], "assign": '{"a": [0], "a": [1]}'}, "assign: expected .*, got 'a' twice"),
        ({"failOnDataLoss": "maybe"}, "expected true or false, got 'maybe'"),
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries: a stream has no end"),
        ({"streaming": False, "startingOffsets": "latest"}, "a batch query cannot start at latest"),
        ({"streaming": False, "endingOffsets": '{"a": {"0": -2}}'}, "cannot end at earliest"),
        ({"without": ["subscribe"], "subscribePattern": "a("}, "is not a regular expression"),
        ({"without": ["subscribe"], "subscribePattern": "a{99999999999}"}, "is not a regular expression"),
        ({"without": ["subscribe"], "assign": '{"a": ["0"]}'}, 'expected {"topic": \\[0, 1\\]}'),
        ({"without": ["subscribe"], "assign": "{}"}, "no partition is named"),
        ({"kafka__isolation__level": "serializable"}, "kafka.isolation.level = .serializable."),
        ({"kafka__fetch__min__byte": "1"}, "did you mean kafka.fetch.min.bytes?"),
        ({"kafka__ssl__truststor__location": "x"}, "did you mean kafka.ssl.truststore.location?"),
        ({"kafka__sasl__mechanisms": "PLAIN"}, "did you mean kafka.sasl.mechanism?"),
        ({"kafka__fetch__min__bytes": "x"}, "kafka.fetch.min.bytes = .x."),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "9 is higher than maxOffsetsPerTrigger, 8"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a time such as 30s or 5m, got .soon."),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger: expected a positive number"),
        ({"columns": "value,ofset"}, "columns: .ofset. is not one of .*; did you mean offset?"),
        ({"columns": "value,value"}, "columns: value comes twice"),
        ({"kafka__max__partition__fetch__bytes": "999999999"}, "expected 1 to 268435456, got 999999999"),
    ],
)
def test_a_mistake_names_the_option_and_what_would_be_right(changes, message):
    with pytest.raises(OptionError, match=message.replace("?", r"\?").replace("(", r"\(")):
        parse(**changes)


ACCEPTED_AS_BY_SPARK = {
    "kafka.check.crcs": "false",
    "kafka.fetch.max.bytes": "1000000",
    "kafka.fetch.min.bytes": "5",
    "kafka.max.poll.records": "10",
    "kafka.metadata.max.age.ms": "10000",
    "kafka.receive.buffer.bytes": "65536",
    "kafka.retry.backoff.ms": "50",
    "kafka.session.timeout.ms": "10000",
    "kafka.sasl.login.callback.handler.class": "a.class.of.Java",
    "kafka.sasl.oauthbearer.key.of.a.later.kafka": "1",
    "kafka.zzz": "a plug-in's own key",
    "fetchOffset.numRetries": "2",
    "fetchOffset.retryIntervalMs": "10",
    "kafkaConsumer.pollTimeoutMs": "9000",
}


def test_keys_that_spark_accepts_are_obeyed_or_warned_of(caplog):
    options = parse(**{key.replace(".", "__"): value for key, value in ACCEPTED_AS_BY_SPARK.items()})
    client = options.client
    assert (client.check_crcs, client.fetch_bytes, client.fetch_bytes_min) == (False, 1_000_000, 5)
    assert (client.receive_buffer_bytes, client.retry_backoff_ms, client.api_timeout_ms) == (65536, 50, 9000)
    warned = {record.args[0] for record in caplog.records}
    assert warned == {
        "max.poll.records",
        "metadata.max.age.ms",
        "session.timeout.ms",
        "sasl.login.callback.handler.class",
        "sasl.oauthbearer.key.of.a.later.kafka",
        "zzz",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
    }


def test_the_largest_long_of_java_means_no_limit():
    most = 2**63 - 1
    assert parse(maxOffsetsPerTrigger=str(most)).max_offsets_per_trigger == most
    assert parse(streaming=False, endingTimestamp=str(most)).ending.timestamp_ms == most
    for option in ("startingOffsets", "startingOffsetsByTimestamp"):
        parse(**{option: f'{{"a": {{"0": {most}}}}}'})
        with pytest.raises(OptionError, match=f"^{option}: expected .*, got partition '0' at {most + 1}$"):
            parse(**{option: f'{{"a": {{"0": {most + 1}}}}}'})


def test_options_of_streams_are_taken_with_a_warning_in_batches(caplog):
    assert parse(streaming=False, maxOffsetsPerTrigger="9").max_offsets_per_trigger is None
    assert [record.args[0] for record in caplog.records] == ["maxOffsetsPerTrigger"]


def test_times_are_read_as_spark_writes_them():
    found = {text: parse(maxTriggerDelay=text).max_trigger_delay_ms for text in ("1500", "30s", "5m", "2 min", "1h")}
    assert found == {"1500": 1500, "30s": 30_000, "5m": 300_000, "2 min": 120_000, "1h": 3_600_000}
    assert parse().max_trigger_delay_ms == 900_000


def test_tls_keys_reach_the_configuration_of_moldaus_clients():
    given = {"kafka.security.protocol": "ssl", "kafka.ssl.truststore.certificates": "PEM text"}
    client = parse(**{key.replace(".", "__"): value for key, value in given.items()}).client
    config = security_config(client)
    assert config.get_str("security.protocol") == "SSL"
    assert config.get("ssl.truststore.certificates") == "PEM text"
    assert "PEM text" not in repr(client)
