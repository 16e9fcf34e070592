"""Goal: a query with a wrong address, or for another kind of listener, soon ends in the driver with all causes.

Method: the readers and writers that Spark calls in the driver, against servers that each answer in one wrong way.
"""

import contextlib
import socket
import time

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from moldau.protocol.framing import encode_response
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from pyspark_moldau import DefaultSource
from pyspark_moldau.errors import ReadTimeoutError, SinkError
from pyspark_moldau.source.core.columns import ddl
from pyspark_moldau.source.core.options import OptionError, columns_of, parse_options
from pyspark_moldau.source.data_source import MoldauBatchReader
from pyspark_moldau.source.stream import MoldauStreamReader
from pyspark_moldau.wire.cluster import METADATA_VERSION
from support.certificates import authority
from support.spark.misbehaving_broker import MisbehavingBroker

LIMIT_S = 5
"""The queries have 0.3 s; before, they took a minute."""
SCHEMA = StructType([StructField("value", StringType())])


def batch(options):
    MoldauBatchReader(parse_options(options | {"subscribe": "t"}, streaming=False)).partitions()


def stream(options):
    MoldauStreamReader(parse_options(options | {"subscribe": "t"}, streaming=True)).initialOffset()


def available_now(options):
    reader = MoldauStreamReader(parse_options(options | {"subscribe": "t"}, streaming=True))
    reader.prepareForTriggerAvailableNow()
    reader.initialOffset()


def write(options):
    limit = options["kafka.default.api.timeout.ms"]
    given = {key: value for key, value in options.items() if key != "kafka.default.api.timeout.ms"}
    DefaultSource(given | {"topic": "t", "kafka.max.block.ms": limit}).streamWriter(SCHEMA, False)


USES = {"batch": batch, "stream": stream, "available now": available_now, "write": write}


def given(*addresses, **more):
    return {"kafka.bootstrap.servers": ",".join(addresses), "kafka.default.api.timeout.ms": "300"} | more


@contextlib.contextmanager
def answering(answer):
    server = MisbehavingBroker(answer)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.close()


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


ANSWERS = {
    "hangs up": ({}, b"", r"closed the connection; if its listener uses TLS or SASL, set kafka\.security\.protocol to"),
    "TLS": (
        {},
        b"\x15\x03\x03\0\x02\x02\x46",
        r"this listener speaks TLS: set kafka\.security\.protocol to SSL, or SASL_SSL if it demands a login",
    ),
    "HTTP": ({}, b"HTTP/1.1 400 Bad Request\r\n\r\n", "is none of Kafka's protocol .*: is this another service?"),
    "no TLS, hangs up": ({"kafka.security.protocol": "SSL"}, b"", "does not speak TLS: set .* to PLAINTEXT, or use"),
    "no TLS": (
        {"kafka.security.protocol": "SSL"},
        b"\0\0\0\x04wxyz",
        "does not speak TLS: set .* to PLAINTEXT, or use",
    ),
    "TLS beneath SASL": (
        {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": "p",
        },
        b"",
        r"closed the connection; if its listener uses TLS, set kafka\.security\.protocol to SASL_SSL",
    ),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(("security", "answer", "cause"), ANSWERS.values(), ids=ANSWERS)
def test_each_wrong_listener_is_named_with_the_remedy(security, answer, cause, use, tmp_path):
    trust = tmp_path / "trust.pem"
    trust.write_text(authority().trust)
    if security.get("kafka.security.protocol") == "SSL":
        security = security | {"kafka.ssl.truststore.location": str(trust)}
    began = time.monotonic()
    with answering(answer) as address:
        message = rf"^kafka\.bootstrap\.servers: no broker at .* answered within 0\.3 s \({address}: .*{cause}"
        with pytest.raises((ReadTimeoutError, SinkError), match=message):
            use(given(address, **security))
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_wrong_address_is_named_with_its_cause(use):
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"127.0.0.1:{port}" for port in (closed_port(), silent.getsockname()[1])]
        causes = (
            rf"\({addresses[0]}: Connection refused: nothing listens at this port; "
            rf"{addresses[1]}: no answer in time: .*; "
            r"no-such-host\.invalid:9092: the host name is not known here .*\); correct the address, or start the "
            r"brokers; kafka\.(default\.api\.timeout|max\.block)\.ms sets how long to wait$"
        )
        with pytest.raises((ReadTimeoutError, SinkError), match=causes):
            use(given(*addresses, "no-such-host.invalid:9092"))
    assert time.monotonic() - began < LIMIT_S


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_wrong_advertised_listeners_are_named(use):
    """A broker in a container often names an address that only other containers know."""
    hidden = ("127.0.0.1", closed_port())
    brokers = [MetadataResponseBroker(node_id=1, host=hidden[0], port=hidden[1])]
    with answering(encode_response(MetadataResponse(brokers=brokers), METADATA_VERSION, 1)) as address:
        message = (
            rf"^kafka\.bootstrap\.servers: the brokers at {address} name other addresses, none of which answered "
            rf"within 0\.3 s \({hidden[0]}:{hidden[1]}: Connection refused: .*\); correct advertised\.listeners"
        )
        with pytest.raises((ReadTimeoutError, SinkError), match=message):
            use(given(address))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_no_host_name_is_refused_without_waiting(use):
    with pytest.raises(OptionError, match=r"^kafka\.bootstrap\.servers: 'broker\.\.example.* name"):
        use(given("broker..example:9092"))


def test_the_columns_of_a_query_need_no_broker():
    options = {"kafka.bootstrap.servers": f"127.0.0.1:{closed_port()}", "subscribe": "t"}
    assert DefaultSource(options).schema() == ddl(columns_of(options))
