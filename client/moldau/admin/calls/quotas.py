"""Client quotas: how much users, client ids and addresses may use (KIP-546, KIP-599, KIP-612)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Protocol

from moldau.admin.failures import error_of, raise_error, raise_failures
from moldau.cluster import arguments
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from moldau.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau.admin.requester import Requester

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_KINDS: Final = {"user": "user", "client_id": "client-id", "ip": "ip"}
_EXAMPLE: Final = 'QuotaAlteration(entity=QuotaEntity(user="alice"), quotas={"producer_byte_rate": 1e6})'


class QuotaName(enum.Enum):
    """The placeholder for a name where no single user, client id or address is meant."""

    DEFAULT = "default"
    """Those without a quota of their own."""
    ANY = "any"
    """In a filter: every name, and the default."""


Name = str | QuotaName | None


class _Part(Protocol):
    """The fields of an answer that name a part of an entity."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """Whom a quota limits: a user, a client id, both together, or an address. None leaves a part out."""

    user: Name = None
    client_id: Name = None
    ip: Name = None

    def __str__(self) -> str:
        return ", ".join(
            f"{kind} {name if isinstance(name, str) else f'<{name.value}>'}" for kind, name in _parts(self)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """The quotas that are set for one entity, by their names in Kafka."""

    entity: QuotaEntity
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAlteration:
    """Changes of one entity's quotas; None removes a quota."""

    entity: QuotaEntity
    quotas: Mapping[str, float | None] = field(default_factory=dict)


class Quotas:
    """Sends the requests about quotas."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def describe_client_quotas(self, wanted: QuotaEntity | None, *, strict: bool = False) -> list[ClientQuota]:
        """Implements ``Admin.describe_client_quotas``."""
        wanted = QuotaEntity() if wanted is None else wanted
        if not isinstance(wanted, QuotaEntity):
            arguments.refuse("describe_client_quotas", "wanted", 'a QuotaEntity such as QuotaEntity(user="a")', wanted)
        components = [
            ComponentData(entity_type=kind, match_type=_EXACT, match=name)
            if isinstance(name, str)
            else ComponentData(entity_type=kind, match_type=_DEFAULT if name is QuotaName.DEFAULT else _ANY, match=None)
            for kind, name in _parts(wanted)
        ]
        response = await self._requester.ask(
            DescribeClientQuotasResponse,
            DescribeClientQuotasRequest(components=components, strict=strict),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_error(response.error_code, response.error_message)
        return [
            ClientQuota(entity=_entity(entry.entity), quotas={value.key: value.value for value in entry.values})
            for entry in response.entries or ()
        ]

    async def alter_client_quotas(self, alterations: Iterable[QuotaAlteration], *, validate_only: bool = False) -> None:
        """Implements ``Admin.alter_client_quotas``."""
        call = "alter_client_quotas"
        given = arguments.instances(call, "alterations", alterations, QuotaAlteration, _EXAMPLE)
        response = await self._requester.ask(
            AlterClientQuotasResponse,
            AlterClientQuotasRequest(entries=[_entry(call, each) for each in given], validate_only=validate_only),
        )
        answers = (
            (_entity(each.entity), error_of(each.error_code, each.error_message), None) for each in response.entries
        )
        raise_failures(judge("the quotas of", (each.entity for each in given), answers).failures)


def _entity(parts: Iterable[_Part]) -> QuotaEntity:
    """Returns the entity of an answer; parts of unknown types are left out."""
    by_kind = {kind: attribute for attribute, kind in _KINDS.items()}
    names: dict[str, Name] = {
        by_kind[part.entity_type]: QuotaName.DEFAULT if part.entity_name is None else part.entity_name
        for part in parts
        if part.entity_type in by_kind
    }
    return QuotaEntity(**names)


def _parts(entity: QuotaEntity) -> Iterator[tuple[str, str | QuotaName]]:
    for each in fields(entity):
        name = getattr(entity, each.name)
        if name is not None:
            yield _KINDS[each.name], name


def _entry(call: str, alteration: QuotaAlteration) -> AlterClientQuotasRequestEntryData:
    parts: list[AlterClientQuotasRequestEntityData] = []
    for kind, name in _parts(alteration.entity):
        if name is QuotaName.ANY:
            raise arguments.ArgumentValueError(
                f"{call}: {kind} must be a name or QuotaName.DEFAULT; QuotaName.ANY is for filters"
            )
        parts.append(
            AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name if isinstance(name, str) else None)
        )
    operations: list[OpData] = []
    for key, value in arguments.mapping(call, "quotas", alteration.quotas, '{"producer_byte_rate": 1e6}').items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise arguments.ArgumentTypeError(f"{call}: {key} must be a number, or None to remove it, not {value!r}")
        operations.append(OpData(key=key, value=0.0 if value is None else float(value), remove=value is None))
    return AlterClientQuotasRequestEntryData(entity=parts, ops=operations)
