"""DescribeCluster: table of the request and of the response."""

from collections.abc import Sequence

from moldau.protocol import field
from moldau.protocol.schema import Request, Response, Struct


class DescribeClusterRequest(Request, api_key=60, versions="0-2", flexible="0+"):
    """Ask for the brokers and the controller (KIP-700, KIP-919 controllers, KIP-1073 fenced brokers)."""

    include_cluster_authorized_operations: bool = field.boolean("0+")
    endpoint_type: int = field.int8("1+", default=1)
    include_fenced_brokers: bool = field.boolean("2+")


class DescribeClusterBroker(Struct):
    """An element of ``brokers`` in ``DescribeClusterResponse``."""

    broker_id: int = field.int32("0+")
    host: str = field.string("0+")
    port: int = field.int32("0+")
    rack: str | None = field.string("0+", nullable="0+", default=None)
    is_fenced: bool = field.boolean("2+")


class DescribeClusterResponse(Response, api_key=60, versions="0-2", flexible="0+"):
    """Cluster id, controller and endpoints."""

    throttle_time_ms: int = field.int32("0+")
    error_code: int = field.int16("0+")
    error_message: str | None = field.string("0+", nullable="0+", default=None)
    endpoint_type: int = field.int8("1+", default=1)
    cluster_id: str = field.string("0+")
    controller_id: int = field.int32("0+", default=-1)
    brokers: Sequence[DescribeClusterBroker] = field.array(DescribeClusterBroker, "0+")
    cluster_authorized_operations: int = field.int32("0+", default=-2147483648)
