"""GetTelemetrySubscriptions: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response


class GetTelemetrySubscriptionsRequest(Request, api_key=71, versions="0", flexible="0+"):
    """Ask which metrics a client is to push (KIP-714)."""

    client_instance_id: UUID = field.uuid("0+")


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions="0", flexible="0+"):
    """The metrics to push, how often, and how."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    client_instance_id: UUID = field.uuid("0+")
    subscription_id: int = field.int32("0+")
    accepted_compression_types: Sequence[int] = field.int8_array("0+")
    push_interval_ms: int = field.int32("0+")
    telemetry_max_bytes: int = field.int32("0+")
    delta_temporality: bool = field.boolean("0+")
    requested_metrics: Sequence[str] = field.string_array("0+")
