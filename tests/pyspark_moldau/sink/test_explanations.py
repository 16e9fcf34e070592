"""Goal: each error of a write names the option or column that it is about, and what to do.

Method: a table of Kafka's errors, with the topic from the option and from the column.
"""

import pytest

from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.sink.core.sink_options import parse_sink_options
from pyspark_moldau.sink.explanations import denied, explained, mixed_decision, still_open, unreachable

LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "al",
    "kafka.sasl.password": "s3cr3t",
}
DENIED = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: r"{place}: this client may not write .*; grant its principal WRITE and DESC",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: r"deliveryGuarantee: .*; grant its principal READ on groups with the prefix",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: r"deliveryGuarantee: .*; grant its principal WRITE and DESC",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: r"deliveryGuarantee: .*; grant its principal WRITE on the topic, or IDEMPO",
    ErrorCode.SASL_AUTHENTICATION_FAILED: r"kafka\.sasl\.password: the login was refused; check it and kafka\.sasl\.us",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: r"kafka\.sasl\.mechanism: ",
    ErrorCode.ILLEGAL_SASL_STATE: r"kafka\.security\.protocol: ",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: r"kafka\.transaction\.timeout\.ms: the brokers allow no 900000 ms; set it",
    ErrorCode.INVALID_CONFIG: r"kafka\.security\.protocol: INVALID_CONFIG: why$",
}
EXPLAINED = DENIED | {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: r"{place}: topic 't' is not on h:1; create it, or correct the {place} \(",
    ErrorCode.INVALID_TOPIC_EXCEPTION: r"{place}: topic 't' is not on h:1; create it, or correct the {place} \(",
    ErrorCode.MESSAGE_TOO_LARGE: r"column value: a row for topic 't' is too large: .*max\.request\.size",
    ErrorCode.RECORD_LIST_TOO_LARGE: r"column value: a row for topic 't' is too large: .*max\.request\.size",
    ErrorCode.INVALID_TIMESTAMP: r"column timestamp: rows for topic 't' were not written: .*; correct the column, or ",
    ErrorCode.PRODUCER_FENCED: r"rows for topic 't' were not written: their transaction was aborted .*\.ms, raise",
    ErrorCode.INVALID_PRODUCER_EPOCH: r"rows for topic 't' were not written: their transaction was aborted .*raise it",
}


def options_of(topic):
    given = {"kafka.bootstrap.servers": "h:1", "deliveryGuarantee": "exactly-once"} | LOGIN
    return parse_sink_options(given | ({"topic": topic} if topic else {}), streaming=True)


@pytest.mark.parametrize("topic", ["t", None], ids=["option", "column"])
def test_each_error_of_a_broker_has_its_place_and_remedy(topic):
    options, place = options_of(topic), "option topic" if topic else "column topic"
    for code in ErrorCode:
        error = KafkaError(code, "why")
        found = denied(error, options)
        assert (found is not None) == (code in DENIED), code
        text = EXPLAINED.get(code, r"rows for topic 't' were not written: ").replace("{place}", place)
        assert found is None or str(found) == str(explained(error, "t", options))
        with pytest.raises(type(explained(error, "t", options)), match=f"^{text}"):
            raise explained(error, "t", options)
        assert "s3cr3t" not in str(explained(error, "t", options))


def test_a_row_that_the_buffer_does_not_hold_names_the_buffer():
    """The remedy was the option that such a query has raised before, and the topic's limit."""
    error = KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "a record of 101 bytes is larger than buffer.memory = 100")
    assert str(explained(error, "t", options_of("t"))).endswith(
        "buffer.memory = 100; raise the option kafka.buffer.memory, or write smaller rows"
    )


@pytest.mark.parametrize("topic", ["t", None], ids=["option", "column"])
def test_an_error_of_the_producer_is_about_topic_or_partition(topic):
    place = "option topic" if topic else "column topic"
    texts = [str(explained(ValueError(text), "t", options_of(topic))) for text in ("no partition 9", "wrong name")]
    assert texts == [
        "column partition: topic 't': no partition 9; null leaves the choice to the partitioner",
        f"{place}: rows for topic 't' were not written: wrong name",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x (ssl.keystore.location) y", "kafka.ssl.keystore.location: x (ssl.keystore.location) y; name the PEM file"),
        ("h:1: certificate has expired", "kafka.bootstrap.servers: h:1: certificate has expired; the broker needs"),
        (
            "CERTIFICATE_VERIFY_FAILED: self-signed; is its signer in the file?",
            "kafka.ssl.truststore.location: CERTIFICATE_VERIFY_FAILED: self-signed; name the PEM file with its signer",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED: certificate has expired; is its signer known?",
            "kafka.bootstrap.servers: CERTIFICATE_VERIFY_FAILED: certificate has expired",
        ),
        (
            "the listener has no TLS: security.protocol=SSL",
            "kafka.security.protocol: the listener has no TLS: kafka.security.protocol=SSL",
        ),
    ],
)
def test_a_listener_that_does_not_fit_is_named_by_its_key(text, line):
    found = str(denied(KafkaError(ErrorCode.INVALID_CONFIG, text), options_of("t")))
    assert found.replace("INVALID_CONFIG: ", "").startswith(line)


def test_waits_that_ended_name_what_was_waited_for():
    assert str(unreachable(options_of("t"), 1500, "h:1: refused")).startswith(
        "kafka.bootstrap.servers: no broker at h:1 answered within 1.5 s (h:1: refused); correct the address"
    )
    assert "moldau txns describe id-1 shows it" in str(still_open("id-1", "why"))
    text = str(mixed_decision("driver-1", "group-1", 2500))
    assert "for 2.5 s; if moldau txns describe driver-1 shows" in text
    assert "delete the consumer group group-1, and start" in text
