"""Decisions about client quotas (KIP-546, KIP-612): what is set for users, client ids and addresses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntityData,
    AlterClientQuotasResponseEntryData,
    OpData,
)
from moldau.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from moldau_quorum.authorization.rules import parse_address
from moldau_quorum.controller.context import Context, RefusedError, Result
from moldau_quorum.metadata.image import MetadataImage, QuotaEntity, quota_sort_key
from moldau_quorum.metadata.records import ClientQuotaRecord, MetadataRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

USER, CLIENT_ID, IP = "user", "client-id", "ip"

CLIENT_QUOTAS: Final[Mapping[str, bool]] = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
"""Quotas of users and client ids; the value says whether the quota is a whole number."""
IP_QUOTAS: Final[Mapping[str, bool]] = {"connection_creation_rate": True}
WHOLE_MAX: Final = 2.0**63
"""Largest quota that is a whole number: Kafka compares with the largest int64 as a double, which is 2^63."""
IP_WHOLE_MAX: Final = 2.0**31 - 1
"""Largest quota of an address, which Kafka keeps in an int32."""

MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY = 0, 1, 2


def alter_client_quotas(
    request: AlterClientQuotasRequest, image: MetadataImage, context: Context
) -> Result[AlterClientQuotasResponse]:
    """Sets and removes quotas; each entity succeeds or fails as a whole."""
    records: list[MetadataRecord] = []
    outcomes: list[AlterClientQuotasResponseEntryData] = []
    seen: dict[QuotaEntity, None] = {}
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            entity = _entity(entry, image)
            if entity in seen:
                raise RefusedError(ErrorCode.INVALID_REQUEST, "the entity appears twice in the request")
            seen[entity] = None
            records.extend(_changes(entity, entry.ops, image))
        except RefusedError as refusal:
            code, message = refusal.code, refusal.message
        outcomes.append(outcome(entry, code, message))
    return Result(
        records=() if request.validate_only else tuple(records), response=AlterClientQuotasResponse(entries=outcomes)
    )


def outcome(
    entry: AlterClientQuotasRequestEntryData, code: ErrorCode, message: str | None
) -> AlterClientQuotasResponseEntryData:
    """Returns the response for one entity."""
    return AlterClientQuotasResponseEntryData(
        error_code=code,
        error_message=message,
        entity=[
            AlterClientQuotasResponseEntityData(entity_type=part.entity_type, entity_name=part.entity_name)
            for part in entry.entity
        ],
    )


def _entity(entry: AlterClientQuotasRequestEntryData, image: MetadataImage) -> QuotaEntity:
    parts: dict[str, str | None] = {}
    for part in entry.entity:
        if part.entity_type not in (USER, CLIENT_ID, IP):
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"entity type {part.entity_type!r} is unknown")
        if part.entity_type in parts:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"entity type {part.entity_type!r} appears twice")
        if part.entity_name == "":
            raise RefusedError(ErrorCode.INVALID_REQUEST, "an entity name cannot be empty")
        parts[part.entity_type] = part.entity_name
    if not parts:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "the entity is empty")
    if IP in parts and len(parts) > 1:
        raise RefusedError(ErrorCode.INVALID_REQUEST, "an ip entity cannot be combined with others")
    address = parts.get(IP)
    if address is not None:
        if parse_address(address) is None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"{address!r} is not an IP address")
        # An entity that an earlier release has stored in another spelling can be removed in that one.
        if not image.quota(((IP, address),)):
            parts[IP] = _spelled(address)
    return tuple(sorted(parts.items()))


def _spelled(address: str) -> str:
    """Returns an address as brokers name their peers: the shortest form, and IPv4 for IPv4 in IPv6."""
    return str(parse_address(address) or address)


def _changes(entity: QuotaEntity, operations: Sequence[OpData], image: MetadataImage) -> list[MetadataRecord]:
    valid, largest = (IP_QUOTAS, IP_WHOLE_MAX) if entity[0][0] == IP else (CLIENT_QUOTAS, WHOLE_MAX)
    present = image.quota(entity)
    records: list[MetadataRecord] = []
    seen: dict[str, None] = {}
    for operation in operations:
        if operation.key not in valid and not operation.remove:  # to remove what cannot be set is no fault in Kafka
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"quota {operation.key!r} is unknown; known are {', '.join(valid)}"
            )
        if operation.key in seen:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"quota {operation.key!r} appears twice")
        seen[operation.key] = None
        if operation.remove:
            if operation.key in present:
                records.append(ClientQuotaRecord(entity=entity, key=operation.key, value=None))
            continue
        value = operation.value
        if value <= 0:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"quota {operation.key} must be above 0, not {value}")
        if not math.isfinite(value):
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"quota {operation.key} must be a finite number, not {value}")
        if valid[operation.key] and abs(value - round(value)) > 1e-6:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"quota {operation.key} must be a whole number, not {value}")
        if valid[operation.key] and value > largest:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST, f"quota {operation.key} must be at most {largest:.0f}, not {value}"
            )
        if present.get(operation.key) != value:
            records.append(ClientQuotaRecord(entity=entity, key=operation.key, value=float(value)))
    return records


def describe_client_quotas(
    request: DescribeClientQuotasRequest, image: MetadataImage, context: Context
) -> Result[DescribeClientQuotasResponse]:
    """Returns the quotas of entities that match every component.

    ``strict`` excludes entities that have further types.
    """
    components: dict[str, ComponentData] = {}
    for component in request.components:
        try:
            _check_component(component, components)
        except RefusedError as refusal:
            return _describe_refused(refusal)
        components[component.entity_type] = component
    entries: list[EntryData] = []
    for entity in sorted(image.quotas, key=quota_sort_key):
        if not _matches(dict(entity), components, strict=request.strict):
            continue
        entries.append(
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in sorted(image.quotas[entity].items())],
            )
        )
    return Result(response=DescribeClientQuotasResponse(error_message=None, entries=entries))


def _check_component(component: ComponentData, before: Mapping[str, ComponentData]) -> None:
    kind, how = component.entity_type, component.match_type
    if kind not in (USER, CLIENT_ID, IP):
        code = ErrorCode.UNSUPPORTED_VERSION if kind else ErrorCode.INVALID_REQUEST
        raise RefusedError(code, f"entity type {kind!r} is unknown; known are {USER}, {CLIENT_ID} and {IP}")
    if kind in before:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"entity type {kind!r} appears twice")
    if before and IP in (kind, *before):
        raise RefusedError(ErrorCode.INVALID_REQUEST, "an ip entity cannot be combined with others")
    if how not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY):
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"match type {how} is unknown")
    if (how == MATCH_EXACT) != (component.match is not None):
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"match type {how} needs {'a' if how == MATCH_EXACT else 'no'} name"
        )


def _describe_refused(refusal: RefusedError) -> Result[DescribeClientQuotasResponse]:
    return Result(
        response=DescribeClientQuotasResponse(error_code=refusal.code, error_message=refusal.message, entries=None)
    )


def _matches(entity: dict[str, str | None], components: dict[str, ComponentData], *, strict: bool) -> bool:
    for kind, component in components.items():
        if kind not in entity:
            return False
        if component.match_type == MATCH_EXACT and entity[kind] not in _names(component):
            return False
        if component.match_type == MATCH_DEFAULT and entity[kind] is not None:
            return False
    return not strict or len(entity) == len(components)


def _names(component: ComponentData) -> tuple[str | None, ...]:
    if component.entity_type == IP and component.match is not None:
        return component.match, _spelled(component.match)
    return (component.match,)
