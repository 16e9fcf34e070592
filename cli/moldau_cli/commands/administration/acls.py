"""``moldau acls``: the rights of principals."""

from __future__ import annotations

import enum
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from moldau.admin import Acl, AclFilter
from moldau.admin.calls.acls import CLUSTER_NAME, OPERATIONS
from moldau_cli import output
from moldau_cli.client.answers import answer_results, answering_done
from moldau_cli.client.options import BootstrapServer
from moldau_cli.endpoints import BootstrapController, with_admin_of
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau import Admin

commands = typer.Typer(help="List, add and remove ACLs, the rights of principals.", rich_markup_mode=None)
COLUMNS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]

OPERATIONS_OF: Final = {
    "topic": ("read", "write", "create", "describe", "delete", "alter", "describe-configs", "alter-configs"),
    "group": ("read", "describe", "delete", "describe-configs", "alter-configs"),
    "cluster": (
        *("create", "cluster-action", "describe-configs", "alter-configs"),
        *("idempotent-write", "alter", "describe"),
    ),
    "transactional-id": ("describe", "write", "two-phase-commit"),
    "delegation-token": ("describe",),
    "user": ("create-tokens", "describe-tokens"),
}
"""The operations that exist on each kind of resource besides ``all``, as in Kafka: no request asks for another one."""
OPTION_OF = {"user": "user-principal"}
"""Kinds of resources whose option has another name."""
NO_RESOURCE = "name a resource: --topic, --group, --transactional-id, --cluster, --delegation-token or --user-principal"


class Pattern(enum.StrEnum):
    """How names of resources are compared."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class FilterPattern(enum.StrEnum):
    """How the names of a filter are compared."""

    ANY = "any"
    MATCH = "match"
    LITERAL = "literal"
    PREFIXED = "prefixed"


Allow = Annotated[list[str] | None, typer.Option("--allow-principal", metavar="TYPE:NAME", help="e.g. User:alice.")]
Deny = Annotated[
    list[str] | None,
    typer.Option("--deny-principal", metavar="TYPE:NAME", help="Denied principal; this overrides what is allowed."),
]
AllowHost = Annotated[list[str] | None, typer.Option("--allow-host", help="Address or network; default: all.")]
DenyHost = Annotated[list[str] | None, typer.Option("--deny-host", help="Address or network; default: all.")]
Operations = Annotated[list[str] | None, typer.Option("--operation", help="e.g. Read; default: All.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Topic, or * for all.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="Consumer group, or * for all.")]
TransactionalIds = Annotated[list[str] | None, typer.Option("--transactional-id", help="Or * for all.")]
Tokens = Annotated[
    list[str] | None, typer.Option("--delegation-token", metavar="ID", help="Delegation token, or * for all.")
]
Users = Annotated[
    list[str] | None, typer.Option("--user-principal", metavar="TYPE:NAME", help="Owner of tokens, e.g. User:alice.")
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
OfPattern = Annotated[Pattern, typer.Option("--resource-pattern-type")]
Searched = Annotated[FilterPattern, typer.Option("--resource-pattern-type")]
AsProducer = Annotated[bool, typer.Option("--producer", help="What a producer to --topic needs.")]
AsConsumer = Annotated[bool, typer.Option("--consumer", help="What a consumer of --topic in --group needs.")]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster.")]
Principal = Annotated[list[str] | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only theirs.")]


@commands.command("list")
def list_acls(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    cluster: OfCluster = False,
    principal: Principal = None,
    resource_pattern_type: Searched = FilterPattern.ANY,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """List ACLs: all, or those of resources and principals."""
    _check_principals("--principal", principal)
    filters = list(
        _filters(
            _named(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster),
            principal,
            resource_pattern_type,
        )
    )

    async def work(admin: Admin) -> list[Acl]:
        return await _matching(admin, filters)

    output.answer_rows(
        "acls", COLUMNS, [_row(each) for each in with_admin_of(bootstrap_server, bootstrap_controller, work)]
    )


@commands.command()
def add(
    allow_principal: Allow = None,
    deny_principal: Deny = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    cluster: OfCluster = False,
    resource_pattern_type: OfPattern = Pattern.LITERAL,
    producer: AsProducer = False,
    consumer: AsConsumer = False,
    idempotent: Idempotent = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Add ACLs for each principal, host, operation and resource."""
    if not allow_principal and not deny_principal:
        raise UsageError("name a principal: --allow-principal or --deny-principal")
    _check_principals("--allow-principal", allow_principal)
    _check_principals("--deny-principal", deny_principal)
    for option, hosts, principals in (("allow", allow_host, allow_principal), ("deny", deny_host, deny_principal)):
        if hosts and not principals:
            raise UsageError(f"--{option}-host needs --{option}-principal: entries of others would be for all hosts")
        _check_fit(option, hosts or (), principals or ())
    if resource_pattern_type is Pattern.LITERAL:
        _check_principals("--user-principal", [each for each in user_principal or () if each != "*"])
    rights = _rights(
        _named(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster),
        operation,
        producer=producer,
        consumer=consumer,
        idempotent=idempotent,
    )
    acls = [
        replace(right, principal=who, host=host, permission=permission, pattern=_pattern(right, resource_pattern_type))
        for permission, principals, hosts in (
            ("allow", allow_principal, allow_host),
            ("deny", deny_principal, deny_host),
        )
        for who in principals or ()
        for host in hosts or ["*"]
        for right in rights
    ]
    acls = list(dict.fromkeys(acls))  # an option may name the same thing twice

    async def work(admin: Admin) -> None:
        with answering_done(acls, answer, "not added"):
            await admin.create_acls(acls)

    def answer(added: Sequence[Acl]) -> None:
        output.answer_rows("added", COLUMNS, [_row(each) for each in added])

    with_admin_of(bootstrap_server, bootstrap_controller, work)


@commands.command()
def remove(
    allow_principal: Allow = None,
    deny_principal: Deny = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    delegation_token: Tokens = None,
    user_principal: Users = None,
    cluster: OfCluster = False,
    resource_pattern_type: Searched = FilterPattern.LITERAL,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the ACLs that would be removed.")] = False,
    bootstrap_server: BootstrapServer = None,
    bootstrap_controller: BootstrapController = None,
) -> None:
    """Remove the ACLs of resources; all of them, or those of principals and operations."""
    _check_principals("--allow-principal", allow_principal)
    _check_principals("--deny-principal", deny_principal)
    resources = _named(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster)
    if not resources:
        raise UsageError(NO_RESOURCE)
    filters = [
        replace(wanted, permission=permission, operation=each)
        for permission, principals in _permissions(allow_principal, deny_principal)
        for wanted in _filters(resources, principals, resource_pattern_type)
        for each in _operations(operation)
    ]

    async def work(admin: Admin) -> None:
        found = _matching(admin, filters) if dry_run else admin.delete_acls(filters)
        await answer_results(found, answer, "not removed")

    def answer(removed: Sequence[Acl]) -> None:
        output.answer_rows("removed", COLUMNS, [_row(each) for each in removed], dry_run=dry_run)

    with_admin_of(bootstrap_server, bootstrap_controller, work)
    if dry_run:
        output.note_unchanged()


async def _matching(admin: Admin, filters: list[AclFilter]) -> list[Acl]:
    """Returns the entries that match a filter, sorted."""
    return sorted({acl for wanted in filters for acl in await admin.describe_acls(wanted)})


def _check_principals(option: str, principals: list[str] | None) -> None:
    """Refuses names without their type, which as filters would match nothing.

    Raises:
        UsageError: one has no type, or no name.
    """
    for given in principals or ():
        kind, colon, name = given.partition(":")
        if not kind or not name:
            example = name or ("" if colon else kind) or "alice"
            raise UsageError(f"{option}: expected TYPE:NAME, such as User:{example}, not {given!r}")


def _check_fit(option: str, hosts: Sequence[str], principals: Sequence[str]) -> None:
    """Refuses hosts and principals of new entries that no client can have; the brokers look at networks.

    Raises:
        UsageError: a host is a name or a part of an address, or the type of a user is not written as in its principal.
    """
    from moldau_quorum.authorization.rules import WILDCARD, parse_address

    for host in hosts:
        if host != WILDCARD and "/" not in host and parse_address(host) is None:
            raise UsageError(f"--{option}-host: expected an address, a network such as 10.0.0.0/8, or *, not {host!r}")
    for given in principals:
        kind, _, name = given.partition(":")
        if kind != "User" and kind.lower() == "user":
            raise UsageError(f"--{option}-principal: expected User:{name}, not {given!r}; case matters")


def _permissions(allowed: list[str] | None, denied: list[str] | None) -> Iterator[tuple[str | None, list[str] | None]]:
    if not allowed and not denied:
        yield None, None
    if allowed:
        yield "allow", allowed
    if denied:
        yield "deny", denied


def _named(
    topics: list[str] | None,
    groups: list[str] | None,
    transactional_ids: list[str] | None,
    tokens: list[str] | None,
    users: list[str] | None,
    *,
    cluster: bool,
) -> list[tuple[str, str]]:
    """Returns kind and name of the resources of the options.

    Raises:
        UsageError: a name is empty, such as that of an unset variable.
    """
    found = [("topic", name) for name in topics or ()]
    found += [("group", name) for name in groups or ()]
    found += [("transactional-id", name) for name in transactional_ids or ()]
    found += [("delegation-token", name) for name in tokens or ()]
    found += [("user", name) for name in users or ()]
    for kind, name in found:
        if not name:
            raise UsageError(f"--{OPTION_OF.get(kind, kind)} is empty: give a name, or * for all")
    return [*found, ("cluster", CLUSTER_NAME)] if cluster else found


def _filters(
    resources: list[tuple[str, str]], principals: list[str] | None, pattern: FilterPattern
) -> Iterator[AclFilter]:
    how = None if pattern is FilterPattern.ANY else pattern.value
    everybody: list[str | None] = [None]
    for who in principals or everybody:
        if not resources:
            yield AclFilter(principal=who, pattern=how)
        for resource, name in resources:
            yield AclFilter(resource=resource, name=name, principal=who, pattern=how)


def _rights(
    resources: list[tuple[str, str]],
    operations: list[str] | None,
    *,
    producer: bool,
    consumer: bool,
    idempotent: bool,
) -> list[Acl]:
    """Returns entries without their principals.

    Raises:
        UsageError: options contradict each other, or an operation does not exist on a resource.
    """
    if idempotent and not producer:
        raise UsageError("--idempotent goes with --producer")
    if not producer and not consumer:
        if not resources:
            raise UsageError(NO_RESOURCE)
        wanted = [_operation(each) for each in operations or ["all"]]
        for kind in dict(resources):
            _check_operations(kind, wanted)
        return [_right(kind, name, each) for kind, name in resources for each in wanted]
    if operations:
        raise UsageError("--producer and --consumer choose the operations: leave --operation out")
    kinds = {kind for kind, _ in resources}
    if "topic" not in kinds or (consumer and "group" not in kinds):
        raise UsageError("--producer needs --topic, --consumer needs --topic and --group")
    used = ["topic", *["transactional-id"] * producer, *["group"] * consumer]
    unused = [kind for kind, _ in resources if kind not in used]
    if unused:
        raise UsageError(f"--producer and --consumer give no right to --{OPTION_OF.get(unused[0], unused[0])} here")
    rights: list[Acl] = []
    for kind, name in resources:
        if producer and kind == "topic":
            rights += [_right(kind, name, each) for each in ("write", "describe", "create")]
        if producer and kind == "transactional-id":
            rights += [_right(kind, name, each) for each in ("write", "describe")]
        if consumer and kind == "topic":
            rights += [_right(kind, name, each) for each in ("read", "describe")]
        if consumer and kind == "group":
            rights.append(_right(kind, name, "read"))
    if producer and idempotent:
        rights.append(_right("cluster", CLUSTER_NAME, "idempotent-write"))
    return list(dict.fromkeys(rights))


def _check_operations(kind: str, operations: Sequence[str]) -> None:
    """Refuses operations that give no right to a kind of resource.

    Raises:
        UsageError: one of them gives none.
    """
    known = ("all", *OPERATIONS_OF[kind])
    for operation in operations:
        if operation not in known:
            option = OPTION_OF.get(kind, kind)
            raise UsageError(f"--{option} has no operation {operation}: expected one of {', '.join(known)}")


def _right(kind: str, name: str, operation: str) -> Acl:
    return Acl(resource=kind, name=name, principal="", operation=operation)


def _pattern(right: Acl, chosen: Pattern) -> str:
    return Pattern.LITERAL.value if right.resource == "cluster" else chosen.value


def _operations(texts: list[str] | None) -> list[str | None]:
    return [_operation(each) for each in texts] if texts else [None]


def _operation(text: str) -> str:
    """Returns an operation however it is written: Read, READ, IdempotentWrite, idempotent_write."""
    plain = text.replace("-", "").replace("_", "").lower()
    found = next((name for name in OPERATIONS if name.replace("-", "") == plain), None)
    if found is None:
        raise UsageError(f"operation {text!r} is not one of {', '.join(OPERATIONS)}")
    return found


def _row(acl: Acl) -> dict[str, str]:
    values: dict[str, str] = asdict(acl)
    return {column: values[column] for column in COLUMNS}
