"""Goal: answers about rights are judged by what the answering broker knew. Method: hand-written ACLs and histories."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from moldau_jepsen.checkers.rights import (
    ALL,
    ALLOW,
    DENIED,
    DENY,
    DESCRIBE,
    LITERAL,
    PERMITTED,
    PREFIXED,
    READ,
    WRITE,
    Outcome,
    Right,
    RightsVerdict,
    Watched,
    permits,
)
from moldau_jepsen.workloads.access.rights import GROUP, TOPICS, drawn_entry
from moldau_quorum.authorization.authorizer import Authorizer
from moldau_quorum.metadata.persistent_map import PersistentMap

TOPIC = 2
WRITES = Right("User:alice", WRITE, TOPIC, "guarded")


def entry(name="guarded", pattern=LITERAL, principal="User:alice", operation=WRITE, permission=ALLOW):
    return SimpleNamespace(
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host="*",
        operation=operation,
        permission_type=permission,
    )


@pytest.mark.parametrize(
    ("entries", "permitted"),
    [
        ([], False),
        ([entry()], True),
        ([entry(name="*")], True),
        ([entry(principal="User:*", operation=ALL)], True),
        ([entry(name="guard", pattern=PREFIXED)], True),
        ([entry(name="guarded-2")], False),
        ([entry(name="guard")], False),
        ([entry(name="guardex", pattern=PREFIXED)], False),
        ([entry(operation=READ)], False),
        ([entry(principal="User:bob")], False),
        ([entry(), entry(name="g", pattern=PREFIXED, permission=DENY)], False),
        ([entry(permission=DENY, operation=ALL), entry()], False),
        ([entry(permission=DENY, operation=READ), entry()], True),
    ],
)
def test_the_meaning_of_entries(entries, permitted):
    assert permits(entries, WRITES) is permitted


def test_a_right_to_write_implies_one_to_describe():
    describes = WRITES._replace(operation=DESCRIBE)
    assert permits([entry()], describes)
    assert not permits([entry(), entry(operation=DESCRIBE, permission=DENY)], describes)
    assert permits([entry(), entry(permission=DENY, operation=READ)], describes)


def test_the_authorizer_agrees_with_the_plain_search():
    """2,000 drawn lists of ACLs; both give the same verdict about every right of the workload."""
    draw = random.Random(1)
    numbers = {"topic": 2, "group": 3, "literal": 3, "prefixed": 4, "deny": 2, "allow": 3}
    operations = {"all": 2, "read": 3, "write": 4, "delete": 6, "alter": 7, "describe": 8}
    rights = [
        Right(f"User:{user}", operation, kind, name)
        for user in ("alice", "bob")
        for kind, name in [(2, TOPICS[0]), (2, TOPICS[1]), (3, GROUP)]
        for operation in (READ, WRITE, DESCRIBE)
    ]
    seen = set()
    for _ in range(2_000):
        editor = PersistentMap().edit()
        for number in range(draw.randint(0, 6)):
            acl = drawn_entry(draw)
            values = entry(
                acl.name, numbers[acl.pattern], acl.principal, operations[acl.operation], numbers[acl.permission]
            )
            values.resource_type = numbers[acl.resource]
            values.acl_id = SimpleNamespace(int=number)
            editor.set(number, values)
        image = SimpleNamespace(acls=editor.finish())
        authorizer = Authorizer(lambda image=image: image)
        for right in rights:
            identity = SimpleNamespace(principal=right.principal, host="h")
            decided = authorizer.decide(identity, right.operation, right.resource_type, right.name).is_allowed
            assert decided is permits(image.acls.values(), right), (right, list(image.acls.values()))
            seen.add(decided)
    assert seen == {True, False}


def judged(knowledge, outcome):
    """Returns the rule that an answer breaks when the broker's knowledge takes these values meanwhile."""
    values = iter(knowledge)
    watched = Watched(lambda: next(values))
    for _ in knowledge:
        watched.sample()
    verdict = RightsVerdict()
    verdict.take(watched, outcome, "text")
    return verdict.wrong


def test_answers_must_fit_what_the_broker_knew():
    assert judged([False, False], Outcome.PERMITTED) == [(PERMITTED, "text")]
    assert judged([True], Outcome.DENIED) == [(DENIED, "text")]
    for changing in ([True, False], [False, None, True]):
        assert judged(changing, Outcome.PERMITTED) == judged(changing, Outcome.DENIED) == []
    assert judged([True, True], Outcome.PERMITTED) == judged([False], Outcome.DENIED) == []
    assert judged([None], Outcome.PERMITTED) == judged([False], Outcome.UNKNOWN) == []
