"""Errors of options and columns give the name, the value and the remedy; kafka.* options reach the producer."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_moldau.client_options import JAVA_SECURITY
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.rows import check_schema
from pyspark_moldau.sink.writer import MoldauStreamWriter
from pyspark_moldau.source.core.options import OptionError

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parse(streaming=False, **given):
    return parse_sink_options(
        SERVERS | {key.replace("_", "."): value for key, value in given.items()}, streaming=streaming
    )


def test_the_name_of_a_query_is_no_mistake():
    """Spark passes ``writeStream.queryName`` to the sink as an option."""
    assert parse(streaming=True, topic="t", queryName="copies").topic == "t"


def test_defaults_are_those_of_sparks_sink():
    options = parse(topic="t")
    assert (options.topic, options.is_exactly_once, options.app_id, options.version) == ("t", False, None, 0)
    assert options.producer["bootstrap.servers"] == "127.0.0.1:9092"


def test_producer_keys_reach_the_producer():
    options = parse(kafka_compression_type="zstd", kafka_batch_size="1000", kafka_send_buffer_bytes="1")
    assert (options.producer["compression.type"], options.producer["batch.size"]) == ("zstd", "1000")
    assert options.ignored == ("send.buffer.bytes",)
    assert "send.buffer.bytes" not in options.producer


def test_keys_of_logins_that_java_alone_obeys_are_taken():
    """The same options serve the source, the sink and Spark's connector; the source takes these keys too."""
    handler = "sasl.login.callback.handler.class"
    options = parse(topic="t", kafka_sasl_login_callback_handler_class="OAuthBearerLoginCallbackHandler")
    assert options.ignored == (handler,)
    assert parse(topic="t", **{f"kafka_{key}": "1" for key in JAVA_SECURITY}).ignored == tuple(sorted(JAVA_SECURITY))


def test_a_key_without_effect_is_warned_of(caplog):
    MoldauStreamWriter(parse(streaming=True, topic="t", kafka_send_buffer_bytes="1"))
    assert "option kafka.send.buffer.bytes has no effect" in caplog.text


def test_a_small_request_gets_smaller_batches():
    assert int(parse(kafka_max_request_size="100000").producer["batch.size"]) <= 50_000


def test_a_batch_size_that_is_given_stays():
    """The sink shrinks its own default only."""
    options = parse(kafka_batch_size="70000", kafka_max_request_size="70500")
    assert (options.producer["batch.size"], options.producer["max.request.size"]) == ("70000", "70500")


def test_a_version_may_be_a_time_in_nanoseconds():
    given = {"txnAppId": "a", "deliveryGuarantee": "exactly-once"}
    for version in (1_796_052_489_905_000_000, 2**63 - 1):
        assert parse(**given, txnVersion=str(version)).version == version


@pytest.mark.parametrize(("length", "is_accepted"), [(0, False), (1, True), (150, True), (151, False)])
def test_an_application_has_a_name_of_limited_length(length, is_accepted):
    given = {"txnAppId": "a" * length, "txnVersion": "7", "deliveryGuarantee": "exactly-once"}
    if is_accepted:
        assert parse(**given).app_id == "a" * length
    else:
        with pytest.raises(OptionError, match=f"txnAppId: expected 1 to 150 characters, got {length}"):
            parse(**given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topics": "t"}, "unknown option topics; did you mean topic?"),
        ({"nonsense": "t"}, "unknown option nonsense; the sink knows topic, "),
        ({"topic": "t", "path": "t"}, "unknown option path; save() and start() take no path; name the topic by the"),
        ({"compression.type": "zstd"}, "unknown option compression.type; did you mean kafka.compression.type?"),
        ({"kafka_batch_size": "many"}, "kafka.batch.size"),
        ({"topic": ""}, "topic: expected the name of a topic, got an empty value"),
        (
            {"deliveryGuarantee": "exactly_once"},
            "deliveryGuarantee: expected at-least-once or exactly-once, got 'exactly_once'",
        ),
        ({"kafka_key_serializer": "x"}, "kafka.key.serializer is not supported: keys are binary or strings"),
        ({"kafka_transactional_id": "x"}, "kafka.transactional.id is not supported: set deliveryGuarantee"),
        ({"kafka_acks": "2"}, "kafka.acks"),
        ({"kafka_linger_msec": "2"}, "kafka.linger.msec"),
        (
            {"deliveryGuarantee": "exactly-once", "kafka_acks": "1"},
            "kafka.acks: 1 is impossible with deliveryGuarantee",
        ),
        ({"txnAppId": "a"}, "txnAppId needs deliveryGuarantee exactly-once"),
        ({"txnAppId": "a", "deliveryGuarantee": "exactly-once"}, "txnAppId and txnVersion are given together"),
        (
            {"txnAppId": "a", "txnVersion": "-1", "deliveryGuarantee": "exactly-once"},
            "txnVersion: expected a number from 0 to 9223372036854775807, got '-1'",
        ),
        (
            {"txnAppId": "a", "txnVersion": "9223372036854775808", "deliveryGuarantee": "exactly-once"},
            "txnVersion: expected a number from 0 to 9223372036854775807",
        ),
    ],
)
def test_a_wrong_option_is_refused_by_name(given, text):
    with pytest.raises(OptionError) as caught:
        parse(**given)
    assert text in str(caught.value).splitlines()[0]


def test_a_stream_has_no_version_of_its_own():
    with pytest.raises(OptionError, match="txnAppId is for batch queries"):
        parse(streaming=True, txnAppId="a", txnVersion="1", deliveryGuarantee="exactly-once")
    with pytest.raises(OptionError, match=r"bootstrap\.servers must be given"):
        parse_sink_options({"topic": "t"}, streaming=True)


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def test_columns_of_sparks_sink_are_taken():
    check_schema(
        schema(
            key=BinaryType(),
            VALUE=StringType(),
            topic=StringType(),
            partition=IntegerType(),
            headers=HEADERS,
            timestamp=TimestampType(),
        ),
        None,
    )


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"value": LongType()}, "t", "column value: expected string or binary, got bigint; cast it"),
        ({"key": StringType()}, "t", "column value is missing: the query has key"),
        ({"value": StringType()}, None, "topic: neither the option topic nor a column topic is given"),
        ({"value": StringType(), "timestamp": TimestampNTZType()}, "t", "got timestamp_ntz; cast it to timestamp_ltz"),
        ({"value": StringType(), "partition": LongType()}, "t", "column partition: expected int, got bigint; cast it"),
        ({"value": StringType(), "offset": LongType()}, "t", "column offset: the sink has no such column"),
        ({"value": StringType(), "headers": StringType()}, "t", "column headers: expected array<struct"),
        ({"value": StringType(), "batch": LongType()}, "t", "column batch: the sink has no such column; it takes key"),
        ({"value": StringType(), "Value": BinaryType()}, "t", "column value: comes twice, and upper and lower case"),
    ],
)
def test_a_wrong_column_is_refused_by_name(columns, topic, text):
    with pytest.raises(OptionError) as caught:
        check_schema(schema(**columns), topic)
    assert text in str(caught.value).splitlines()[0]
