"""Decisions about access control entries (KIP-140, KIP-290). `moldau_quorum.authorization` enforces them."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from moldau.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from moldau.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from moldau_quorum.authorization.rules import parse_network
from moldau_quorum.controller.context import Context, DecisionView, RefusedError, Result
from moldau_quorum.metadata.records import AccessControlEntryRecord, MetadataRecord, RemoveAccessControlEntryRecord

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from moldau_quorum.metadata.image import MetadataImage

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
RESOURCE_TYPES: Final = range(2, 8)
"""Topic, group, cluster, transactional id, delegation token, user."""
OPERATIONS: Final = range(2, 16)
PERMISSIONS: Final = range(2, 4)
PATTERN_TYPES: Final = (MATCH, LITERAL, PREFIXED)
WILDCARD: Final = "*"
CLUSTER_RESOURCE: Final = 4
CLUSTER_NAME: Final = "kafka-cluster"
ACLS_MAX: Final = 100_000
COMPARISONS_MAX: Final = 2_000_000
"""Comparisons of an entry with a filter in one deletion, about a second of work; further filters are refused."""
SLICE_COMPARISONS: Final = 25_000
"""Comparisons between two turns of other tasks."""
COMPARISONS_PER_MATCH: Final = 10
"""A match takes the time of so many comparisons, because it is described in the response."""


def create_acls(request: CreateAclsRequest, image: MetadataImage, context: Context) -> Result[CreateAclsResponse]:
    """Adds entries; an entry that already exists is not an error."""
    results: list[AclCreationResult] = []
    return Result(response=CreateAclsResponse(results=results), steps=lambda view: _create_each(request, view, results))


def _create_each(
    request: CreateAclsRequest, view: DecisionView, results: list[AclCreationResult]
) -> Iterator[list[MetadataRecord]]:
    """Yields empty slices while it looks for entries that exist already, then all records in one."""
    image, context = view.image, view.context
    records: list[MetadataRecord] = []
    principals = {creation.principal for creation in request.creations}
    names = {creation.resource_name for creation in request.creations}
    present = set()
    in_slice = 0
    for existing in image.acls.unordered_values():
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        in_slice += 1
        # One principal may have most of the entries: only those of the same resources are looked at more closely.
        if existing.resource_name in names and existing.principal in principals:
            present.add(_identity(existing))
    for creation in request.creations:
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        in_slice += COMPARISONS_PER_MATCH
        code, message = ErrorCode.NONE, None
        try:
            _check(creation)
            entry = AccessControlEntryRecord(
                acl_id=context.new_uuid(),
                resource_type=creation.resource_type,
                resource_name=creation.resource_name,
                pattern_type=creation.resource_pattern_type,
                principal=creation.principal,
                host=creation.host,
                operation=creation.operation,
                permission_type=creation.permission_type,
            )
            if _identity(entry) not in present:
                if len(image.acls) + len(records) >= ACLS_MAX:
                    raise RefusedError(ErrorCode.INVALID_REQUEST, f"the limit of {ACLS_MAX} entries is reached")
                present.add(_identity(entry))
                records.append(entry)
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        results.append(AclCreationResult(error_code=code, error_message=message))
    yield records


def _identity(entry: AccessControlEntryRecord) -> tuple[int, str, int, str, str, int, int]:
    return (
        entry.resource_type,
        entry.resource_name,
        entry.pattern_type,
        entry.principal,
        entry.host,
        entry.operation,
        entry.permission_type,
    )


def _check(creation: AclCreation) -> None:
    if creation.resource_type not in RESOURCE_TYPES:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"resource type {creation.resource_type} cannot have an ACL")
    if creation.resource_pattern_type not in (LITERAL, PREFIXED):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the pattern type must be 3 (literal) or 4 (prefixed)")
    if creation.operation not in OPERATIONS or creation.permission_type not in PERMISSIONS:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "operation or permission type is unknown")
    if not creation.resource_name or not creation.host:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "resource name and host cannot be empty")
    if "/" in creation.host and parse_network(creation.host) is None:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"host {creation.host!r} is not a network such as 10.0.0.0/8")
    if ":" not in creation.principal:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"principal {creation.principal!r} is not of the form User:name")
    if creation.resource_type == CLUSTER_RESOURCE and creation.resource_name != CLUSTER_NAME:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"the only cluster resource is {CLUSTER_NAME!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of entries (KIP-290); None and ``ANY`` match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def check(self) -> None:
        """Checks that the filter can be compared with entries.

        Raises:
            RefusedError: a field has the type "unknown".
        """
        if 0 in (self.resource_type, self.pattern_type, self.operation, self.permission_type):
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the filter has an unknown type")

    def check_for_deletion(self) -> None:
        """Checks that a deletion knows what the filter means: a newer client would take no match for all removed.

        Raises:
            RefusedError: a field has a type that this release does not know.
        """
        self.check()
        fields = (
            ("resource type", self.resource_type, RESOURCE_TYPES),
            ("pattern type", self.pattern_type, PATTERN_TYPES),
            ("operation", self.operation, OPERATIONS),
            ("permission type", self.permission_type, PERMISSIONS),
        )
        for name, value, known in fields:
            if value != ANY and value not in known:
                raise RefusedError(ErrorCode.INVALID_REQUEST, f"the filter has an unknown {name}: {value}")

    def matches(self, entry: AccessControlEntryRecord) -> bool:
        """Returns whether an entry passes the filter."""
        return (
            self.resource_type in (ANY, entry.resource_type)
            and self._matches_name(entry)
            and self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission_type in (ANY, entry.permission_type)
        )

    def _matches_name(self, entry: AccessControlEntryRecord) -> bool:
        if self.pattern_type not in (ANY, MATCH, entry.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type == MATCH:
            if entry.pattern_type == PREFIXED:
                return self.resource_name.startswith(entry.resource_name)
            return entry.resource_name in (self.resource_name, WILDCARD)
        return self.resource_name == entry.resource_name


def describe_acls(request: DescribeAclsRequest, image: MetadataImage, context: Context) -> Result[DescribeAclsResponse]:
    """Returns the entries that pass a filter, by resource."""
    acl_filter = AclFilter(
        resource_type=request.resource_type_filter,
        resource_name=request.resource_name_filter,
        pattern_type=request.pattern_type_filter,
        principal=request.principal_filter,
        host=request.host_filter,
        operation=request.operation,
        permission_type=request.permission_type,
    )
    try:
        acl_filter.check()
    except RefusedError as refusal:
        return Result(response=DescribeAclsResponse(error_code=refusal.code, error_message=refusal.message))
    resources: list[DescribeAclsResource] = []
    return Result(
        response=DescribeAclsResponse(error_message=None, resources=resources),
        steps=lambda view: _describe_each(acl_filter, view, resources),
    )


def _describe_each(
    acl_filter: AclFilter, view: DecisionView, resources: list[DescribeAclsResource]
) -> Iterator[list[MetadataRecord]]:
    """Yields empty slices while it compares and describes."""
    found: dict[tuple[int, str, int], list[AccessControlEntryRecord]] = {}
    in_slice = 0
    for entry in view.image.acls.unordered_values():
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        in_slice += 1
        if acl_filter.matches(entry):
            found.setdefault((entry.resource_type, entry.resource_name, entry.pattern_type), []).append(entry)
    for kind, name, pattern in sorted(found):
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        entries = found[kind, name, pattern]
        in_slice += COMPARISONS_PER_MATCH * len(entries)
        described: list[AclDescription] = []
        for each in _in_order(entries):
            if each is None:
                yield []
                continue
            described.append(
                AclDescription(
                    principal=each.principal,
                    host=each.host,
                    operation=each.operation,
                    permission_type=each.permission_type,
                )
            )
        resources.append(
            DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern, acls=described)
        )


def _in_order(entries: list[AccessControlEntryRecord]) -> Iterator[AccessControlEntryRecord | None]:
    """Yields entries in order, and None between two slices of the work: one resource may have all entries."""
    step = max(1, SLICE_COMPARISONS // COMPARISONS_PER_MATCH)
    parts: list[list[AccessControlEntryRecord]] = []
    for start in range(0, len(entries), step):
        if start:
            yield None
        parts.append(sorted(entries[start : start + step], key=_identity))
    for number, entry in enumerate(parts[0] if len(parts) == 1 else merge(*parts, key=_identity)):
        if number and number % step == 0:
            yield None
        yield entry


class _Index:
    """The entries of an image, by principal and by name: most filters of a deletion name one of both."""

    def __init__(self) -> None:
        self._all: list[AccessControlEntryRecord] = []
        self._by_principal: dict[str, list[AccessControlEntryRecord]] = {}
        self._by_name: dict[str, list[AccessControlEntryRecord]] = {}

    def add(self, entry: AccessControlEntryRecord) -> None:
        """Adds an entry."""
        self._all.append(entry)
        self._by_principal.setdefault(entry.principal, []).append(entry)
        self._by_name.setdefault(entry.resource_name, []).append(entry)

    def candidates(self, acl_filter: AclFilter) -> list[AccessControlEntryRecord]:
        """Returns entries among which are all that pass the filter."""
        found = self._all
        if acl_filter.principal is not None:
            found = self._by_principal.get(acl_filter.principal, [])
        if acl_filter.resource_name is not None and acl_filter.pattern_type != MATCH:
            found = min(found, self._by_name.get(acl_filter.resource_name, []), key=len)
        return found


def delete_acls(request: DeleteAclsRequest, image: MetadataImage, context: Context) -> Result[DeleteAclsResponse]:
    """Removes all entries that pass a filter."""
    results: list[DeleteAclsFilterResult] = []
    return Result(
        response=DeleteAclsResponse(filter_results=results), steps=lambda view: _delete_each(request, view, results)
    )


def _delete_each(
    request: DeleteAclsRequest, view: DecisionView, results: list[DeleteAclsFilterResult]
) -> Iterator[list[MetadataRecord]]:
    """Yields empty slices while it looks for the entries, then all records in one."""
    removed: dict[int, MetadataRecord] = {}
    index = _Index()
    total = in_slice = 0
    for entry in view.image.acls.unordered_values():
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        in_slice += 1
        index.add(entry)
    in_slice = 0
    for wanted in request.filters:
        if in_slice >= SLICE_COMPARISONS:
            yield []
            in_slice = 0
        acl_filter = AclFilter(
            resource_type=wanted.resource_type_filter,
            resource_name=wanted.resource_name_filter,
            pattern_type=wanted.pattern_type_filter,
            principal=wanted.principal_filter,
            host=wanted.host_filter,
            operation=wanted.operation,
            permission_type=wanted.permission_type,
        )
        try:
            acl_filter.check_for_deletion()
            if total >= COMPARISONS_MAX:
                raise RefusedError(ErrorCode.POLICY_VIOLATION, "the request compares too many entries: split it")
        except RefusedError as refusal:
            results.append(DeleteAclsFilterResult(error_code=refusal.code, error_message=refusal.message))
            continue
        candidates = index.candidates(acl_filter)
        matching = yield from _compare(acl_filter, candidates)
        described = yield from _remove(matching, removed)
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=described))
        work = 1 + len(candidates) + COMPARISONS_PER_MATCH * len(matching)
        total, in_slice = total + work, in_slice + work
    yield list(removed.values())


def _compare(
    acl_filter: AclFilter, candidates: list[AccessControlEntryRecord]
) -> Generator[list[MetadataRecord], None, list[AccessControlEntryRecord]]:
    """Yields an empty slice after each ``SLICE_COMPARISONS``; returns the entries that pass the filter."""
    matching: list[AccessControlEntryRecord] = []
    for start in range(0, len(candidates), SLICE_COMPARISONS):
        if start:
            yield []
        matching += [entry for entry in candidates[start : start + SLICE_COMPARISONS] if acl_filter.matches(entry)]
    return matching


def _remove(
    matching: list[AccessControlEntryRecord], removed: dict[int, MetadataRecord]
) -> Generator[list[MetadataRecord], None, list[DeleteAclsMatchingAcl]]:
    """Adds entries to those that are removed, in order; yields empty slices, and returns their descriptions."""
    described: list[DeleteAclsMatchingAcl] = []
    for entry in _in_order(matching):
        if entry is None:
            yield []
            continue
        removed[entry.acl_id.int] = RemoveAccessControlEntryRecord(acl_id=entry.acl_id)
        described.append(_matching_acl(entry))
    return described


def _matching_acl(entry: AccessControlEntryRecord) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )
