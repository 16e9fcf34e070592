"""DescribeClientQuotas: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class ComponentData(Struct):
    """An element of ``components`` in ``DescribeClientQuotasRequest``."""

    entity_type: str = field.string("0+")
    match_type: int = field.int8("0+")
    match: str | None = field.string("0+", nullable="0+")


class DescribeClientQuotasRequest(Request, api_key=48, versions="0-1", flexible="1+"):
    """Find client quotas by a filter (KIP-546)."""

    components: Sequence[ComponentData] = field.array(ComponentData, "0+")
    strict: bool = field.boolean("0+")


class EntityData(Struct):
    """An element of ``entity`` in ``EntryData``."""

    entity_type: str = field.string("0+")
    entity_name: str | None = field.string("0+", nullable="0+")


class ValueData(Struct):
    """An element of ``values`` in ``EntryData``."""

    key: str = field.string("0+")
    value: float = field.float64("0+")


class EntryData(Struct):
    """An element of ``entries`` in ``DescribeClientQuotasResponse``."""

    entity: Sequence[EntityData] = field.array(EntityData, "0+")
    values: Sequence[ValueData] = field.array(ValueData, "0+")


class DescribeClientQuotasResponse(Response, api_key=48, versions="0-1", flexible="1+"):
    """The quotas that match."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+")
    entries: Sequence[EntryData] | None = field.array(EntryData, "0+", nullable="0+")
