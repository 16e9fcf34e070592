"""AlterClientQuotas: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class AlterClientQuotasRequestEntityData(Struct):
    """An element of ``entity`` in ``AlterClientQuotasRequestEntryData``."""

    entity_type: str = field.string("0+")
    entity_name: str | None = field.string("0+", nullable="0+")


class OpData(Struct):
    """An element of ``ops`` in ``AlterClientQuotasRequestEntryData``."""

    key: str = field.string("0+")
    value: float = field.float64("0+")
    remove: bool = field.boolean("0+")


class AlterClientQuotasRequestEntryData(Struct):
    """An element of ``entries`` in ``AlterClientQuotasRequest``."""

    entity: Sequence[AlterClientQuotasRequestEntityData] = field.array(AlterClientQuotasRequestEntityData, "0+")
    ops: Sequence[OpData] = field.array(OpData, "0+")


class AlterClientQuotasRequest(Request, api_key=49, versions="0-1", flexible="1+"):
    """Set or remove client quotas (KIP-546)."""

    entries: Sequence[AlterClientQuotasRequestEntryData] = field.array(AlterClientQuotasRequestEntryData, "0+")
    validate_only: bool = field.boolean("0+")


class AlterClientQuotasResponseEntityData(Struct):
    """An element of ``entity`` in ``AlterClientQuotasResponseEntryData``."""

    entity_type: str = field.string("0+")
    entity_name: str | None = field.string("0+", nullable="0+")


class AlterClientQuotasResponseEntryData(Struct):
    """An element of ``entries`` in ``AlterClientQuotasResponse``."""

    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    entity: Sequence[AlterClientQuotasResponseEntityData] = field.array(AlterClientQuotasResponseEntityData, "0+")


class AlterClientQuotasResponse(Response, api_key=49, versions="0-1", flexible="1+"):
    """One outcome for each entity."""

    throttle_time_ms: int = field.int32("0+")
    entries: Sequence[AlterClientQuotasResponseEntryData] = field.array(AlterClientQuotasResponseEntryData, "0+")
