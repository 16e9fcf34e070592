"""Goal: decisions are those of Kafka's StandardAuthorizer, for any ACLs, however they came about.

Method: a reference that looks at every entry, written from Kafka's rules, decides the same questions; ACLs are added
and removed in random order through images. Planted bugs must be noticed by the same comparison.
"""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.identity import Identity
from moldau_broker.server.handlers.apis import BROKER_CHECKS
from moldau_quorum.authorization import authorizer as authorizer_module
from moldau_quorum.authorization import rules as rules_module
from moldau_quorum.authorization.authorizer import DECISIONS_MAX, Authorizer, Permissions
from moldau_quorum.authorization.checks import check
from moldau_quorum.authorization.configured import super_users
from moldau_quorum.authorization.rules import AclIndex, host_fits
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.metadata.records import AccessControlEntryRecord
from support.proof import examples

TOPIC, GROUP = AclResource.TOPIC, AclResource.GROUP
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DENY, ALLOW, LITERAL, PREFIXED, ALL = 2, 3, 3, 4, 2
IMPLIED = {8: {8, 3, 4, 6, 7}, 10: {10, 11}}
NAMES = ["a", "ab", "abc", "b", "*"]


def entry(number, name="t", operation=READ, permission=ALLOW, principal="User:alice", **more):
    values = {"resource_type": TOPIC, "pattern_type": LITERAL, "host": "*", **more}
    return AccessControlEntryRecord(
        acl_id=UUID(int=number),
        resource_name=name,
        operation=int(operation),
        permission_type=permission,
        principal=principal,
        **{key: value if isinstance(value, str) else int(value) for key, value in values.items()},
    )


class World:
    """An image whose ACLs change."""

    def __init__(self, *entries, **more):
        self.acls = PersistentMap()
        self.change(entries)
        self.authorizer = Authorizer(lambda: SimpleNamespace(acls=self.acls), **more)

    def change(self, added=(), removed=()):
        editor = self.acls.edit()
        for each in added:
            editor.set(each.acl_id, each)
        for acl_id in removed:
            editor.remove(acl_id)
        self.acls = editor.finish()

    def may(self, operation=READ, name="t", resource=TOPIC, who="User:alice", host="10.0.0.1"):
        return self.authorizer.decide(identity(who, host), operation, resource, name).is_allowed


def test_everything_includes_names_that_begin_with_a_star():
    """Kafka applies no entry of ``*`` to such groups and transactional ids, and so no DENY either."""
    allowed, denied = entry(1, "*", resource_type=GROUP), entry(2, "*", permission=DENY, resource_type=GROUP)
    for name in ("*", "*a", "a*"):
        assert World(allowed).may(READ, name, GROUP)
        assert not World(allowed, denied).may(READ, name, GROUP)
    assert not World(entry(1, "*a", resource_type=GROUP)).may(READ, "*ab", GROUP)


def identity(principal="User:alice", host="10.0.0.1"):
    return Identity(principal=principal, host=host, listener_name="L", security_protocol="SASL_PLAINTEXT")


def reference(entries, principal, host, operation, resource, name, default):
    """Kafka's rules, one entry after the other."""
    at = [
        each
        for each in entries
        if each.resource_type == resource
        and (
            name.startswith(each.resource_name) if each.pattern_type == PREFIXED else each.resource_name in (name, "*")
        )
    ]
    mine = [each for each in at if each.principal in (principal, "User:*") and (each.host == "*" or each.host == host)]
    if any(each.permission_type == DENY and each.operation in (ALL, operation) for each in mine):
        return False
    wanted = IMPLIED.get(operation, {operation}) | {ALL}
    if any(each.permission_type == ALLOW and each.operation in wanted for each in mine):
        return True
    return default and not at


entries_strategy = st.lists(
    st.builds(
        entry,
        st.integers(0, 40),
        name=st.sampled_from(NAMES),
        operation=st.sampled_from([2, 3, 4, 8, 10, 11]),
        permission=st.sampled_from([DENY, ALLOW]),
        principal=st.sampled_from(["User:alice", "User:al", "User:*"]),
        resource_type=st.sampled_from([TOPIC, GROUP]),
        pattern_type=st.sampled_from([LITERAL, PREFIXED]),
        host=st.sampled_from(["*", "10.0.0.1"]),
    ),
    max_size=8,
)


def compare(first, second, default):
    world = World(*first, allows_without_acl=default)
    world.authorizer.follow()
    held = {each.acl_id: each for each in first}
    world.change(added=second, removed=[each for each in list(held)[::2] if each not in {s.acl_id for s in second}])
    entries = list(world.acls.values())
    for principal in ("User:alice", "User:al", "User:alice2"):
        for host in ("10.0.0.1", "10.0.0.2"):
            for operation in (3, 4, 8, 10):
                for resource in (TOPIC, GROUP):
                    for name in ("a", "ab", "abd", "c"):
                        expected = reference(entries, principal, host, operation, resource, name, default)
                        assert world.may(operation, name, resource, principal, host) is expected


@settings(max_examples=examples(60), deadline=None)
@given(entries_strategy, entries_strategy, st.booleans())
def test_decisions_are_those_of_the_reference(first, second, default):
    compare(first, second, default)


PLANTED = {
    "deny ignored": (authorizer_module, "DENY", 99),
    "prefixes are literal": (rules_module, "PREFIXED", 99),
    "hosts ignored": (authorizer_module, "host_fits", lambda pattern, host: True),
    "everyone matches no principal": (rules_module, "EVERYONE", "User:none"),
    "wildcard is a name": (rules_module, "WILDCARD", "?"),
    "nothing is implied": (authorizer_module, "_IMPLIES", {}),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_noticed(bug, monkeypatch):
    module, name, value = PLANTED[bug]
    monkeypatch.setattr(module, name, value)
    full = [
        entry(1, "a", operation=ALL, permission=ALLOW, principal="User:*", pattern_type=PREFIXED),
        entry(2, "ab", permission=DENY),
        entry(3, "*", operation=WRITE, host="10.0.0.1"),
        entry(4, "c", operation=READ, principal="User:al", host="10.0.0.2"),
    ]
    with pytest.raises(AssertionError):
        compare([entry(9, "zz")], full, False)


def test_deltas_that_are_not_followed_are_noticed(monkeypatch):
    monkeypatch.setattr(AclIndex, "_remove", lambda self, rule: None)
    with pytest.raises(AssertionError):
        compare([entry(1, "a"), entry(2, "b")], [], False)


def test_super_users_are_compared_as_a_whole():
    world = World(entry(1, permission=DENY, principal="User:*"), super_users=super_users("User:root; User:a b"))
    assert [world.may(who=who) for who in ("User:root", "User:a b", "User:roo", "User:root2", "Group:root")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("pattern", "host", "fits"),
    [
        ("*", "anything", True),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1", "10.0.0.10", False),
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "name", False),
        ("10.0.0.1/8", "10.0.0.1", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("fe80::/10", "fe80::1", True),
        ("fe80::/10", "10.0.0.1", False),
        ("b1", "b1", True),
    ],
)
def test_hosts(pattern, host, fits):
    assert host_fits(pattern, host) is fits


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([entry(1, "x", WRITE)], True),
        ([entry(1, "x", READ)], False),
        ([entry(1, "x", WRITE), entry(2, "x", WRITE, DENY)], False),
        ([entry(1, "xy", WRITE), entry(2, "x", WRITE, DENY, pattern_type=PREFIXED)], False),
        ([entry(1, "x", WRITE), entry(2, "x", WRITE, DENY, pattern_type=PREFIXED)], False),
        ([entry(1, "x", WRITE, pattern_type=PREFIXED), entry(2, "x", WRITE, DENY, pattern_type=PREFIXED)], False),
        ([entry(1, "x", WRITE), entry(2, "xy", WRITE, DENY, pattern_type=PREFIXED)], True),
        ([entry(1, "x", WRITE, pattern_type=PREFIXED), entry(2, "x", WRITE, DENY)], True),
        ([entry(1, "*", WRITE), entry(2, "x", WRITE, DENY, pattern_type=PREFIXED)], True),
        ([entry(1, "x", WRITE), entry(2, "*", WRITE, DENY)], False),
        ([entry(1, "x", WRITE, principal="User:bob")], False),
        ([entry(1, "x", WRITE, host="10.0.0.2")], False),
    ],
)
def test_a_right_to_some_topic(entries, allowed):
    assert World(*entries).authorizer.allows_some(identity(), WRITE, TOPIC) is allowed


def test_decisions_are_remembered_until_acls_change(monkeypatch):
    world = World(entry(1))
    permissions = world.authorizer.permissions(identity())
    asked = []
    decide = Authorizer.decide
    monkeypatch.setattr(Authorizer, "decide", lambda *q: (asked.append(q), decide(*q))[1])
    for _ in range(3):
        permissions.refresh()
        assert permissions.may(READ, TOPIC, "t")
        assert permissions.topic_error(READ, b"t", by_id=False) is ErrorCode.NONE
    assert len(asked) == 1
    world.change([entry(2, permission=DENY)])
    permissions.refresh()
    assert not permissions.may(READ, TOPIC, "t")
    assert permissions.topic_error(READ, b"t", by_id=False) is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_cache_that_is_not_dropped_is_noticed(monkeypatch):
    monkeypatch.setattr(Permissions, "refresh", lambda self: None)
    with pytest.raises(AssertionError):
        test_decisions_are_remembered_until_acls_change(monkeypatch)


def test_remembered_decisions_are_bounded():
    permissions = World().authorizer.permissions(identity())
    for number in range(DECISIONS_MAX + 10):
        permissions.topic_error(READ, b"%d" % number, by_id=False)
    assert len(permissions._decisions) <= DECISIONS_MAX
    assert all(len(table) <= DECISIONS_MAX for table in (*permissions.readable, *permissions.writable))


def test_remembered_rights_to_some_resource_are_bounded(monkeypatch):
    monkeypatch.setattr(authorizer_module, "DECISIONS_MAX", 5)
    world = World(entry(1, "x", WRITE))
    sizes = []
    for number in range(12):
        assert world.authorizer.allows_some(identity(host=f"10.0.0.{number}"), WRITE, TOPIC)
        sizes.append(len(world.authorizer._some))
    assert sizes == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def test_a_right_to_some_topic_is_remembered_for_one_host():
    """The same user has no right from elsewhere, whichever host asks first."""
    hosts = ("10.0.0.2", "10.0.0.1", "10.0.0.2")
    world = World(entry(1, "x", WRITE, host="10.0.0.2"))
    found = [world.authorizer.allows_some(identity(host=host), WRITE, TOPIC) for host in hosts]
    assert found == [True, False, True]


def test_many_acls_of_others_cost_nothing():
    """Every principal may have a rule of the same resource: a decision looks at those of its principal."""
    others = [entry(n, "*", principal=f"User:u{n}") for n in range(2_000)]
    world = World(*others, entry(9_999, "t"))
    world.authorizer.follow()
    rules = world.authorizer._index.resources(TOPIC, "t")
    looked_at = [rule for found in rules for rule in rules_module.speaking_of("User:alice", found)]
    assert len(looked_at) == 1
    assert world.may()


def test_the_right_to_some_topic_follows_changes():
    world = World(entry(1, "x", WRITE))
    assert world.authorizer.allows_some(identity(), WRITE, TOPIC)
    world.change(removed=[UUID(int=1)])
    assert not world.authorizer.allows_some(identity(), WRITE, TOPIC)


def test_networks_are_valid():
    assert ipaddress.ip_address("10.1.2.3") in rules_module.parse_network("10.0.0.0/8")
    assert rules_module.parse_network("10.0.0.1/8") is None


@pytest.mark.parametrize("key", [ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE])
def test_a_group_without_a_name_is_refused(key):
    """The name may be null on the wire, and then no prefix can be compared with it."""
    permissions = World(entry(1, "g", resource_type=GROUP, pattern_type=PREFIXED)).authorizer.permissions(identity())
    request = APIS[key].request(group_id=None, member_id="m")
    verdict = check(request, APIS[key].versions.last, permissions, BROKER_CHECKS)
    assert verdict.remainder is None
    assert verdict.refused.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_question_is_not_audited(quiet):
    attempts = []
    world = World(entry(1, "seen"), audit=attempts.append)
    permissions = Permissions(world.authorizer, identity())
    for name in ("seen", "hidden", "hidden"):
        permissions.may(READ, TOPIC, name, quiet=quiet)
    noted = [] if quiet else [("seen", True), ("hidden", False), ("hidden", False)]
    assert [(each.name, each.decision.is_allowed) for each in attempts] == noted
