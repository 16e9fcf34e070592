"""BrokerRegistration: table of the request and of the response."""

from collections.abc import Sequence
from uuid import UUID

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class Listener(Struct):
    """An element of ``listeners`` in ``BrokerRegistrationRequest``."""

    name: str = field.string("0+")
    host: str = field.string("0+")
    port: int = field.uint16("0+")
    security_protocol: int = field.int16("0+")


class Feature(Struct):
    """An element of ``features`` in ``BrokerRegistrationRequest``."""

    name: str = field.string("0+")
    min_supported_version: int = field.int16("0+")
    max_supported_version: int = field.int16("0+")


class BrokerRegistrationRequest(Request, api_key=62, versions="0-4", flexible="0+"):
    """A broker registers with the controller (KIP-631, KIP-966 previous epoch)."""

    broker_id: int = field.int32("0+")
    cluster_id: str = field.string("0+")
    incarnation_id: UUID = field.uuid("0+")
    listeners: Sequence[Listener] = field.array(Listener, "0+")
    features: Sequence[Feature] = field.array(Feature, "0+")
    rack: str | None = field.string("0+", nullable="0+")
    is_migrating_zk_broker: bool = field.boolean("1+")
    log_dirs: Sequence[UUID] = field.uuid_array("2+")
    previous_broker_epoch: int = field.int64("3+", default=-1)


class BrokerRegistrationResponse(Response, api_key=62, versions="0-4", flexible="0+"):
    """The broker epoch granted."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    broker_epoch: int = field.int64("0+", default=-1)
