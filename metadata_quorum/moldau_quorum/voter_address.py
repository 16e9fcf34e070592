"""Lets a voter that has moved be found again (KIP-853, UpdateRaftVoter).

The membership says under which host and port each voter is reached. One that was started elsewhere still reaches the
others, but what they send goes to its old place, so it hears of no leader. Then it asks them who leads and where they
look for this voter; if that is not where it is, it tells the leader. A voter that hears of its leader sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.update_raft_voter import (
    KRaftVersionFeature,
    Listener,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from moldau.runtime.log import EventLogger
from moldau.runtime.rpc import RpcConnection
from moldau_quorum.quorum_admin import CONTROLLERS, KRAFT_VERSION, METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.environment import Environment
    from moldau_quorum.log_engine import MetadataLog

CHECK_MS: Final = 2_000
"""How long no leader is known before others are asked; elections take less."""
ASK_TIMEOUT_MS: Final = 5_000
FAILURES: Final = (OSError, trio.TooSlowError, ProtocolError, KafkaError)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """What another voter says of the quorum."""

    leader_id: int
    cluster_id: str
    addresses: Mapping[int, tuple[str, int]]


async def announce_address(
    environment: Environment, log: MetadataLog, address: tuple[str, int], *, listener_name: str
) -> None:
    """Tells the leader where this voter is, whenever the quorum looks for it elsewhere. Runs until cancelled."""
    logger = EventLogger("moldau.voter-address", node=log.node_id)
    while True:
        await trio.sleep(CHECK_MS / 1000)
        if log.leadership.leader_id >= 0:
            continue
        for voter_id, voter in sorted(log.voters.items()):
            if voter_id == log.node_id:
                continue
            try:
                view = await _view(environment, (voter.host, voter.port), log.node_id)
                leader = view.addresses.get(view.leader_id)
                known = view.addresses.get(log.node_id)
                if leader is None or view.leader_id == log.node_id or known in (None, address):
                    continue
                code = await _update(environment, leader, view, log, address, listener_name)
            except FAILURES as error:
                logger.debug("voter-unreachable", voter=voter_id, error=error)
                continue
            told = logger.info if code is ErrorCode.NONE else logger.warning
            told("address-announced", leader=view.leader_id, was=known, now=address, answer=code.name)
            break


async def _view(environment: Environment, target: tuple[str, int], own_id: int) -> QuorumView:
    connection = await _connect(environment, target, own_id)
    try:
        response = await connection.request_as(
            DescribeClusterResponse, DescribeClusterRequest(endpoint_type=CONTROLLERS), timeout_ms=ASK_TIMEOUT_MS
        )
    finally:
        connection.close()
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(response.error_code), response.error_message or "")
    return QuorumView(
        leader_id=response.controller_id,
        cluster_id=response.cluster_id,
        addresses={node.broker_id: (node.host, node.port) for node in response.brokers},
    )


async def _update(
    environment: Environment,
    leader: tuple[str, int],
    view: QuorumView,
    log: MetadataLog,
    address: tuple[str, int],
    listener_name: str,
) -> ErrorCode:
    connection = await _connect(environment, leader, log.node_id)
    try:
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        described = await connection.request_as(
            DescribeQuorumResponse,
            DescribeQuorumRequest(
                topics=[DescribeQuorumRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
            ),
            timeout_ms=ASK_TIMEOUT_MS,
        )
        if described.error_code != ErrorCode.NONE:
            return ErrorCode.of(described.error_code)
        request = UpdateRaftVoterRequest(
            cluster_id=view.cluster_id or None,
            current_leader_epoch=described.topics[0].partitions[0].leader_epoch,
            voter_id=log.node_id,
            voter_directory_id=log.voters[log.node_id].directory_id,
            listeners=[Listener(name=listener_name, host=address[0], port=address[1])],
            kraft_version_feature=KRaftVersionFeature(
                min_supported_version=KRAFT_VERSION, max_supported_version=KRAFT_VERSION
            ),
        )
        response = await connection.request_as(UpdateRaftVoterResponse, request, timeout_ms=ASK_TIMEOUT_MS)
    finally:
        connection.close()
    return ErrorCode.of(response.error_code)


async def _connect(environment: Environment, target: tuple[str, int], own_id: int) -> RpcConnection:
    return await RpcConnection.open(environment, *target, f"controller-{own_id}", timeout_ms=ASK_TIMEOUT_MS)
