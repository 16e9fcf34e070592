"""Access control lists: the rights of principals to resources (KIP-140, KIP-290)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from moldau.admin.failures import error_of, raise_error, raise_failures
from moldau.cluster import arguments
from moldau.protocol.answers import in_order, judge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from moldau.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from moldau.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from moldau.admin.requester import Requester

RESOURCES: Final = {
    "topic": 2,
    "group": 3,
    "cluster": 4,
    "transactional-id": 5,
    "delegation-token": 6,
    "user": 7,
}
PATTERNS: Final = {"literal": 3, "prefixed": 4}
OPERATIONS: Final = {
    "all": 2,
    "read": 3,
    "write": 4,
    "create": 5,
    "delete": 6,
    "alter": 7,
    "describe": 8,
    "cluster-action": 9,
    "describe-configs": 10,
    "alter-configs": 11,
    "idempotent-write": 12,
    "create-tokens": 13,
    "describe-tokens": 14,
    "two-phase-commit": 15,
}
PERMISSIONS: Final = {"deny": 2, "allow": 3}
CLUSTER_NAME: Final = "kafka-cluster"
_ANY, _MATCH = 1, 2
F = TypeVar("F", DescribeAclsRequest, DeleteAclsFilter)


class _Resource(Protocol):
    """The fields of an answer that say which resource an entry is about."""

    resource_type: int
    resource_name: str
    pattern_type: int


class _Entry(Protocol):
    """The fields of an answer that name principal, host, operation and permission."""

    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Acl:
    """One entry: a principal may, or may not, do something to a resource.

    ``resource`` is topic, group, cluster, transactional-id, delegation-token or user; ``name`` may be ``*``, and is
    ``kafka-cluster`` for the cluster. ``permission`` is allow or deny, ``pattern`` literal or prefixed. ``host`` is an
    address, a network (10.0.0.0/8), or ``*``.
    """

    resource: str
    name: str
    principal: str
    operation: str
    permission: str = "allow"
    pattern: str = "literal"
    host: str = "*"

    def __str__(self) -> str:
        origin = "" if self.host == "*" else f" from {self.host}"
        prefixed = " prefixed" if self.pattern == "prefixed" else ""
        return f"{self.permission} {self.principal}{origin} {self.operation} {self.resource}{prefixed} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Which entries are meant; None fits all. ``pattern`` may be ``match``: all that concern the resource ``name``."""

    resource: str | None = None
    name: str | None = None
    principal: str | None = None
    operation: str | None = None
    permission: str | None = None
    pattern: str | None = None
    host: str | None = None

    def __str__(self) -> str:
        parts = (self.permission, self.principal, self.operation, self.resource, self.pattern, self.name, self.host)
        return " ".join(part for part in parts if part is not None) or "all"


class Acls:
    """Sends the requests about ACLs."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def describe_acls(self, wanted: AclFilter | None) -> list[Acl]:
        """Implements ``Admin.describe_acls``."""
        response = await self._requester.ask(
            DescribeAclsResponse,
            _filter("describe_acls", wanted or AclFilter(), DescribeAclsRequest),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_error(response.error_code, response.error_message)
        return sorted(_acl(found, each) for found in response.resources for each in found.acls)

    async def create_acls(self, acls: Iterable[Acl]) -> None:
        """Implements ``Admin.create_acls``."""
        entries = list(acls)
        response = await self._requester.ask(
            CreateAclsResponse, CreateAclsRequest(creations=[_creation(each) for each in entries])
        )
        names = [str(each) for each in entries]
        answers = (
            (name, error_of(result.error_code, result.error_message), None)
            for name, result in in_order(names, response.results)
        )
        raise_failures(judge("ACL", names, answers).failures)

    async def delete_acls(self, wanted: AclFilter | Iterable[AclFilter]) -> list[Acl]:
        """Implements ``Admin.delete_acls``."""
        filters = [wanted] if isinstance(wanted, AclFilter) else list(wanted)
        request = DeleteAclsRequest(filters=[_filter("delete_acls", each, DeleteAclsFilter) for each in filters])
        response = await self._requester.ask(DeleteAclsResponse, request)
        removed: set[Acl] = set()
        names = [str(each) for each in filters]
        answers = (
            (name, error_of(result.error_code, result.error_message), None)
            for name, result in in_order(names, response.filter_results)
        )
        failures = judge("filter", names, answers).failures
        for result in response.filter_results:
            for match in result.matching_acls:
                acl = _acl(match, match)
                kept = error_of(match.error_code, match.error_message)
                if kept is None:
                    removed.add(acl)
                else:
                    failures[str(acl)] = kept
        if failures.keys() >= {*names} and not removed and len({str(error) for error in failures.values()}) == 1:
            raise next(iter(failures.values()))  # one reason for all filters
        raise_failures(failures, sorted(removed))
        return sorted(removed)


def _creation(entry: Acl) -> AclCreation:
    if not isinstance(entry, Acl):
        raise arguments.ArgumentTypeError(f"create_acls: takes values of Acl, not {type(entry).__name__}")
    return AclCreation(
        resource_type=_number("create_acls", "resource", RESOURCES, entry.resource),
        resource_name=entry.name,
        resource_pattern_type=_number("create_acls", "pattern", PATTERNS, entry.pattern),
        principal=entry.principal,
        host=entry.host,
        operation=_number("create_acls", "operation", OPERATIONS, entry.operation),
        permission_type=_number("create_acls", "permission", PERMISSIONS, entry.permission),
    )


def _filter(call: str, wanted: AclFilter, make: Callable[..., F]) -> F:
    """Returns the filter of a request; the requests name its fields alike."""

    def number(field: str, known: Mapping[str, int], value: str | None) -> int:
        return _ANY if value is None else _number(call, field, known, value)

    return make(
        resource_type_filter=number("resource", RESOURCES, wanted.resource),
        resource_name_filter=wanted.name,
        pattern_type_filter=number("pattern", {**PATTERNS, "match": _MATCH}, wanted.pattern),
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=number("operation", OPERATIONS, wanted.operation),
        permission_type=number("permission", PERMISSIONS, wanted.permission),
    )


def _number(call: str, field: str, known: Mapping[str, int], value: str) -> int:
    if value not in known:
        raise arguments.ArgumentValueError(f"{call}: {field} must be one of {', '.join(known)}, not {value!r}")
    return known[value]


def _acl(resource: _Resource, entry: _Entry) -> Acl:
    return Acl(
        resource=_name(RESOURCES, resource.resource_type),
        name=resource.resource_name,
        pattern="prefixed" if resource.pattern_type == PATTERNS["prefixed"] else "literal",
        principal=entry.principal,
        host=entry.host,
        operation=_name(OPERATIONS, entry.operation),
        permission="deny" if entry.permission_type == PERMISSIONS["deny"] else "allow",
    )


def _name(known: Mapping[str, int], number: int) -> str:
    return next((name for name, each in known.items() if each == number), str(number))
