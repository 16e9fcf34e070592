"""Names of topics, filters and ACLs of a mirror. The expected names are MirrorMaker 2's."""

import pytest

from moldau.admin.calls.acls import Acl
from moldau.mirror.core.filters import GROUPS_EXCLUDED, TOPICS_EXCLUDED, NameFilter, TopicRules, mirrored_acl
from moldau.mirror.core.formats import Heartbeat
from moldau.mirror.core.policy import ReplicationPolicy
from moldau.mirror.core.provenance import find_cycle, has_visited, with_visit
from moldau.runtime.config import MIRROR_CONFIG

DEFAULT = ReplicationPolicy()
IDENTITY = ReplicationPolicy(renames=False)
SLASHES = ReplicationPolicy(separator="__")


def rules(policy=DEFAULT, target="hub", topics=(".*",), excluded=TOPICS_EXCLUDED, **more):
    return TopicRules(policy=policy, target_alias=target, names=NameFilter(topics, excluded), **more)


def test_names_have_the_alias_in_front():
    assert DEFAULT.remote_topic("east", "orders") == "east.orders"
    assert SLASHES.remote_topic("east", "orders") == "east__orders"
    assert IDENTITY.remote_topic("east", "orders") == "orders"
    assert IDENTITY.remote_topic("east", "heartbeats") == "east.heartbeats"


@pytest.mark.parametrize(
    ("topic", "source", "upstream", "original"),
    [
        ("orders", None, None, "orders"),
        ("east.orders", "east", "orders", "orders"),
        ("hub.east.orders", "hub", "east.orders", "orders"),
        ("east.", None, None, "east."),
        ("east..", None, None, "east.."),
        ("my.topic.v1", "my", "topic.v1", "v1"),
    ],
)
def test_names_identify_the_source_of_a_topic(topic, source, upstream, original):
    found = (DEFAULT.topic_source(topic), DEFAULT.upstream_topic(topic), DEFAULT.original_topic(topic))
    assert found == (source, upstream, original)
    assert IDENTITY.topic_source(topic) is None


@pytest.mark.parametrize(
    ("topic", "accepted"),
    [
        ("orders", True),
        ("east.orders", True),
        ("hub.orders", False),
        ("east.hub.orders", False),
        ("hubs.orders", True),
        ("__consumer_offsets", False),
        ("mm2-offset-syncs.hub.internal", False),
        ("connect-configs-internal", False),
        ("west.checkpoints.internal", False),
        ("orders.replica", False),
        ("heartbeats", True),
        ("hub.heartbeats", False),
        (".hidden", False),
    ],
)
def test_loops_and_internal_topics_are_refused(topic, accepted):
    assert rules().accepts(topic) is accepted


def test_heartbeats_pass_the_filter_unless_switched_off():
    assert rules(topics=("orders",)).accepts("west.heartbeats")
    assert not rules(topics=("orders",), mirrors_heartbeats=False).accepts("heartbeats")
    assert not rules(topics=("orders",)).accepts("other")


def test_the_identity_policy_sees_no_loop_in_a_name():
    assert rules(IDENTITY).accepts("hub.orders")
    assert not rules(IDENTITY).accepts("hub.heartbeats")


def test_a_group_of_a_returned_topic_gets_its_first_name():
    assert DEFAULT.local_topic("orders", "east", "hub") == "east.orders"
    assert DEFAULT.local_topic("hub.orders", "east", "hub") == "orders"


def test_whole_names_match_and_bad_expressions_are_named():
    assert not NameFilter(["order"], []).accepts("orders")
    assert not NameFilter([], []).accepts("orders")
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        NameFilter(["("], [])


def test_defaults_are_declared_once_more_in_the_schema():
    """The lists of the configuration and those of the core must agree."""
    assert MIRROR_CONFIG.key("topics.exclude").default == TOPICS_EXCLUDED
    assert MIRROR_CONFIG.key("groups.exclude").default == GROUPS_EXCLUDED


def acl(**fields):
    given = {"resource": "topic", "name": "orders", "principal": "User:a", "operation": "read"}
    return Acl(**given | fields)


@pytest.mark.parametrize(
    ("given", "operation"),
    [
        ({}, "read"),
        ({"operation": "describe"}, "describe"),
        ({"operation": "all"}, "read"),
        ({"operation": "write"}, None),
        ({"operation": "write", "permission": "deny"}, "write"),
        ({"operation": "all", "permission": "deny"}, "all"),
        ({"pattern": "prefixed"}, None),
        ({"resource": "group"}, None),
        ({"name": "hub.orders"}, None),
        ({"name": "*"}, "read"),
    ],
)
def test_only_rights_to_read_are_copied(given, operation):
    found = mirrored_acl(acl(**given), rules(), "east")
    if operation is None:
        assert found is None
        return
    expected = acl(**given | {"operation": operation, "name": "east." + given.get("name", "orders")})
    assert found == expected


def test_headers_list_the_clusters_of_a_record():
    headers = with_visit(with_visit((("a", b"1"),), "id-east"), "id-west")
    assert headers[0] == ("a", b"1")
    assert has_visited(headers, "id-east")
    assert has_visited(headers, "id-west")
    assert not has_visited(headers, "id-hub")


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([], []),
        ([("b", "a")], ["a", "b", "a"]),
        ([("b", "c"), ("c", "a")], ["a", "b", "c", "a"]),
        ([("c", "a"), ("c", "d")], []),
        ([("a", "b")], []),
        ([("b", "c"), ("c", "b")], []),
    ],
)
def test_cycles_are_found_in_heartbeats(edges, expected):
    heartbeats = [Heartbeat(source, target, 1_000) for source, target in edges]
    assert find_cycle(heartbeats, "a", "b", alive_since_ms=1_000) == expected
    assert find_cycle(heartbeats, "a", "b", alive_since_ms=1_001) == []
