"""The place where an admin client finds its cluster: at brokers, or at controllers (KIP-919).

Controllers serve no Metadata. A client with ``bootstrap.controllers`` asks them for a description of the cluster, which
names the controllers and the active one, and takes it for the metadata: its "brokers" are the controllers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from moldau.runtime.net.served_versions import UnsupportedApiError

if TYPE_CHECKING:
    from moldau.protocol.schema import Response

BROKERS: Final = 1
CONTROLLERS: Final = 2
"""Endpoint types of DescribeCluster."""
QUESTION: Final = DescribeClusterRequest(endpoint_type=CONTROLLERS)


def metadata_of(response: Response, peer: str) -> MetadataResponse:
    """Returns the answer of a controller to ``QUESTION`` in the form of Metadata.

    Raises:
        UnsupportedApiError: the peer is a broker, or a controller before Kafka 3.7.
        KafkaError: the peer refused the request; also if the client may do nothing but describe the cluster, because
            controllers demand more for it than brokers.
    """
    assert isinstance(response, DescribeClusterResponse), "the request decides it"
    code = ErrorCode.of(response.error_code)
    if code in (ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE) or (
        code is ErrorCode.NONE and response.endpoint_type != CONTROLLERS
    ):
        raise UnsupportedApiError(DescribeClusterRequest.__api_key__, f"{peer} is no controller that describes others")
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise KafkaError(code, "clients of controllers need the operation ALTER on the cluster (KIP-919)")
    if code is not ErrorCode.NONE:
        raise KafkaError(code, response.error_message)
    return MetadataResponse(
        cluster_id=response.cluster_id,
        controller_id=response.controller_id,
        brokers=[
            MetadataResponseBroker(node_id=each.broker_id, host=each.host, port=each.port) for each in response.brokers
        ],
        topics=[],
    )
