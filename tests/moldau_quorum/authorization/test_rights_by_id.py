"""Goal: a right to a topic that is named by its id is the right to the topic that has this id now.

Method: every history of five steps, on one connection: the topic becomes known to the node or is deleted, the peer's
ACL comes or goes, the peer asks. Each answer must be the one that a connection without a memory gives.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.errors import ErrorCode
from moldau.runtime.sasl.core.identity import Identity
from moldau_quorum.authorization.authorizer import Authorizer
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.metadata.records import AccessControlEntryRecord

TOPIC_ID = UUID(int=7)
ALICE = Identity(principal="User:alice", host="10.0.0.1", listener_name="L", security_protocol="SASL_PLAINTEXT")
STEPS = ("appears", "is deleted", "permit", "forbid", "ask")


class World:
    """A node's image, and one connection of alice."""

    def __init__(self, operation: AclOperation) -> None:
        self.operation = operation
        editor = PersistentMap().edit()
        acl = AccessControlEntryRecord(
            acl_id=UUID(int=1),
            resource_type=int(AclResource.TOPIC),
            resource_name="secret",
            pattern_type=3,
            principal="User:alice",
            host="*",
            operation=int(operation),
            permission_type=3,
        )
        editor.set(acl.acl_id, acl)
        self.with_acl, self.without = editor.finish(), PersistentMap()
        self.image = SimpleNamespace(acls=self.without, topics_by_id={})
        self.authorizer = Authorizer(lambda: self.image)
        self.connection = self.authorizer.permissions(ALICE)

    def step(self, step: str) -> None:
        acls, topics = self.image.acls, self.image.topics_by_id
        if step == "ask":
            self.ask()
        elif step in ("permit", "forbid"):
            acls = self.with_acl if step == "permit" else self.without
        else:
            topics = {TOPIC_ID: SimpleNamespace(name="secret")} if step == "appears" else {}
        self.image = SimpleNamespace(acls=acls, topics_by_id=topics)

    def ask(self) -> None:
        self.connection.refresh()
        given = self.connection.topic_error(self.operation, TOPIC_ID.bytes, by_id=True)
        if TOPIC_ID not in self.image.topics_by_id:
            # One that has asked before the deletion may learn of it from the answer.
            assert given is ErrorCode.UNKNOWN_TOPIC_ID or self.image.acls is self.with_acl
        else:
            permitted = self.image.acls is self.with_acl
            assert given is (ErrorCode.NONE if permitted else ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE])
def test_a_right_by_id_is_that_to_the_present_topic(operation: AclOperation) -> None:
    for history in product(STEPS, repeat=5):
        world = World(operation)
        for step in (*history, "ask"):
            try:
                world.step(step)
            except AssertionError as error:
                raise AssertionError(history) from error
