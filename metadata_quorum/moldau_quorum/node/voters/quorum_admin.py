"""The quorum for administrators: DescribeQuorum, DescribeCluster, adding and removing voters.

Sources: KIP-595, KIP-853, KIP-919.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.add_raft_voter import Listener as AddedListener
from moldau.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.protocol.messages.update_raft_voter import (
    CurrentLeader,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from moldau.values import ZERO_UUID, join_address
from moldau_quorum.log.port import (
    MembershipBusyError,
    MembershipChangeError,
    MembershipTimeoutError,
    NotLeaderError,
    OutcomeUnknownError,
    VoterEndpoint,
    VoterStatus,
)
from moldau_quorum.metadata.internal_topics import METADATA_TOPIC
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.voters.leadership_transfer import TransferResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_quorum.log.port import MetadataLog
    from moldau_quorum.node.state_machine import MetadataStateMachine

VOTER_CHANGE_TIMEOUT_MS: Final = 60_000
CATCH_UP_SHARE: Final = 0.8
"""Part of an AddRaftVoter's timeout in which the node must catch up; the rest is left for the answer."""
TRANSFER_TIMEOUT_MS: Final = 10_000
FORGET_TIMEOUT_MS: Final = 5_000
BROKERS, CONTROLLERS = 1, 2
KRAFT_VERSION: Final = 1
"""The version of the quorum's own records that a voter must support: that with voters that change (KIP-853)."""
NOT_COMMITTED: Final = "the change was not committed in time, and may still take effect"


class QuorumAdmin:
    """Answers from the log's own status."""

    def __init__(
        self,
        log: MetadataLog,
        machine: MetadataStateMachine,
        *,
        brokers: Callable[[], Sequence[ReplicaState]],
        listener_name: str,
    ) -> None:
        """``brokers`` returns those that follow the log; ``listener_name`` is that of the controllers."""
        self._log = log
        self._machine = machine
        self._brokers = brokers
        self._listener_name = listener_name

    def describe_quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """Describes leader, epoch, high watermark and the progress of each voter and observer.

        Observers are controllers without a vote, and brokers: these report their progress with each heartbeat.

        Raises:
            NotActiveError: this controller does not lead the quorum.
        """
        if not self._log.leadership.active:
            raise NotActiveError
        status = self._log.status()
        topics: list[DescribeQuorumResponseTopicData] = []
        described = False  # the partition with a quorum is described once, however often it is named
        for topic in request.topics:
            partitions: list[DescribeQuorumResponsePartitionData] = []
            for partition in topic.partitions:
                known = topic.topic_name == METADATA_TOPIC and partition.partition_index == 0
                if known and described:
                    continue
                described = described or known
                if not known:
                    partitions.append(
                        DescribeQuorumResponsePartitionData(
                            partition_index=partition.partition_index,
                            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                            error_message=f"the only partition with a quorum is {METADATA_TOPIC}-0",
                        )
                    )
                    continue
                partitions.append(
                    DescribeQuorumResponsePartitionData(
                        partition_index=0,
                        error_message=None,
                        leader_id=status.leader_id,
                        leader_epoch=status.epoch,
                        high_watermark=status.high_watermark,
                        current_voters=[_state(replica) for replica in status.replicas if replica.is_voter],
                        observers=[
                            *(_state(replica) for replica in status.replicas if not replica.is_voter),
                            *self._brokers(),
                        ],
                    )
                )
            topics.append(DescribeQuorumResponseTopicData(topic_name=topic.topic_name, partitions=partitions))
        nodes = [
            Node(node_id=voter_id, listeners=[Listener(name=self._listener_name, host=voter.host, port=voter.port)])
            for voter_id, voter in sorted(self._log.voters.items())
        ]
        return DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)

    def describe_cluster(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """Describes the controllers (KIP-919); brokers describe brokers."""
        if request.endpoint_type != CONTROLLERS:
            return DescribeClusterResponse(
                error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == BROKERS
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message="a controller listener describes controllers: endpoint type 2",
            )
        return DescribeClusterResponse(
            endpoint_type=CONTROLLERS,
            cluster_id=self._machine.image.cluster_id,
            controller_id=self._log.leadership.leader_id,
            brokers=[
                DescribeClusterBroker(broker_id=voter_id, host=voter.host, port=voter.port)
                for voter_id, voter in sorted(self._log.voters.items())
            ],
        )

    async def add_voter(self, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
        """Catches a node up, then makes it a voter.

        Raises:
            NotActiveError: this controller does not lead the quorum.
        """
        refusal = self._cluster_refusal(request.cluster_id)
        if refusal is not None:
            return AddRaftVoterResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, error_message=refusal)
        self._check_active()
        listener = self._listener_of(request)
        if listener is None:
            return AddRaftVoterResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"no listener {self._listener_name} is given, at which the controllers reach each other",
            )
        if request.voter_id in self._log.voters:
            return AddRaftVoterResponse(
                error_code=ErrorCode.DUPLICATE_VOTER, error_message=f"node {request.voter_id} votes already"
            )
        voter = VoterEndpoint(
            voter_id=request.voter_id,
            directory_id=request.voter_directory_id,
            host=listener.host,
            port=listener.port,
        )
        problem = voter.problem()
        if problem is not None:
            return AddRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=problem)
        wanted_ms = min(request.timeout_ms, VOTER_CHANGE_TIMEOUT_MS) if request.timeout_ms > 0 else 30_000
        timeout_ms = wanted_ms * CATCH_UP_SHARE
        try:
            with trio.fail_after(timeout_ms / 1000):
                await self._log.add_voter(voter)
        except (NotLeaderError, OutcomeUnknownError) as error:
            raise NotActiveError from error
        except MembershipChangeError as error:
            return AddRaftVoterResponse(error_code=_code_of(error), error_message=str(error))
        except trio.TooSlowError:
            if voter.voter_id in self._log.voters:
                return AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=NOT_COMMITTED)
            await self._forget_learner(voter)
            return AddRaftVoterResponse(
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message=f"node {voter.voter_id} did not catch up at "
                f"{join_address(voter.host, voter.port)} within "
                f"{timeout_ms / 1000:g} s, and was not added: does it run, with that id and address?",
            )
        return AddRaftVoterResponse(error_message=None)

    def _check_active(self) -> None:
        """Checks that this controller leads: another one may not know the newest voters.

        Raises:
            NotActiveError: it does not.
        """
        if not self._log.leadership.active:
            raise NotActiveError

    def _listener_of(self, request: AddRaftVoterRequest) -> AddedListener | None:
        """Returns the listener of the controllers; a single one is it whatever its name."""
        if len(request.listeners) == 1:
            return request.listeners[0]
        return next((one for one in request.listeners if one.name.upper() == self._listener_name.upper()), None)

    async def _forget_learner(self, voter: VoterEndpoint) -> None:
        """Takes a node out again that was still catching up."""
        lost = (NotLeaderError, OutcomeUnknownError, MembershipChangeError)
        with trio.move_on_after(FORGET_TIMEOUT_MS / 1000), contextlib.suppress(*lost):
            if voter.voter_id not in self._log.voters:
                await self._log.remove_voter(voter.voter_id, voter.directory_id)

    async def remove_voter(self, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
        """Removes a voter.

        Raises:
            NotActiveError: this controller does not lead the quorum.
        """
        refusal = self._cluster_refusal(request.cluster_id)
        if refusal is not None:
            return RemoveRaftVoterResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, error_message=refusal)
        self._check_active()
        voter = self._log.voters.get(request.voter_id)
        if voter is None or ZERO_UUID != request.voter_directory_id != voter.directory_id != ZERO_UUID:
            directory = f" with directory {request.voter_directory_id}" if voter is not None else ""
            return RemoveRaftVoterResponse(
                error_code=ErrorCode.VOTER_NOT_FOUND, error_message=f"node {request.voter_id}{directory} is no voter"
            )
        try:
            with trio.fail_after(VOTER_CHANGE_TIMEOUT_MS / 1000):
                await self._log.remove_voter(request.voter_id, request.voter_directory_id)
        except (NotLeaderError, OutcomeUnknownError) as error:
            raise NotActiveError from error
        except MembershipChangeError as error:
            return RemoveRaftVoterResponse(error_code=_code_of(error), error_message=str(error))
        except trio.TooSlowError:
            return RemoveRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=NOT_COMMITTED)
        return RemoveRaftVoterResponse(error_message=None)

    async def update_voter(self, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
        """Stores the address at which a voter is reached from now on.

        Raises:
            NotActiveError: this controller does not lead the quorum.
        """
        code = self._update_refusal(request)
        listener = next((one for one in request.listeners if one.name.upper() == self._listener_name), None)
        if code is not ErrorCode.NONE or listener is None:
            code = code or ErrorCode.INVALID_REQUEST
            return UpdateRaftVoterResponse(error_code=code, current_leader=self._current_leader())
        voter = VoterEndpoint(
            voter_id=request.voter_id, directory_id=request.voter_directory_id, host=listener.host, port=listener.port
        )
        if voter.problem() is not None:
            return UpdateRaftVoterResponse(error_code=ErrorCode.INVALID_REQUEST, current_leader=self._current_leader())
        try:
            with trio.fail_after(VOTER_CHANGE_TIMEOUT_MS / 1000):
                await self._log.update_voter(voter)
        except (NotLeaderError, OutcomeUnknownError) as error:
            raise NotActiveError from error
        except MembershipChangeError as error:
            code = _code_of(error)  # the answer has no room for more
        except trio.TooSlowError:
            code = ErrorCode.REQUEST_TIMED_OUT
        return UpdateRaftVoterResponse(error_code=code, current_leader=self._current_leader())

    def _update_refusal(self, request: UpdateRaftVoterRequest) -> ErrorCode:
        """Checks in the order of KIP-853: cluster, leadership, epoch, voter, versions.

        Only voters send this, and they know their cluster: without its id another cluster's controller of the same
        node id could take the voter's place.
        """
        if not request.cluster_id or self._cluster_refusal(request.cluster_id) is not None:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        leadership = self._log.leadership
        if not leadership.active:
            raise NotActiveError
        if request.current_leader_epoch < leadership.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if request.current_leader_epoch > leadership.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        voter = self._log.voters.get(request.voter_id)
        if voter is None or voter.directory_id not in (ZERO_UUID, request.voter_directory_id):
            return ErrorCode.VOTER_NOT_FOUND
        versions = request.kraft_version_feature
        if not versions.min_supported_version <= KRAFT_VERSION <= versions.max_supported_version:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _current_leader(self) -> CurrentLeader:
        leadership = self._log.leadership
        leader = self._log.voters.get(leadership.leader_id)
        return CurrentLeader(
            leader_id=leadership.leader_id,
            leader_epoch=leadership.epoch,
            host=leader.host if leader is not None else "",
            port=leader.port if leader is not None else 0,
        )

    async def transfer(self, target_id: int) -> TransferResponse:
        """Hands the leadership to a voter; -1 leaves the choice to the quorum."""
        if not self._log.leadership.active:
            return TransferResponse(
                error_code=ErrorCode.NOT_CONTROLLER, message="", leader_id=self._log.leadership.leader_id
            )
        if target_id != -1 and target_id not in self._log.voters:
            return TransferResponse(
                error_code=ErrorCode.VOTER_NOT_FOUND,
                message=f"node {target_id} is no voter; voters are {sorted(self._log.voters)}",
                leader_id=self._log.leadership.leader_id,
            )
        code, message = ErrorCode.NONE, ""
        try:
            with trio.fail_after(TRANSFER_TIMEOUT_MS / 1000):
                await self._log.transfer_leadership(None if target_id == -1 else target_id)
        except NotLeaderError as error:
            code, message = ErrorCode.NOT_CONTROLLER, str(error)
        except MembershipChangeError as error:
            code, message = ErrorCode.INVALID_REQUEST, str(error)
        except trio.TooSlowError:
            code, message = ErrorCode.REQUEST_TIMED_OUT, "the other voter did not take over in time"
        return TransferResponse(error_code=code, message=message, leader_id=self._log.leadership.leader_id)

    def _cluster_refusal(self, cluster_id: str | None) -> str | None:
        own = self._machine.image.cluster_id
        if cluster_id and own and cluster_id != own:
            return f"this is cluster {own}, not {cluster_id}"
        return None


def _code_of(error: MembershipChangeError) -> ErrorCode:
    """Returns the code of a refused change; later the same change may succeed, unless the request itself is wrong."""
    passing = isinstance(error, MembershipBusyError | MembershipTimeoutError)
    return ErrorCode.REQUEST_TIMED_OUT if passing else ErrorCode.INVALID_REQUEST


def _state(replica: VoterStatus) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.voter.voter_id,
        replica_directory_id=replica.voter.directory_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_timestamp_ms,
        last_caught_up_timestamp=replica.last_caught_up_timestamp_ms,
    )
