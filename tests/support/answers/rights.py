"""Access control entries, credentials of SCRAM, and delegation tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from moldau.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from moldau.protocol.messages.describe_acls import DescribeAclsRequest
from moldau.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from moldau.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from moldau.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

if TYPE_CHECKING:
    from support.answers.session import AnswerSession

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
CLUSTER = {"resource_type": 4, "resource_name": "kafka-cluster"}


def creation_of(**fields: Any) -> CreateAclsRequest:
    """Returns a request for one entry, which needs a name and a principal."""
    usual: dict[str, Any] = {
        "resource_type": 2,
        "resource_pattern_type": LITERAL,
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return CreateAclsRequest(creations=[AclCreation(**(usual | fields))])


def credential(**fields: Any) -> ScramCredentialUpsertion:
    """Returns what SCRAM-SHA-256 keeps of a password, which needs the user's name."""
    usual: dict[str, Any] = {"mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    return ScramCredentialUpsertion(**(usual | fields))


async def rights(session: AnswerSession) -> None:
    """Creates, describes and deletes entries; changes credentials; asks for tokens over a connection without login."""
    await _entries(session)
    await _credentials(session)
    tokens = {
        "create": CreateDelegationTokenRequest(
            owner_principal_type=None, owner_principal_name=None, max_lifetime_ms=-1
        ),
        "renew": RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1),
        "expire": ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1),
        "describe": DescribeDelegationTokenRequest(owners=None),
    }
    await session.ask_all("token", tokens)


async def _entries(session: AnswerSession) -> None:
    name, principal = session.name("named"), f"User:{session.name('user')}"

    def entry(**fields: Any) -> CreateAclsRequest:
        return creation_of(**{"resource_name": name, "principal": principal, **fields})

    created = {
        "literal": entry(),
        "again": entry(),
        "prefixed": entry(resource_pattern_type=PREFIXED),
        "of a pattern of kind 9": entry(resource_pattern_type=9),
        "of a resource of kind 99": entry(resource_type=99),
        "of operation 99": entry(operation=99),
        "of permission 9": entry(permission_type=9),
        "to the cluster's operation on a topic": entry(operation=9),
        "without a name": entry(resource_name=""),
        "for all": entry(resource_name="*"),
        "for names that begin with *": entry(resource_name="*", resource_pattern_type=PREFIXED),
        "of the cluster": entry(**CLUSTER, operation=9),
        "of another cluster": entry(resource_type=4, resource_name="x", operation=9),
        "to read the cluster": entry(**CLUSTER),
        "of a group": entry(resource_type=3),
        "of a transaction": entry(resource_type=5, operation=4),
        "of a token": entry(resource_type=6, operation=8),
        "of a user": entry(resource_type=7, resource_name=principal, operation=13),
        "of a user without a kind": entry(resource_type=7, resource_name="bob", operation=13),
        "for a principal without a kind": entry(principal="alice"),
        "for no principal": entry(principal=""),
        "for a user without a name": entry(principal="User:"),
        "for another kind of principal": entry(principal="Group:x", resource_name=session.name("grouped")),
        "from no host": entry(host=""),
        "from a name": entry(host="example.org"),
        "from an address": entry(host="10.0.0.1"),
        "from a network": entry(host="10.0.0.0/8"),
        "that denies": entry(permission_type=2, resource_name=session.name("denied")),
        "of a bad topic": entry(resource_name="a/b"),
        "to all operations": entry(operation=2),
        "nothing": CreateAclsRequest(creations=[]),
    }
    await session.ask_all("create an entry", created)

    def filtered(**fields: Any) -> dict[str, Any]:
        usual = {
            "resource_type_filter": ANY,
            "resource_name_filter": None,
            "pattern_type_filter": ANY,
            "principal_filter": principal,
            "host_filter": None,
            "operation": ANY,
            "permission_type": ANY,
        }
        return usual | fields

    topic = {"resource_type_filter": 2, "resource_name_filter": name}
    longer = {"resource_type_filter": 2, "resource_name_filter": f"{name}-and-more"}
    filters = {
        "of a user": filtered(),
        "that hold for a topic": filtered(**topic, pattern_type_filter=MATCH),
        "of a topic": filtered(**topic, pattern_type_filter=LITERAL),
        "of a prefix": filtered(**topic, pattern_type_filter=PREFIXED),
        "that hold for a longer name": filtered(**longer, pattern_type_filter=MATCH),
        "of patterns of kind 9": filtered(pattern_type_filter=9),
        "of resources of kind 99": filtered(resource_type_filter=99),
        "of operation 99": filtered(operation=99),
        "of permission 9": filtered(permission_type=9),
        "without a name": filtered(resource_type_filter=2, resource_name_filter=""),
        "for no principal": filtered(principal_filter=""),
        "from an address": filtered(host_filter="10.0.0.1"),
        "to all operations": filtered(operation=2),
        "for all topics": filtered(resource_type_filter=2, resource_name_filter="*", pattern_type_filter=LITERAL),
    }
    await session.ask_all("describe entries", {step: DescribeAclsRequest(**fields) for step, fields in filters.items()})
    deleted = {
        "nothing": [],
        "of patterns of kind 9": [filters["of patterns of kind 9"]],
        "that are not there": [filtered(principal_filter="User:none")],
        "by two filters": [filters["from an address"]] * 2,
        "of a user": [filters["of a user"]],
        "of others": [filtered(principal_filter="Group:x"), filtered(principal_filter="User:")],
    }
    requests = {
        step: DeleteAclsRequest(filters=[DeleteAclsFilter(**fields) for fields in each])
        for step, each in deleted.items()
    }
    await session.ask_all("delete entries", requests)


async def _credentials(session: AnswerSession) -> None:
    name, other, unknown = (session.name(word) for word in ("user", "other", "unknown"))

    def given(**fields: Any) -> ScramCredentialUpsertion:
        return credential(**{"name": name, **fields})

    changes = {
        "SHA-256": [given()],
        "SHA-512": [given(mechanism=2, salted_password=b"p" * 64)],
        "too few iterations": [given(iterations=4095)],
        "too many iterations": [given(iterations=16_385)],
        "mechanism 0": [given(mechanism=0)],
        "mechanism 9": [given(mechanism=9)],
        "no name": [given(name="")],
        "a short password": [given(salted_password=b"x")],
        "one twice": [given(), given()],
        "nothing": [],
    }
    requests = {step: AlterUserScramCredentialsRequest(upsertions=each) for step, each in changes.items()}
    await session.ask_all("credentials", requests)
    mixed = {
        "set and deleted": [given()],
        "another user's deleted": [given(name=other)],
    }
    for step, each in mixed.items():
        deletion = ScramCredentialDeletion(name=name if step == "set and deleted" else unknown, mechanism=1)
        request = AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=each)
        await session.ask(f"credentials: {step}", request)
    asked = {
        "of users": [name, unknown],
        "of one user twice": [name, name],
        "of no name": [""],
    }
    described = {
        step: DescribeUserScramCredentialsRequest(users=[UserName(name=each) for each in names])
        for step, names in asked.items()
    }
    await session.ask_all("credentials", described)
    deleted = {
        "first": (name, 1),
        "again": (name, 1),
        "second": (name, 2),
        "mechanism 9": (name, 9),
        "no name": ("", 1),
    }
    for step, (user, mechanism) in {**deleted, "other": (other, 1)}.items():
        gone = AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name=user, mechanism=mechanism)])
        await session.ask(f"delete credentials: {step}", gone)
