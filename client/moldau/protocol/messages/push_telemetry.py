"""PushTelemetry: table of the request and of the response."""

from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response
from moldau.values import Buffer


class PushTelemetryRequest(Request, api_key=72, versions="0", flexible="0+"):
    """Push the metrics of a client (KIP-714)."""

    client_instance_id: UUID = field.uuid("0+")
    subscription_id: int = field.int32("0+")
    terminating: bool = field.boolean("0+")
    compression_type: int = field.int8("0+")
    metrics: Buffer = field.binary("0+")


class PushTelemetryResponse(Response, api_key=72, versions="0", flexible="0+"):
    """Whether the metrics were taken."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
