"""Asks the other voters which feature levels they support, before a level is changed (KIP-584).

What a voter supports is asked of it and not read from the metadata: at the moment it matters, the metadata may still be
at a level that has no words for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau_quorum.log.port import VoterEndpoint

FeatureRanges = dict[str, tuple[int, int]]
ASK_TIMEOUT_MS: Final = 2_000
"""How long a voter may take to answer; one that does not counts as one that supports nothing."""


async def ask_controller_features(
    environment: Environment, voters: Mapping[int, VoterEndpoint], node_id: int
) -> dict[int, FeatureRanges | None]:
    """Returns the lowest and the highest level of each feature, by voter; None for a voter that did not answer.

    All but this node are asked at once.
    """
    answers: dict[int, FeatureRanges | None] = {voter_id: None for voter_id in sorted(voters) if voter_id != node_id}
    logger = EventLogger("moldau.controller-features", node=node_id)

    async def ask(voter_id: int, voter: VoterEndpoint) -> None:
        try:
            with trio.fail_after(ASK_TIMEOUT_MS / 1000):
                answers[voter_id] = await _ask(environment, voter, f"controller-{node_id}")
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            logger.warning("no-answer", voter=voter_id, error=error)

    async with trio.open_nursery() as nursery:
        for voter_id in answers:
            nursery.start_soon(ask, voter_id, voters[voter_id])
    return answers


async def _ask(environment: Environment, voter: VoterEndpoint, client_id: str) -> FeatureRanges:
    connection = await RpcConnection.open(environment, voter.host, voter.port, client_id, timeout_ms=ASK_TIMEOUT_MS)
    try:
        request = ApiVersionsRequest(client_software_name="moldau", client_software_version="1")
        response = await connection.request_as(ApiVersionsResponse, request, timeout_ms=ASK_TIMEOUT_MS)
    finally:
        connection.close()
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(response.error_code))
    return {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
