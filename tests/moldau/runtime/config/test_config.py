"""Configuration: errors name key, value, allowed values and the nearest key; parsed values are typed."""

import math
import warnings
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.runtime.config import (
    ADMIN_CONFIG,
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    CONSUMER_CONFIG,
    GROUP_CONFIG,
    PRODUCER_CONFIG,
    REQUIRED,
    TOPIC_CONFIG,
    Config,
    ConfigError,
    ConfigType,
    DynamicScope,
    cordoned_log_dirs,
    environment_name,
    environment_overrides,
    parse_config_text,
    parse_properties,
    parse_server_config,
    parse_toml,
    topic_config,
    topic_defaults,
    usable_topic_config,
    with_dynamic,
)
from moldau.runtime.config.keys.groups.group import BOUNDED_KEYS

SOURCES = ("client", "metadata_quorum", "data_plane", "cli")
SCHEMAS = [BROKER_CONFIG, TOPIC_CONFIG, PRODUCER_CONFIG, CONSUMER_CONFIG, ADMIN_CONFIG]

SERVER = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
"""

KAFKA_TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "errors.deadletterqueue.group.enable": "false",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.decompressed.message.bytes": "2147483639",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""The keys that a topic of Kafka 4.4 has, with their defaults, as its log library states them."""


def server(extra="", **environ):
    return parse_server_config(SERVER + extra, "server.properties", environ)


def problems(function, *args):
    with pytest.raises(ConfigError) as caught:
        function(*args)
    return list(caught.value.problems)


def test_every_default_is_a_value_of_its_own_key():
    """A default that its key would refuse, or that changes when it is shown and read again, is a mistake."""
    for schema in SCHEMAS:
        for key in schema.keys.values():
            if key.default is REQUIRED or key.default is None:
                continue
            assert key.parse(key.default) == key.default, key.name
            assert key.parse(key.format(key.default)) == key.default, key.name
            assert key.doc.endswith("."), key.name
            if key.has_effect is False:
                assert "without effect" in key.doc


def test_every_topic_key_falls_back_to_a_broker_key_that_exists():
    for key in TOPIC_CONFIG.keys.values():
        for synonym in key.synonyms:
            assert synonym.name in BROKER_CONFIG.keys


def test_configuration_providers_need_no_declaration():
    """Kafka wants them declared; the nearest key was ``security.providers``, which has nothing to do with them."""
    for parse in (server, lambda text: PRODUCER_CONFIG.parse(parse_properties(text))):
        found = problems(parse, "config.providers=env\nconfig.providers.env.class=org.apache.kafka.X\n")
        for key, problem in zip(("config.providers", "config.providers.env.class"), found, strict=False):
            assert problem.startswith(f"{key}: leave it out: ${{env:NAME}}, ${{file:PATH:KEY}} and")


def test_all_problems_are_reported_at_once():
    assert problems(
        server, "num.partition=3\nnum.io.threads=0\nlog.cleaner.enable=yes\nsasl.jaas.config=x\nlog.dirs=\n"
    ) == [
        "num.partition: unknown broker configuration key; did you mean num.partitions?",
        "num.io.threads = '0': must be an integer from 1 to 2147483647",
        "log.cleaner.enable = 'yes': must be true or false",
    ]
    assert problems(PRODUCER_CONFIG.parse, {"acks": "2", "zzz": 1, "group.id": "g"}) == [
        "acks = '2': must be one of all, -1, 0, 1",
        "zzz: unknown producer configuration key",
        "group.id: unknown producer configuration key; consumers have it",
        "bootstrap.servers: missing producer configuration key; it must be a comma-separated list",
    ]


def test_a_file_cordons_only_directories_that_it_has():
    """A value that was set at run time may name a directory that is gone; it has no effect then."""
    two = "log.dirs=/a,/b\n"
    assert cordoned_log_dirs(server(two + "cordoned.log.dirs=/b\n")) == ("/b",)
    assert cordoned_log_dirs(server(two + "cordoned.log.dirs=*\n")) == ("/a", "/b")
    assert problems(server, two + "cordoned.log.dirs=/b,/c\n") == [
        "cordoned.log.dirs: /c is not one of log.dirs: /a, /b"
    ]
    alone = "cordoned.log.dirs: * stands for all log directories, and must stand alone"
    assert problems(server, two + "cordoned.log.dirs=*,/b\n") == [alone]
    config, left_out = with_dynamic(server(two), {"cordoned.log.dirs": "/c,/a"})
    assert (cordoned_log_dirs(config), left_out) == (("/a",), {})
    assert with_dynamic(config, {"cordoned.log.dirs": "*,/a"})[1] == {"cordoned.log.dirs": alone}


def test_each_value_that_is_left_out_has_its_reason():
    """One value of a topic cannot be read, and two do not fit together."""
    broker = server()
    overrides = {"retention.ms": "soon", "min.compaction.lag.ms": "100", "max.compaction.lag.ms": "99"}
    config, left_out = usable_topic_config(broker, overrides, topic_defaults(broker))
    assert config.get_int("min.compaction.lag.ms") == 100
    assert sorted(left_out) == ["max.compaction.lag.ms", "retention.ms"]
    assert "min.compaction.lag.ms = 100" in left_out["max.compaction.lag.ms"]
    assert "soon" in left_out["retention.ms"]
    del overrides["retention.ms"]
    for innocent in ({}, {"cleanup.policy": "compact"}, {"segment.bytes": "2000000"}):
        config, left_out = usable_topic_config(broker, overrides | innocent, topic_defaults(broker))
        assert list(left_out) == ["max.compaction.lag.ms"], "a value that fits changes nothing for those that do not"
        assert {key: config.text(key) for key in innocent} == innocent


def test_secrets_are_never_shown():
    config = Config(BROKER_CONFIG, {"sasl.jaas.config": "password"}, {"sasl.jaas.config": "password"})
    assert "password" not in repr(config)
    assert config.text("sasl.jaas.config", hide=True) == "[hidden]"
    assert config.get_str("sasl.jaas.config") == "password"
    assert "s3cr3t" not in problems(BROKER_CONFIG.parse_value, "ssl.key.password", ["s3cr3t"])[0]


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("num.partitions", " 7 ", 7),
        ("num.partitions", 7, 7),
        ("num.partitions", 7.0, 7),
        ("log.cleaner.enable", "FALSE", False),
        ("log.dirs", "/a, /b,,", ("/a", "/b")),
        ("log.dirs", ["/a", "/b"], ("/a", "/b")),
        ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
        ("log.retention.ms", None, None),
        ("broker.rack", "r1", "r1"),
    ],
)
def test_values_are_typed(key, raw, value):
    assert BROKER_CONFIG.parse_value(key, raw) == value


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        ("num.partitions", "1_000"),
        ("num.partitions", "1.5"),
        ("num.partitions", True),
        ("num.partitions", "99999999999"),
        ("num.partitions", None),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleaner.min.cleanable.ratio", "1.1"),
        ("log.cleaner.enable", "1"),
        ("log.cleanup.policy", "delete,shrink"),
        ("log.dirs", 5),
        ("broker.rack", ["a"]),
    ],
)
def test_wrong_values_are_refused(key, raw):
    (problem,) = problems(BROKER_CONFIG.parse_value, key, raw)
    assert problem.startswith(f"{key} = ")
    assert "must be" in problem


def test_getters_insist_on_their_type():
    config = server()
    assert config.get_int("num.partitions") == 1
    assert config.get_double("log.cleaner.io.buffer.load.factor") == 0.9
    assert config.get_str_or_none("broker.rack") is None
    assert config.get_list("process.roles") == ("broker", "controller")
    assert config.get("auto.create.topics.enable") is True
    for getter, key in (
        (config.get_int, "auto.create.topics.enable"),
        (config.get_int, "log.retention.ms"),
        (config.get_bool, "num.partitions"),
        (config.get_str, "log.dirs"),
        (config.get_list, "compression.type"),
        (config.get_double, "compression.type"),
    ):
        with pytest.raises(TypeError, match=key):
            getter(key)
    with pytest.raises(KeyError):
        config.get_int("no.such.key")
    assert "num.partitions" in config
    assert "no.such.key" not in config


def test_changed_copies_are_checked_and_equal_by_value():
    config = server()
    changed = config.with_values({"num.partitions": "5"})
    assert (changed.get_int("num.partitions"), config.get_int("num.partitions")) == (5, 1)
    assert (changed.is_set("num.partitions"), config.is_set("num.partitions")) == (True, False)
    assert changed != config
    assert changed == server("num.partitions=5\n")
    assert hash(changed) == hash(server("num.partitions=6\n"))
    with pytest.raises(ConfigError):
        config.with_values({"num.partitions": 0})


def test_listener_prefix_reaches_known_keys_only():
    assert BROKER_CONFIG.parse_value("listener.name.plaintext.ssl.client.auth", "required") == "required"
    assert BROKER_CONFIG.key("listener.name.x.plain.sasl.jaas.config").is_sensitive
    assert "listener.name.plaintext.ssl" in problems(server, "listener.name.plaintext.ssl.klient.auth=required\n")[0]
    config = server("listener.name.plaintext.max.connections=5\n")
    assert config.get_int("listener.name.plaintext.max.connections") == 5


@pytest.mark.parametrize(
    "name", ["listener.name.PLAINTEXT.ssl.client.auth", "listener.name.plaintext.PLAIN.sasl.jaas.config"]
)
def test_names_of_listeners_in_upper_case_are_refused(name: str) -> None:
    """No node looks for them: the listener would ask no client for a certificate, or know other users."""
    assert problems(server, f"{name}=required\n") == [
        f"{name}: unknown broker configuration key; did you mean {name.lower()}?"
    ]


@pytest.mark.parametrize("schema", [PRODUCER_CONFIG, CONSUMER_CONFIG, ADMIN_CONFIG])
def test_the_lookup_of_kafkas_clients_is_known(schema):
    """Files for Java clients of services name it; it is what Moldau's clients do."""
    given = {"bootstrap.servers": "b:1", "group.id": "g"} if schema is CONSUMER_CONFIG else {"bootstrap.servers": "b:1"}
    schema.parse({**given, "client.dns.lookup": "use_all_dns_ips"})
    with pytest.raises(ConfigError, match=r"client\.dns\.lookup = 'resolve_canonical.*': must be .*use_all_dns_ips"):
        schema.parse({**given, "client.dns.lookup": "resolve_canonical_bootstrap_servers_only"})


def test_every_served_key_has_a_reader():
    """Goal: no key is declared as served that no code reads.

    Method: each name stands as a text in the sources, outside the declarations. Some are composed: the bounds of groups
    follow from `BOUNDED_KEYS`, the rest is listed with the text that begins or ends it where it is read.
    """
    root = Path(__file__).parents[4]
    declared = root / "client" / "moldau" / "runtime" / "config" / "keys"
    files = [path for part in SOURCES for path in sorted((root / part).rglob("*.py"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if declared not in path.parents)
    of_topics = {synonym.name for key in TOPIC_CONFIG.keys.values() for synonym in key.synonyms}
    composed = {
        *(f"group.{key.replace('.', f'.{side}.', 1)}" for key in BOUNDED_KEYS for side in ("min", "max")),
        *(f"group.{key}" for key in BOUNDED_KEYS if f'"{key}"' in text),
        "group.streams.max.standby.replicas",  # the same check as that of the bounds
        "group.streams.min.task.offset.interval.ms",
        "group.share.assignors",  # it has one value
    }
    unread = [
        key.name
        for schema in (BROKER_CONFIG, TOPIC_CONFIG, GROUP_CONFIG, CLIENT_METRICS_CONFIG)
        for key in schema.keys.values()
        if key.has_effect and key.name not in of_topics | composed and f'"{key.name}"' not in text
    ]
    assert [name for name in unread if not name.startswith("sasl.oauthbearer.")] == [], "read by prefix"


def test_nodes_do_not_promise_what_clients_alone_read():
    """The key is read by clients only: an operator who set it on nodes changed nothing, and no line said so."""
    assert not BROKER_CONFIG.keys["socket.connection.setup.timeout.ms"].has_effect
    assert ADMIN_CONFIG.keys["socket.connection.setup.timeout.ms"].has_effect


# --- texts


def test_properties_as_java_reads_them():
    text = "\n".join(
        [
            "# comment",
            "! comment",
            "  a = 1  ",
            "b:2",
            "c 3",
            "d=one\\",
            "   two\\",
            "   three",
            "e\\ f\\==g\\u0041\\t\\n\\\\x",
            "empty=",
            "alone",
            "path=C:\\\\dir",
        ]
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "onetwothree",
        "e f=": "gA\t\n\\x",
        "empty": "",
        "alone": "",
        "path": "C:\\dir",
    }
    assert problems(parse_properties, "a=1\nb=2\na=3", "x.properties") == ["x.properties, line 3: a is given twice"]
    assert problems(parse_properties, "a=1\n\\u0061=2", "x") == ["x, line 2: a is given twice"]
    assert problems(parse_properties, "a=\\u00zz", "x")[0] == "x, line 1: \\u00zz is no Unicode escape"
    assert problems(parse_properties, "a=\\u00", "x")[0] == "x, line 1: \\u00 is no Unicode escape"


@given(st.text(max_size=60))
def test_no_text_makes_the_properties_parser_fail_otherwise(text):
    try:
        parse_properties(text)
    except ConfigError:
        return


@given(st.dictionaries(st.text("abc.=: #\\\u00e9", min_size=1, max_size=6), st.text("xyz=:#!\\ \u00e9", max_size=6)))
def test_escaped_properties_round_trip(pairs):
    def escape(text):
        return "".join(f"\\u{ord(char):04x}" if not char.isalnum() or ord(char) > 126 else char for char in text)

    text = "\n".join(f"{escape(key)}={escape(value)}" for key, value in pairs.items())
    assert parse_properties(text) == {key: value.rstrip() for key, value in pairs.items()}


def test_toml_tables_join_their_names():
    text = """
    "node.id" = 1
    process.roles = ["broker", "controller"]
    [log]
    dirs = ["/a", "/b"]
    retention.hours = 5
    [log.cleaner]
    enable = false
    """
    assert parse_toml(text) == {
        "node.id": 1,
        "process.roles": ["broker", "controller"],
        "log.dirs": ["/a", "/b"],
        "log.retention.hours": 5,
        "log.cleaner.enable": False,
    }
    assert "not TOML" in problems(parse_toml, "a = ", "x.toml")[0]
    assert "plain list" in problems(parse_toml, "a = [[1]]", "x.toml")[0]
    assert "given twice" in problems(parse_toml, "'a.b' = 1\n[a]\nb = 2", "x.toml")[0]
    assert "no configuration values" in problems(parse_toml, "a = 2020-01-01", "x.toml")[0]
    assert parse_config_text("a = 1", "x.toml") == {"a": 1}
    assert parse_config_text("a = 1", "x.properties") == {"a": "1"}


def test_environment_overrides_the_file():
    config = server("num.partitions=2\n", MOLDAU_NUM_PARTITIONS="4", MOLDAU_LOG_DIRS="/a,/b", PATH="/bin")
    assert config.get_int("num.partitions") == 4
    assert config.get_list("log.dirs") == ("/a", "/b")
    names = [environment_name(key) for key in (*BROKER_CONFIG.keys, *BROKER_CONFIG.unserved)]
    assert len(set(names)) == len(names), "two keys share a variable"
    assert environment_overrides(TOPIC_CONFIG, {"MOLDAU_RETENTION_MS": "1"}) == {"retention.ms": "1"}


# --- topics


@pytest.mark.parametrize("key", ["log.retention.ms", "log.retention.minutes", "log.retention.hours"])
def test_an_age_of_zero_for_all_topics_is_refused(key):
    """It would delete the closed segments of each topic that has no age of its own."""
    text = f"{key} = 0: must be at least 1, or -1 for no end"
    assert problems(server, f"{key}=0\n") == [text]
    assert with_dynamic(server(), {"log.retention.ms": "0"})[1] == {
        "log.retention.ms": text.replace(key, "log.retention.ms")
    }
    if key != "log.retention.ms":
        assert topic_config(server(f"{key}=0\nlog.retention.ms=5\n"), {}).get_int("retention.ms") == 5


def test_topic_values_fall_back_to_the_broker():
    assert topic_config(server(), {}).get_int("retention.ms") == 7 * 24 * 3600 * 1000
    assert topic_config(server("log.retention.hours=2\n"), {}).get_int("retention.ms") == 7_200_000
    assert (
        topic_config(server("log.retention.hours=2\nlog.retention.minutes=1\n"), {}).get_int("retention.ms") == 60_000
    )
    assert topic_config(server("log.retention.ms=5\nlog.retention.minutes=1\n"), {}).get_int("retention.ms") == 5
    assert topic_config(server("log.retention.hours=-1\n"), {}).get_int("retention.ms") == -1
    config = topic_config(server("log.segment.bytes=5000\n"), {"retention.ms": "9", "cleanup.policy": "compact,delete"})
    assert (config.get_int("segment.bytes"), config.get_int("retention.ms")) == (5000, 9)
    assert config.get_list("cleanup.policy") == ("compact", "delete")
    assert problems(topic_config, server(), {"retention.msec": "1"}) == [
        "retention.msec: unknown topic configuration key; did you mean retention.ms?"
    ]
    assert (
        "max.compaction.lag.ms"
        in problems(topic_config, server(), {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})[0]
    )


def test_a_topic_has_every_key_of_kafka_with_its_default():
    """Tools that copy a whole configuration name all keys; one unknown key would make a cluster refuse the topic."""
    given, defaults = topic_config(server(), KAFKA_TOPIC_DEFAULTS), topic_config(server(), {})
    assert given.explicit().keys() == KAFKA_TOPIC_DEFAULTS.keys()
    assert {name: defaults.get(name) for name in KAFKA_TOPIC_DEFAULTS} == given.explicit()


def test_a_topic_that_needs_what_is_not_served_is_refused():
    for key, value in (("local.retention.ms", "-3"), ("max.decompressed.message.bytes", "1000")):
        (problem,) = problems(topic_config, server(), {key: value})
        assert problem.startswith(f"{key} = '{value}': must be an integer")
    assert topic_config(server(), {"local.retention.ms": "5"}).get_int("retention.ms") == 7 * 24 * 3600 * 1000


# --- clients


def test_producer_checks_span_keys():
    given = {"bootstrap.servers": "a:1"}
    assert problems(PRODUCER_CONFIG.parse, given | {"enable.idempotence": True, "acks": "1"}) == [
        "acks = '1': must be all with enable.idempotence"
    ]
    assert problems(
        PRODUCER_CONFIG.parse,
        given | {"transactional.id": "t", "max.in.flight.requests.per.connection": 6, "retries": 0},
    ) == [
        "max.in.flight.requests.per.connection = 6: must be at most 5 with transactional.id",
        "retries = 0: must be at least 1 with transactional.id",
    ]
    assert "delivery.timeout.ms" in problems(PRODUCER_CONFIG.parse, given | {"delivery.timeout.ms": 100})[0]
    assert problems(PRODUCER_CONFIG.parse, {"bootstrap.servers": "localhost"}) == [
        "bootstrap.servers: 'localhost' is not host:port"
    ]
    assert problems(PRODUCER_CONFIG.parse, {"bootstrap.servers": ""}) == [
        "bootstrap.servers: must name at least one host:port"
    ]


def test_consumer_checks_span_keys():
    given = {"bootstrap.servers": "a:1"}
    for wrong in ("sometimes", "by_duration:P", "by_duration:P1", "by_duration:PT1H ago", "by_duration:1H"):
        assert "by_duration" in problems(CONSUMER_CONFIG.parse, given | {"auto.offset.reset": wrong})[0]
    assert CONSUMER_CONFIG.parse(given | {"auto.offset.reset": "by_duration:PT1H"}).is_set("auto.offset.reset")
    assert "heartbeat" in problems(CONSUMER_CONFIG.parse, given | {"heartbeat.interval.ms": 45_000})[0]
    assert "group.id" in problems(CONSUMER_CONFIG.parse, given | {"group.instance.id": "x"})[0]


@pytest.mark.parametrize("schema", [PRODUCER_CONFIG, CONSUMER_CONFIG, ADMIN_CONFIG])
def test_names_that_no_request_can_hold_are_refused(schema):
    """One with a byte of another encoding ended the client by an untyped error, and none named the key."""
    servers = "bootstrap.controllers" if schema is ADMIN_CONFIG else "bootstrap.servers"
    for key in {"client.id", "client.rack", "group.id", "group.instance.id", "transactional.id"} & set(schema.keys):
        given = {servers: "a:1", "group.id": "g"} if schema is CONSUMER_CONFIG else {servers: "a:1"}
        schema.parse(given | {key: "é" * 16_383})
        assert f"{key} = 'ééé" in problems(schema.parse, given | {key: "é" * 16_384})[0]
        assert f"{key} = 'x\\udce9': must be UTF-8 text" in problems(schema.parse, given | {key: "x\udce9"})[0]


def test_a_byte_order_mark_is_no_part_of_a_key():
    """The error showed the key as it should be, and proposed it again."""
    assert parse_config_text("\ufeffnode.id=1\n", "f") == {"node.id": "1"}
    assert parse_config_text("\ufeff[node]\nid = 1\n", "f.toml") == {"node.id": 1}


def test_a_path_may_be_an_object():
    given = {"bootstrap.servers": "a:1", "ssl.truststore.location": PurePosixPath("/etc/trust.pem")}
    assert PRODUCER_CONFIG.parse(given).get_str("ssl.truststore.location") == "/etc/trust.pem"
    assert "sasl.password = [hidden]" in problems(PRODUCER_CONFIG.parse, {"sasl.password": PurePosixPath("x")})[0]


def test_choices_of_clients_may_have_other_letters():
    """Kafka's clients and librdkafka, whose documentation has ``sasl_ssl``, do not tell these apart."""
    given = {"bootstrap.servers": "a:1"}
    for key, text in (
        ("security.protocol", "plaintext"),
        ("group.protocol", "CONSUMER"),
        ("metadata.recovery.strategy", "NONE"),
    ):
        config = CONSUMER_CONFIG.parse(given | {key: text})
        assert config.get_str(key) == (text.upper() if key == "security.protocol" else text.lower())
        assert "must be one of" in problems(CONSUMER_CONFIG.parse, given | {key: "other"})[0]


def test_names_that_fence_others_are_not_empty():
    """A template whose variable is not set must not make all members of a group one static member."""
    given = {"bootstrap.servers": "a:1", "group.id": "g"}
    assert problems(CONSUMER_CONFIG.parse, given | {"group.instance.id": " "}) == [
        "group.instance.id: must not be empty; leave the key out"
    ]
    assert problems(PRODUCER_CONFIG.parse, {"bootstrap.servers": "a:1", "transactional.id": ""}) == [
        "transactional.id: must not be empty; leave the key out"
    ]


# --- parity


def test_numbers_of_kafka_clients_defaults():
    """Spot checks against the defaults that another client states."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the oracle's own making
        from kafka import KafkaConsumer, KafkaProducer
    theirs = KafkaConsumer.DEFAULT_CONFIG
    for key, other in (
        ("fetch.min.bytes", "fetch_min_bytes"),
        ("fetch.max.wait.ms", "fetch_max_wait_ms"),
        ("fetch.max.bytes", "fetch_max_bytes"),
        ("max.partition.fetch.bytes", "max_partition_fetch_bytes"),
        ("max.poll.records", "max_poll_records"),
        ("max.poll.interval.ms", "max_poll_interval_ms"),
        ("heartbeat.interval.ms", "heartbeat_interval_ms"),
        ("retry.backoff.ms", "retry_backoff_ms"),
        ("metadata.max.age.ms", "metadata_max_age_ms"),
    ):
        assert CONSUMER_CONFIG.keys[key].default == theirs[other], key
    assert PRODUCER_CONFIG.keys["max.block.ms"].default == KafkaProducer.DEFAULT_CONFIG["max_block_ms"]
    batch_size = PRODUCER_CONFIG.keys["batch.size"]
    assert batch_size.default == 4 * KafkaProducer.DEFAULT_CONFIG["batch_size"]
    assert batch_size.is_own


@pytest.mark.parametrize("schema", [BROKER_CONFIG, ADMIN_CONFIG])
@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("ssl.endpoint.identification.algorithm", "HTTPS", "https"),
        ("ssl.keystore.type", "pkcs12", "PKCS12"),
        ("ssl.truststore.type", "pkcs12", "PKCS12"),
    ],
)
def test_names_of_java_may_have_any_case(schema, key, given, value):
    """Java's standard name is HTTPS, and it looks for types of stores in any case; files of Kafka have each."""
    assert schema.parse_value(key, given) == value


def test_share_is_one_of_the_protocols_of_groups():
    """Files of Kafka 4.0 name it to try share groups, and later releases of Kafka take it."""
    given = "classic,consumer,share"
    assert BROKER_CONFIG.parse_value("group.coordinator.rebalance.protocols", given) == ("classic", "consumer", "share")


def test_the_migration_policy_may_have_any_case():
    """Kafka takes it so, and its own names are in capital letters."""
    assert BROKER_CONFIG.parse_value("group.consumer.migration.policy", "UPGRADE") == "upgrade"


def test_dynamic_scopes_and_secrets_are_marked():
    keys = BROKER_CONFIG.keys
    assert keys["node.id"].dynamic is DynamicScope.READ_ONLY
    for name in ("log.retention.ms", "log.cleaner.threads", "log.cleaner.backoff.ms", "producer.id.expiration.ms"):
        assert keys[name].dynamic is DynamicScope.CLUSTER_WIDE
    assert keys["remote.log.index.file.cache.total.size.bytes"].dynamic is DynamicScope.CLUSTER_WIDE
    assert keys["ssl.keystore.location"].dynamic is DynamicScope.PER_BROKER
    for name in (
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "log.cleaner.enable",
        "num.recovery.threads.per.data.dir",
        "ssl.endpoint.identification.algorithm",
    ):
        assert keys[name].dynamic is DynamicScope.READ_ONLY, f"{name} is read once, when a node starts"
    assert keys["sasl.jaas.config"].is_sensitive
    assert keys["sasl.jaas.config"].type is ConfigType.PASSWORD
    assert keys["log.cleaner.io.max.bytes.per.second"].default < math.inf


@pytest.mark.parametrize("other", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_lines_end_where_those_of_java_do(other):
    """The rest of a comment that was pasted with its line separators was taken for a key, as was that of a value."""
    text = f"# a{other}b=1\rc=2{other}d=3\r\ne=4\\\r\n  5\n\rf=6"
    assert parse_properties(text) == {"c": f"2{other}d=3", "e": "45", "f": "6"}
