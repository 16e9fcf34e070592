"""Discovery of the voters from ``controller.quorum.bootstrap.servers`` (KIP-853); any controller knows all voters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import join_address
from moldau_quorum.broker_side.reachability import WARNING_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.runtime.ports.environment import Environment

CONTROLLERS: Final = 2
ASK_TIMEOUT_MS: Final = 2_000
RETRY_MS: Final = 500


async def discover_voters(
    environment: Environment, servers: Iterable[tuple[str, int]], *, client_id: str
) -> dict[int, tuple[str, int]]:
    """Asks the servers in turn until one answers; returns host and port of each voter by id.

    The function repeats this until it succeeds; the caller sets the deadline.

    Raises:
        ValueError: ``servers`` is empty.
    """
    addresses = list(servers)
    if not addresses:
        raise ValueError("controller.quorum.bootstrap.servers is empty")
    log = EventLogger("moldau.discovery", client=client_id)
    warned, due_s = "", -math.inf
    while True:
        causes: list[str] = []
        for host, port in addresses:
            try:
                voters = await _ask(environment, host, port, client_id)
            except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
                causes.append(f"{join_address(host, port)}: {str(error) or type(error).__name__}")
                continue
            if voters:
                return voters
            causes.append(f"{join_address(host, port)}: knows no voters yet")
        cause = "; ".join(causes)
        if cause != warned or trio.current_time() >= due_s:
            warned, due_s = cause, trio.current_time() + WARNING_INTERVAL_MS / 1000
            log.warning("no-controller-answers", cause=cause)
        await trio.sleep(RETRY_MS / 1000)


async def _ask(environment: Environment, host: str, port: int, client_id: str) -> dict[int, tuple[str, int]]:
    connection = await RpcConnection.open(environment, host, port, client_id, timeout_ms=ASK_TIMEOUT_MS)
    try:
        response = await connection.request_as(
            DescribeClusterResponse, DescribeClusterRequest(endpoint_type=CONTROLLERS), timeout_ms=ASK_TIMEOUT_MS
        )
    finally:
        connection.close()
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(response.error_code), response.error_message or "")
    return {node.broker_id: (node.host, node.port) for node in response.brokers}
