"""Lets a controller without a leader find its quorum, and be found by it (KIP-853, UpdateRaftVoter).

The membership contains host and port of each voter. A voter that was started elsewhere still reaches the others, but
their messages go to its old address, so it has no leader. It then asks them for the leader and for the address that
they have for it. If that address is wrong, it reports its own to the leader. A voter that was away while the membership
changed may have a leader that it does not know, or knows at a former address, and refuses its messages. It learns of
that leader in the same way. A controller that receives messages of its leader sends nothing. The only voter of a quorum
always leads, and no other one can correct its address: it takes that of its own file.

A controller that waits to be added knows no other from its log. It also asks the servers of its file
(``controller.quorum.bootstrap.servers``): when it started, none of them may have answered.
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
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import join_address
from moldau_quorum.log.port import MetadataLogError, VoterEndpoint
from moldau_quorum.metadata.internal_topics import METADATA_TOPIC
from moldau_quorum.node.voters.quorum_admin import CONTROLLERS, KRAFT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from moldau.runtime.ports.environment import Environment
    from moldau_quorum.log.port import MetadataLog

CHECK_MS: Final = 2_000
"""How long no leader is known before others are asked; elections take less."""
ASK_TIMEOUT_MS: Final = 5_000
FAILURES: Final = (OSError, trio.TooSlowError, ProtocolError, KafkaError)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """Another voter's view of the quorum."""

    leader_id: int
    cluster_id: str
    addresses: Mapping[int, tuple[str, int]]


class QuorumSearch:
    """Asks other controllers whenever this one hears of no leader."""

    def __init__(
        self,
        environment: Environment,
        log: MetadataLog,
        *,
        directory_id: UUID,
        cluster_id: Callable[[], str],
        address: tuple[str, int] | None,
        listener_name: str,
        servers: Sequence[tuple[str, int]] = (),
    ) -> None:
        """``address`` is where this node's own file says that it is reached, None where that file does not say it.

        ``servers`` are controllers that this file names without their ids.
        """
        self._environment = environment
        self._log = log
        self._directory_id = directory_id
        self._cluster_id = cluster_id
        self._address = address
        self._listener_name = listener_name
        self._servers = tuple(servers)
        self._logger = EventLogger("moldau.voter-address", node=log.node_id)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await trio.sleep(CHECK_MS / 1000)
            if self._log.leadership.leader_id >= 0:
                await self._move_alone()
                continue
            known = [address for _, address in sorted(self._log.peers.items())]
            for address in dict.fromkeys([*known, *self._servers]):
                try:
                    view = await ask_quorum_view(self._environment, address, self._log.node_id)
                    settled = await self._take(view)
                except FAILURES as error:
                    self._logger.debug("voter-unreachable", voter=join_address(*address), error=error)
                    continue
                if settled:
                    break

    async def _move_alone(self) -> None:
        """Takes over the address of the file if this node is the only voter, and the membership has another one."""
        node_id, voters = self._log.node_id, self._log.voters
        if self._address is None or set(voters) != {node_id} or not self._log.leadership.active:
            return
        known = (voters[node_id].host, voters[node_id].port)
        if known == self._address:
            return
        host, port = self._address
        moved = VoterEndpoint(voter_id=node_id, directory_id=self._directory_id, host=host, port=port)
        try:
            with trio.fail_after(ASK_TIMEOUT_MS / 1000):
                await self._log.update_voter(moved)
        except (MetadataLogError, trio.TooSlowError) as error:
            self._logger.warning("address-not-taken", was=known, now=self._address, error=error)
        else:
            self._logger.info("address-taken", was=known, now=self._address)

    async def _take(self, view: QuorumView) -> bool:
        """Learns what another controller knows; returns whether no further one need be asked."""
        own_cluster = self._cluster_id()
        if own_cluster and view.cluster_id and view.cluster_id != own_cluster:
            self._logger.warning("foreign-controller", cluster=view.cluster_id, own=own_cluster)
            return False
        # Addresses that this node has already may be as old there, unless that controller hears a leader.
        known_here = {} if view.leader_id >= 0 else self._log.peers
        self._log.learn_voters({node: at for node, at in view.addresses.items() if node not in known_here})
        leader = view.addresses.get(view.leader_id)
        known = view.addresses.get(self._log.node_id)
        if leader is None or view.leader_id == self._log.node_id or known is None:
            return False
        if self._address is None or known == self._address or not own_cluster:
            return False  # a node that does not know its cluster has never been part of it, so it cannot have moved
        code = await self._update(leader, own_cluster, self._address)
        reported = self._logger.info if code is ErrorCode.NONE else self._logger.warning
        reported("address-announced", leader=view.leader_id, was=known, now=self._address, answer=code.name)
        return True

    async def _update(self, leader: tuple[str, int], cluster_id: str, address: tuple[str, int]) -> ErrorCode:
        node_id = self._log.node_id
        connection = await _connect(self._environment, leader, node_id)
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
                cluster_id=cluster_id,
                current_leader_epoch=described.topics[0].partitions[0].leader_epoch,
                voter_id=node_id,
                voter_directory_id=self._directory_id,
                listeners=[Listener(name=self._listener_name, host=address[0], port=address[1])],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=KRAFT_VERSION, max_supported_version=KRAFT_VERSION
                ),
            )
            response = await connection.request_as(UpdateRaftVoterResponse, request, timeout_ms=ASK_TIMEOUT_MS)
        finally:
            connection.close()
        return ErrorCode.of(response.error_code)


async def ask_quorum_view(environment: Environment, target: tuple[str, int], own_id: int) -> QuorumView:
    """Asks a controller for its view of the quorum.

    Raises:
        OSError: it cannot be reached, or left.
        TooSlowError: it did not answer within ``ASK_TIMEOUT_MS``.
        ProtocolError: its answer is no answer of a controller.
        KafkaError: it refused.
    """
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


async def ask_leader_wall_ms(environment: Environment, leader: tuple[str, int], own_id: int) -> int:
    """Asks the leader of the quorum for the time of its wall clock, in milliseconds since 1970.

    The leader states it as the time of its own last fetch (KIP-836).

    Raises:
        OSError: the leader cannot be reached, or left.
        TooSlowError: it did not answer within ``ASK_TIMEOUT_MS``.
        ProtocolError: its answer is no answer of a controller.
        KafkaError: it refused, or leads no longer.
    """
    connection = await _connect(environment, leader, own_id)
    try:
        partition = DescribeQuorumRequestPartitionData(partition_index=0)
        topic = DescribeQuorumRequestTopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        described = await connection.request_as(
            DescribeQuorumResponse, DescribeQuorumRequest(topics=[topic]), timeout_ms=ASK_TIMEOUT_MS
        )
    finally:
        connection.close()
    if described.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(described.error_code), described.error_message or "")
    found = described.topics[0].partitions[0]
    for replica in found.current_voters:
        if replica.replica_id == found.leader_id and replica.last_fetch_timestamp >= 0:
            return replica.last_fetch_timestamp
    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader does not describe itself")


async def _connect(environment: Environment, target: tuple[str, int], own_id: int) -> RpcConnection:
    return await RpcConnection.open(environment, *target, f"controller-{own_id}", timeout_ms=ASK_TIMEOUT_MS)
