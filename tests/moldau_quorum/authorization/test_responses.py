"""Goal: answers show what a client may see and nothing else; principals survive forwarding; audits are bounded.

Method: the functions on answers by hand, with rights to the names that a test lists.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.identity import Identity
from moldau.values import ZERO_UUID
from moldau_quorum.authorization import responses
from moldau_quorum.authorization.audit import LINES_PER_SECOND, AuditLog
from moldau_quorum.authorization.authorizer import Attempt, Decision
from moldau_quorum.authorization.principals import address_bytes, forwarded_identity, principal_bytes

HIDDEN = ErrorCode.TOPIC_AUTHORIZATION_FAILED
KNOWN_ID, UNKNOWN_ID = UUID(int=1), UUID(int=2)


class Rights:
    """Rights to some names; ``asked`` holds what was asked."""

    def __init__(self, *names):
        self.names = names
        self.asked = []

    def may(self, operation, resource, name, *, quiet=False):
        self.asked.append((operation.name, resource.name, name))
        return name in self.names

    def may_cluster(self, operation, *, quiet=False):
        return self.may(operation, AclResource.CLUSTER, "kafka-cluster", quiet=quiet)

    def operations(self, resource, name):
        return 7

    def topic_name(self, topic_id):
        return "known" if topic_id == KNOWN_ID else None


def entry(**fields):
    return SimpleNamespace(**fields)


def names(entries):
    return [each.name for each in entries]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"name": "a", "topic_id": UNKNOWN_ID}, "a"),
        ({"topic": "b"}, "b"),
        ({"topic_name": "c"}, "c"),
        ({"name": None, "topic_id": KNOWN_ID}, "known"),
        ({"name": "", "topic_id": KNOWN_ID}, "known"),
        ({"name": None, "topic_id": UNKNOWN_ID}, None),
        ({"name": "", "topic_id": ZERO_UUID}, ""),
    ],
)
def test_topics_are_found_by_name_or_by_id(fields, name):
    assert responses.topic_of(entry(**fields), Rights()) == name


@pytest.mark.parametrize(
    ("asked", "rights", "expected"), [(True, ["kafka-cluster"], 7), (True, [], 0), (False, ["kafka-cluster"], -1)]
)
def test_operations_on_the_cluster_are_reported_on_request(asked, rights, expected):
    request = entry(include_cluster_authorized_operations=asked)
    response = responses.cluster_operations(request, entry(cluster_authorized_operations=-1), Rights(*rights))
    assert response.cluster_authorized_operations == expected


def test_configurations_of_new_topics_are_hidden():
    def topic(name, error_code=0):
        return entry(
            name=name,
            error_code=error_code,
            topic_config_error_code=0,
            num_partitions=3,
            replication_factor=2,
            configs=["c"],
        )

    rights = Rights("seen")
    answer = responses.created_topics(entry(topics=[topic("seen"), topic("hidden"), topic("failed", 36)]), rights)
    assert [each.topic_config_error_code for each in answer.topics] == [0, HIDDEN, 0]
    assert [each.configs for each in answer.topics] == [["c"], None, ["c"]]
    assert [(each.num_partitions, each.replication_factor) for each in answer.topics] == [(3, 2), (-1, -1), (3, 2)]
    assert rights.asked == [("DESCRIBE_CONFIGS", "TOPIC", "seen"), ("DESCRIBE_CONFIGS", "TOPIC", "hidden")]


def fetched(group_id, *topics, error_code=0):
    return entry(group_id=group_id, error_code=error_code, topics=[entry(name=n, topic_id=ZERO_UUID) for n in topics])


def test_offsets_of_hidden_topics_are_left_out():
    """Of a group that asks for all topics; those that are named are refused one by one."""
    request = entry(
        groups=[
            entry(group_id="all", topics=None),
            entry(
                group_id="named",
                topics=[entry(name=n, topic_id=ZERO_UUID, partition_indexes=[4]) for n in ("seen", "hidden")],
            ),
        ]
    )
    narrowed, amend = responses.narrowed_offset_fetch(request, Rights("seen"))
    assert names(narrowed.groups[1].topics) == ["seen"]
    groups = [fetched("all", "seen", "hidden"), fetched("named", "seen"), fetched("other", "hidden")]
    answer = amend(entry(groups=[*groups, fetched("all", error_code=16)]))
    assert [names(group.topics) for group in answer.groups] == [["seen"], ["seen", "hidden"], ["hidden"], []]
    assert answer.groups[1].topics[1].partitions[0].error_code == HIDDEN


def test_offsets_of_share_groups_are_narrowed_likewise():
    def shared(*topics):
        return [entry(topic_name=name, partitions=[4]) for name in topics]

    request = entry(
        groups=[entry(group_id="all", topics=None), entry(group_id="named", topics=shared("seen", "hidden"))]
    )
    narrowed, amend = responses.narrowed_share_offsets(request, Rights("seen"))
    assert [each.topic_name for each in narrowed.groups[1].topics] == ["seen"]
    groups = [
        entry(group_id="all", error_code=0, topics=shared("seen", "hidden")),
        entry(group_id="named", error_code=0, topics=shared("seen")),
        entry(group_id="other", error_code=0, topics=shared("hidden")),
        entry(group_id="named", error_code=16, topics=[]),
    ]
    answer = amend(entry(groups=groups))
    found = [[each.topic_name for each in group.topics] for group in answer.groups]
    assert found == [["seen"], ["seen", "hidden"], ["hidden"], []]
    assert answer.groups[1].topics[1].partitions[0].error_code == HIDDEN


def described(*topics, error_code=0):
    assigned = entry(topic_partitions=[entry(topic_name=name) for name in topics[:1]])
    target = entry(topic_partitions=[entry(topic_name=name) for name in topics[1:]])
    member = entry(assignment=assigned, target_assignment=target)
    return entry(group_id="g", error_code=error_code, error_message=None, members=[member], authorized_operations=-1)


def test_consumer_groups_of_hidden_topics_are_hidden():
    asked = entry(permissions=Rights("seen"), request=entry(include_authorized_operations=True))
    groups = [described("seen"), described("seen", "hidden"), described("hidden", error_code=69)]
    answer = responses.consumer_groups(asked, entry(groups=groups))
    assert [group.error_code for group in answer.groups] == [0, HIDDEN, 69]
    assert [len(group.members) for group in answer.groups] == [1, 0, 1]
    assert [group.authorized_operations for group in answer.groups] == [7, 7, -1]


def test_share_groups_of_hidden_topics_are_hidden():
    asked = entry(permissions=Rights("seen"), request=entry(include_authorized_operations=True))
    groups = [described("seen"), described("hidden"), described("hidden", error_code=69)]
    answer = responses.share_groups(asked, entry(groups=groups))
    assert [group.error_code for group in answer.groups] == [0, HIDDEN, 69]
    assert [len(group.members) for group in answer.groups] == [1, 0, 1]
    assert [group.authorized_operations for group in answer.groups] == [7, 7, -1]


def token(token_id, owner="o", requester="r", renewers=()):
    """A token as DescribeDelegationToken answers it; all principals are users."""
    return entry(
        token_id=token_id,
        principal_type="User",
        principal_name=owner,
        token_requester_principal_type="User",
        token_requester_principal_name=requester,
        renewers=[entry(principal_type="User", principal_name=name) for name in renewers],
    )


@pytest.mark.parametrize(
    ("principal", "rights", "visible"),
    [
        ("User:owner", (), "owned"),
        ("User:requester", (), "created"),
        ("User:renewer", (), "renewable"),
        ("User:other", ("other's",), "other's"),
        ("User:other", ("User:x",), "of x"),
        ("User:other", (), ""),
        ("Group:owner", (), ""),
    ],
)
def test_tokens_are_seen_by_their_people_and_by_right(principal, rights, visible):
    tokens = [
        token("owned", owner="owner"),
        token("created", requester="requester"),
        token("renewable", renewers=["a", "renewer"]),
        token("other's"),
        token("of x", owner="x"),
    ]
    permissions = Rights(*rights)
    permissions.identity = entry(principal=principal)
    answer = responses.visible_tokens(entry(permissions=permissions), entry(tokens=tokens))
    assert [each.token_id for each in answer.tokens] == ([visible] if visible else [])


def test_all_topics_of_a_topology_are_named_once():
    def part(sources, sinks, internal, changelogs):
        return entry(
            source_topics=sources,
            repartition_sink_topics=sinks,
            repartition_source_topics=[entry(name=name) for name in internal],
            state_changelog_topics=[entry(name=name) for name in changelogs],
        )

    parts = [part(["a"], ["b"], ["c"], ["d"]), part(["b"], [], ["a"], ["e"])]
    assert list(responses.topics_of_subtopologies(parts)) == ["a", "b", "c", "d", "e"]


def test_lists_hold_what_may_be_described():
    rights = Rights("seen")
    listed = responses.listed_groups(entry(groups=[entry(group_id=n) for n in ("seen", "hidden")]), rights)
    assert [each.group_id for each in listed.groups] == ["seen"]
    states = [entry(transactional_id=n) for n in ("hidden", "seen")]
    found = responses.listed_transactions(entry(permissions=rights), entry(transaction_states=states))
    assert [each.transactional_id for each in found.transaction_states] == ["seen"]
    assert {resource for _, resource, _ in rights.asked} == {"GROUP", "TRANSACTIONAL_ID"}


def identity(host="10.0.0.7", *, by_token=False):
    return Identity(principal="User:al:ice", host=host, listener_name="L", security_protocol="SSL", by_token=by_token)


@pytest.mark.parametrize("by_token", [True, False])
@pytest.mark.parametrize("host", ["10.0.0.7", "fe80::1"])
def test_a_principal_survives_a_forwarded_request(host, by_token):
    given = identity(host, by_token=by_token)
    via = Identity(principal="User:broker", host="b1", listener_name="INNER", security_protocol="PLAINTEXT")
    read = forwarded_identity(principal_bytes(given), address_bytes(given), via)
    assert (read.principal, read.host, read.by_token, read.listener_name) == ("User:al:ice", host, by_token, "INNER")


def test_a_host_name_has_no_address():
    assert address_bytes(identity("client-7")) == b""


class Lines:
    """A logger that keeps what it is given."""

    def __init__(self, *, shows_details):
        self.shows_details = shows_details
        self.lines = []

    def info(self, event, **fields):
        self.lines.append(("info", event, fields))

    def debug(self, event, **fields):
        self.lines.append(("debug", event, fields))


def attempt(*, is_allowed):
    decision = Decision(is_allowed, "why")
    return Attempt(identity(), None, AclOperation.READ, AclResource.TOPIC, "t", decision)


@pytest.mark.parametrize("shows_details", [True, False])
def test_an_audit_names_who_did_what(shows_details):
    logger = Lines(shows_details=shows_details)
    audit = AuditLog(logger, lambda: 0.0)
    audit.note(attempt(is_allowed=True))
    audit.note(attempt(is_allowed=False))
    assert [line[:2] for line in logger.lines] == [("debug", "allowed")] * shows_details + [("info", "denied")]
    fields = logger.lines[-1][2]
    assert (fields["principal"], fields["operation"], fields["resource"]) == ("User:al:ice", "READ", "TOPIC:t")
    assert (fields["host"], fields["listener"], fields["api"], fields["reason"]) == ("10.0.0.7", "L", "", "why")


def test_an_audit_is_bounded_in_each_second():
    now = [0.0]
    logger = Lines(shows_details=False)
    audit = AuditLog(logger, lambda: now[0])
    for _ in range(LINES_PER_SECOND + 3):
        audit.note(attempt(is_allowed=False))
    assert len(logger.lines) == LINES_PER_SECOND
    now[0] = 1_000.0
    audit.note(attempt(is_allowed=False))
    assert [(event, fields.get("count")) for _, event, fields in logger.lines[LINES_PER_SECOND:]] == [
        ("audit-lines-left-out", 3),
        ("denied", None),
    ]


def test_permissions_leave_room_for_refusals_in_an_audit():
    """Clients that may do what they do ask hundreds of times a second, and the refusal is what is looked for."""
    logger = Lines(shows_details=True)
    audit = AuditLog(logger, lambda: 0.0)
    for _ in range(LINES_PER_SECOND):
        audit.note(attempt(is_allowed=True))
    audit.note(attempt(is_allowed=False))
    assert logger.lines[-1][1] == "denied"
    for _ in range(LINES_PER_SECOND):
        audit.note(attempt(is_allowed=False))
    assert len(logger.lines) == LINES_PER_SECOND
