"""Goal: each key of a query's client changes the one thing that it names, within its bounds.

Method: a table of all keys that the source obeys; each is given alone, and nothing else may change.
"""

import dataclasses
import logging
import socket

import pytest

from pyspark_moldau import client_options
from pyspark_moldau.client_options import (
    OBEYED,
    REFUSED,
    SOCKET_BUFFER_BYTES_MAX,
    WITHOUT_EFFECT,
    ClientOptions,
    OptionError,
    known_names,
    parse_client,
    positive,
)

FETCH_MAX = 256 * 1024 * 1024
SERVERS = {"kafka.bootstrap.servers": "b:1"}
DEFAULT = ClientOptions(bootstrap=(("b", 1),))
KEYS = {
    "bootstrap.servers": ("c:2, d:3", {"bootstrap": (("c", 2), ("d", 3))}),
    "check.crcs": ("false", {"check_crcs": False}),
    "client.id": ("mine", {"client_id": "mine"}),
    "client.rack": ("r1", {"rack": "r1"}),
    "default.api.timeout.ms": ("7", {"api_timeout_ms": 7, "reach_timeout_ms": 7}),
    "fetch.max.bytes": ("7", {"fetch_bytes": 7}),
    "fetch.max.wait.ms": ("7", {"fetch_wait_ms": 7}),
    "fetch.min.bytes": ("7", {"fetch_bytes_min": 7}),
    "isolation.level": ("READ_committed", {"read_committed": True}),
    "max.partition.fetch.bytes": ("7", {"partition_fetch_bytes": 7}),
    "receive.buffer.bytes": ("7", {"receive_buffer_bytes": 7}),
    "request.timeout.ms": ("7", {"request_timeout_ms": 7}),
    "retry.backoff.max.ms": ("700", {"retry_backoff_max_ms": 700}),
    "retry.backoff.ms": ("7", {"retry_backoff_ms": 7}),
    "send.buffer.bytes": ("7", {"send_buffer_bytes": 7}),
    "socket.connection.setup.timeout.ms": ("7", {"connect_timeout_ms": 7}),
}
"""Each key that is obeyed, a value, and the fields that it sets."""


def parse(**given):
    return parse_client(SERVERS | given)


def test_a_key_changes_the_field_that_it_names():
    assert {*KEYS} == {*OBEYED}
    assert parse() == DEFAULT
    for key, (text, fields) in KEYS.items():
        assert parse(**{f"kafka.{key}": text}) == dataclasses.replace(DEFAULT, **fields), key
    everything = {name: value for _, fields in KEYS.values() for name, value in fields.items()}
    assert parse(**{f"kafka.{key}": text for key, (text, _) in KEYS.items()}) == ClientOptions(**everything)


def test_a_socket_takes_the_longest_time_to_connect():
    """Kafka's key is a long; a socket refused it with an OverflowError."""
    client = parse(**{"kafka.socket.connection.setup.timeout.ms": str(2**63 - 1)})
    with socket.socket() as end:
        end.settimeout(client.connect_timeout_ms / 1000)


def test_the_poll_timeout_of_spark_counts_before_the_clients():
    """Its name is that of an option of Spark's source, without a prefix."""
    given = {"kafka.default.api.timeout.ms": "7", "kafkaconsumer.polltimeoutms": "9"}
    assert parse(**given) == dataclasses.replace(DEFAULT, api_timeout_ms=9, reach_timeout_ms=9)
    assert parse(**{"kafkaconsumer.polltimeoutms": "9"}).reach_timeout_ms == 9
    for wrong in ("0", "-1", "x", "1.5", "9" * 19, " 7"):
        with pytest.raises(
            OptionError,
            match=r"^kafkaConsumer\.pollTimeoutMs: expected a positive number of at most 9223372036854775807, got",
        ):
            parse(**{"kafkaconsumer.polltimeoutms": wrong})
    assert positive("9" * 18, "x") == int("9" * 18)


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        *(
            (key, ["1", str(FETCH_MAX)], ["0", "-1", str(FETCH_MAX + 1)])
            for key in ("max.partition.fetch.bytes", "fetch.max.bytes")
        ),
        *(
            (
                key,
                ["-1", "0", str(SOCKET_BUFFER_BYTES_MAX)],
                ["-2", "x", "", str(SOCKET_BUFFER_BYTES_MAX + 1), "1" * 10],
            )
            for key in ("receive.buffer.bytes", "send.buffer.bytes")
        ),
        ("client.rack", ["", "r"], []),
        ("isolation.level", ["read_uncommitted", "Read_Committed"], ["", "none"]),
        ("check.crcs", ["true", "false"], ["maybe"]),
    ],
)
def test_a_value_may_be_at_its_bounds_and_not_beyond(key, right, wrong):
    for text in right:
        parse(**{f"kafka.{key}": text})
    for text in wrong:
        with pytest.raises(OptionError, match=rf"^kafka\.{key}"):
            parse(**{f"kafka.{key}": text})


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1", (("h", 1),)),
        ("h:65535,[::1]:9092", (("h", 65535), ("::1", 9092))),
        (" a:1 , b:2 ", (("a", 1), ("b", 2))),
        ("h:00001", (("h", 1),)),
        *((wrong, None) for wrong in ("", ",", "h", "h:", ":1", "h:0", "h:65536", "h:1x", "h:100000", "h 1", "..a:1")),
    ],
)
def test_an_address_has_a_host_and_a_port(text, addresses):
    if addresses is not None:
        assert parse(**{"kafka.bootstrap.servers": text}).bootstrap == addresses
        return
    with pytest.raises(OptionError, match=r"^kafka\.bootstrap\.servers"):
        parse(**{"kafka.bootstrap.servers": text})


def test_keys_of_logins_and_tls_are_kept_as_given():
    """The protocol may be in any case; keys that only Kafka's Java clients know are none of them."""
    given = {
        "kafka.security.protocol": "sasl_plaintext",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "al",
        "kafka.sasl.password": "Pw",
        "kafka.sasl.login.class": "java.Class",
    }
    client = parse(**given)
    assert client.security == (
        ("sasl.mechanism", "PLAIN"),
        ("sasl.password", "Pw"),
        ("sasl.username", "al"),
        ("security.protocol", "SASL_PLAINTEXT"),
    )
    config = client_options.security_config(client)
    assert (config.get_str("security.protocol"), config.get_str("sasl.mechanism")) == ("SASL_PLAINTEXT", "PLAIN")
    assert "Pw" not in repr(client)
    assert hash(client) == hash(parse(**given)), "processes keep the readers of each client"


def test_each_key_of_kafkas_consumer_is_taken_or_refused(caplog):
    """A query that runs with Spark's source runs here; what it loses is said."""
    caplog.set_level(logging.WARNING)
    for key in sorted(known_names()):
        caplog.clear()
        if key in REFUSED:
            with pytest.raises(OptionError, match=rf"^kafka\.{key} is not supported: "):
                client_options.check_names({key: "x"})
            continue
        client_options.check_names({key: "x"})
        warned = [record.args[0] for record in caplog.records]
        assert warned == ([key] if key in WITHOUT_EFFECT and key != "group.id" else []), key


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("fetch.min.byte", "fetch.min.bytes"),
        ("groupid", "group.id"),
        ("auto.offset.rest", "auto.offset.reset"),
        ("ssl.truststor.location", "ssl.truststore.location"),
        ("sasl.new.key.of.kafka", None),
        ("x", None),
    ],
)
def test_only_a_key_that_looks_misspelt_is_refused(key, near, caplog):
    if near is not None:
        with pytest.raises(OptionError, match=rf"^unknown option kafka\.{key}; did you mean kafka\.{near}\?$"):
            client_options.check_names({key: "x"})
        return
    client_options.check_names({key: "x"})
    assert [record.args[0] for record in caplog.records] == [key]
