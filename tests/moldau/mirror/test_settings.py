"""The file of a mirror: what it says, and the one line that a mistake gets."""

import re

import pytest

from moldau.mirror.core import maker_keys
from moldau.mirror.core.settings import parse_settings
from moldau.runtime.config import MIRROR_CONFIG, MIRROR_SOURCE_CONFIG, ConfigError

FILE = """
target = "hub"
"exactly.once.source.support" = "enabled"
topics = ["orders.*"]
"topics.exclude" = ["orders-old"]

[clusters.hub]
"bootstrap.servers" = "hub-1:9092"
"producer.linger.ms" = 20

[clusters.east]
bootstrap.servers = "east-1:9092,east-2:9092"
"consumer.isolation.level" = "read_uncommitted"
"security.protocol" = "SSL"

[clusters.west]
"bootstrap.servers" = "west-1:9092"

[sources.east]
[sources.west]
topics = ["payments"]
"replication.policy.class" = "IdentityReplicationPolicy"
"""


def parsed(text=FILE, *, without="", more=""):
    return parse_settings(text.replace(without, "") + more, "mirror.toml")


def problems(**change):
    with pytest.raises(ConfigError) as caught:
        parsed(**change)
    return "; ".join(caught.value.problems)


def test_a_file_may_have_a_byte_order_mark():
    assert parsed(f"\ufeff{FILE.lstrip()}") == parsed()


def test_sources_share_keys_and_differ_in_others():
    settings = parsed()
    east, west = settings.sources
    assert (east.alias, west.alias, settings.target.alias) == ("east", "west", "hub")
    assert east.is_exactly_once
    assert west.is_exactly_once
    assert east.topic_rules.accepts("orders-new")
    assert not east.topic_rules.accepts("orders-old")
    assert west.topic_rules.accepts("payments")
    assert (east.policy.renames, west.policy.renames) == (True, False)
    assert east.transactional_id == "moldau-mirror.east.hub"
    assert east.offset_syncs_topic == "mm2-offset-syncs.hub.internal"
    assert settings.metrics_listener is None


def test_clients_get_their_keys_and_the_mirrors_own():
    east, _ = parsed().sources
    consumer = east.cluster.client("consumer")
    assert consumer["isolation.level"] == "read_uncommitted"
    assert consumer["auto.offset.reset"] == "none"
    assert "producer.linger.ms" not in consumer
    assert east.target.client("producer", transactional_id="t") == {
        "bootstrap.servers": "hub-1:9092",
        "linger.ms": 20,
        "acks": "all",
        "enable.idempotence": True,
        "transactional.id": "t",
    }
    assert "isolation.level" not in east.cluster.client("admin")


def test_references_are_resolved():
    text = FILE.replace("hub-1:9092", "${env:HUB}")
    settings = parse_settings(
        text, "mirror.toml", lambda given: {k: "h:1" if v == "${env:HUB}" else v for k, v in given.items()}
    )
    assert settings.target.keys["bootstrap.servers"] == "h:1"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"without": 'target = "hub"\n'}, "target: missing mirror configuration key"),
        ({"text": "x = ["}, "mirror.toml: not TOML"),
        ({"text": 'targt = "hub"'}, "targt: unknown mirror configuration key; did you mean target?"),
        ({"text": 'target = "hub"\nclusters = 3'}, "clusters must consist of tables such as [clusters.east]"),
        ({"text": 'target = "hub"\n[clusters.hub]\n"bootstrap.servers" = "h:1"'}, "no source: a table [sources."),
        ({"more": "[sources.hub]\n"}, "[sources.hub]: the target cannot be a source of itself"),
        ({"more": "[sources.wst]\n"}, "sources.wst: there is no table [clusters.wst]; did you mean west?"),
        ({"more": '"sync.topic.acl.enabled" = true\n'}, "[sources.west] sync.topic.acl.enabled: unknown mirror source"),
        ({"more": '"groups" = ["("]\n'}, "[sources.west] groups = '(': is no regular expression"),
        ({"more": '"groups" = ["a{99999999999}"]\n'}, "groups = 'a{99999999999}': is no regular expression"),
        ({"more": '"replication.policy.separator" = "/"\n'}, "separator = '/': topics have letters, digits, '.', '_'"),
        ({"more": '"replication.factor" = 0\n'}, "replication.factor = 0: must be at least 1, or -1"),
        ({"more": '"offset.lag.max" = -1\n'}, "offset.lag.max = -1: must be"),
        ({"more": '[clusters."a.b"]\n'}, "[clusters.a.b]: an alias consists of letters, digits, - and _"),
        ({"more": f"[clusters.{'x' * 101}]\n"}, "an alias consists of letters, digits, - and _, 100 at most"),
        ({"more": '[clusters.x]\n"bootstrap.server" = "h:1"\n'}, "did you mean bootstrap.servers?"),
        ({"more": "[clusters.x]\n"}, "[clusters.x] bootstrap.servers: missing"),
        ({"more": '[clusters.x]\n"consumer.linger.ms" = 1\n'}, "consumer.linger.ms: unknown client configuration key"),
        ({"more": '[clusters.x]\n"group.id" = "g"\n'}, "group.id: the mirror sets it; leave it out"),
        ({"more": '[clusters.x]\n"producer.acks" = "1"\n'}, "producer.acks: the mirror sets it; leave it out"),
        (
            {"text": '"metrics.listener" = "x"\n' + FILE},
            "metrics.listener",
        ),
        (
            {"more": '"sync.group.offsets.enabled" = true\n"emit.checkpoints.enabled" = false\n'},
            "sync.group.offsets.enabled: needs emit.checkpoints.enabled = true",
        ),
        (
            {"more": '"emit.offset-syncs.enabled" = false\n"emit.checkpoints.enabled" = true\n'},
            "emit.checkpoints.enabled: needs emit.offset-syncs.enabled = true",
        ),
    ],
)
def test_mistakes_are_named(change, expected):
    assert expected in problems(**change)


@pytest.mark.parametrize(("boundary", "timeout"), [(60_000, 60_000), (5_000, 4_000)])
def test_a_transaction_ends_before_its_time_is_over(boundary, timeout):
    """The target aborted each transaction, and nothing was copied."""
    keys = f'"transaction.boundary.interval.ms" = {boundary}\n'
    text = FILE.replace("[clusters.hub]\n", f'[clusters.hub]\n"producer.transaction.timeout.ms" = {timeout}\n')
    found = problems(text=keys + text)
    assert f"[sources.east] transaction.boundary.interval.ms = {boundary}: must be below {timeout}, " in found
    assert parsed(keys + text, without='"exactly.once.source.support" = "enabled"\n').sources


@pytest.mark.parametrize("syncs", [None, True, False])
@pytest.mark.parametrize("checkpoints", [None, True, False])
@pytest.mark.parametrize("groups", [None, True, False])
def test_each_step_needs_the_one_before(syncs, checkpoints, groups):
    """Offsets of groups come from checkpoints, and checkpoints from syncs; None leaves a key at its default.

    Checkpoints are on by default, and then go with the syncs.
    """
    keys = ("emit.offset-syncs.enabled", "emit.checkpoints.enabled", "sync.group.offsets.enabled")
    given = {key: value for key, value in zip(keys, (syncs, checkpoints, groups), strict=True) if value is not None}
    wrong = []
    if groups and checkpoints is False:
        wrong.append("sync.group.offsets.enabled: needs emit.checkpoints.enabled = true")
    if checkpoints and syncs is False:
        wrong.append("emit.checkpoints.enabled: needs emit.offset-syncs.enabled = true")
    try:
        MIRROR_SOURCE_CONFIG.parse(given)
    except ConfigError as error:
        found = list(error.problems)
    else:
        found = []
    assert found == wrong


MAKER_KEYS = [
    ("east->hub.enabled", 'a table [sources.east] mirrors east; set target = "hub"'),
    ("east->hub.topics", 'set "topics" in the table [sources.east], and target = "hub"'),
    ("east->hub.topics.blacklist", 'in the table [sources.east]: set "topics.exclude"'),
    ("east.bootstrap.servers", 'set "bootstrap.servers" in the table [clusters.east]'),
    ("east.sasl.mechanism", 'set "sasl.mechanism" in the table [clusters.east]'),
    ("source.cluster.security.protocol", 'set "security.protocol" in the table [clusters.ALIAS] of the source'),
    ("source.cluster.alias", "name the source in a table [sources.ALIAS]"),
    ("tasks.max", "one process copies all partitions"),
    ("topics.blacklist", 'set "topics.exclude"'),
    ("checkpoints.topic.replication.factor", 'set "replication.factor"'),
    ("refresh.groups.interval.seconds", '"emit.checkpoints.interval.seconds"'),
    ("key.converter", "it belongs to Connect's workers"),
]


@pytest.mark.parametrize(("key", "expected"), MAKER_KEYS)
def test_keys_of_mirrormaker_lead_to_the_own_ones(key, expected):
    """The nearest known name was the advice: ``emit.checkpoints.enabled`` for ``refresh.groups.enabled``."""
    found = problems(text=f'"{key}" = "1"\n{FILE}')
    assert f"{key}: a key of MirrorMaker; " in found
    assert expected in found
    assert "did you mean" not in found


def test_keys_that_are_advised_exist():
    named = {each for text in maker_keys._ADVICE.values() for each in re.findall(r'"([a-z.-]+)"', text)}
    assert named == {each for each in named if each in MIRROR_SOURCE_CONFIG.keys or each in MIRROR_CONFIG.keys}
    assert not [key for key in maker_keys._ADVICE if key in MIRROR_SOURCE_CONFIG.keys]


def test_all_mistakes_are_named_at_once():
    found = problems(more='[clusters.x]\n"bootstrap.server" = "h:1"\n[sources.y]\ntopcs = []\n')
    assert "bootstrap.server" in found
    assert "topcs: unknown mirror source configuration key; did you mean topics?" in found
    assert "sources.y" in found


def test_a_missing_target_is_named_once():
    with pytest.raises(ConfigError) as caught:
        parsed(without='target = "hub"\n')
    (problem,) = caught.value.problems
    assert "target: missing mirror configuration key" in problem


def test_a_mistake_for_all_sources_is_not_blamed_on_each():
    """The table of each source was named as well, in which the key does not stand."""
    with pytest.raises(ConfigError) as raised:
        parse_settings('"offset.lag.max" = -5\n' + FILE, "mirror.toml")
    assert raised.value.problems == ("offset.lag.max = -5: must be an integer from 0 to 2147483647",)
    with pytest.raises(ConfigError) as raised:
        parse_settings(FILE + '"offset.lag.max" = -5\n', "mirror.toml")
    assert raised.value.problems == ("[sources.west] offset.lag.max = -5: must be an integer from 0 to 2147483647",)


@pytest.mark.parametrize(
    ("keys", "expected_ms"),
    [
        ({}, 30_020),
        ({"request.timeout.ms": 5_000}, 30_000),
        ({"request.timeout.ms": 5_000, "transaction.timeout.ms": 20_000}, 10_000),
        ({"transaction.timeout.ms": 900_000}, 30_020),
        ({"request.timeout.ms": 5_000, "delivery.timeout.ms": 8_000}, 8_000),
        ({"request.timeout.ms": 80_000}, 80_020),
    ],
)
def test_a_delivery_fails_before_its_transaction_does(keys, expected_ms):
    """Else one partition without a leader made each transaction fail as a whole: nothing of its source was copied."""
    hub = "".join(f'"{key}" = {value}\n' for key, value in keys.items())
    source = parsed(FILE.replace('"producer.linger.ms"', f'{hub}"producer.linger.ms"')).sources[0]
    assert source.delivery_timeout_ms(60_000) == expected_ms
