"""Goal: moves that chaos asks for leave each partition as many replicas as it had, and those that were refused, or that
moved nothing, do not count as faults.

Method: a client that notes them.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from moldau.protocol.messages.elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.chaos.nemesis.nemesis import NOT_DONE
from moldau_jepsen.workloads.operations import ClusterOperations


class NotingClient:
    def __init__(self, replicas, brokers) -> None:
        self.asked: list[list[int]] = []
        partition = SimpleNamespace(partition=0, replicas=replicas)
        self.cluster_metadata = SimpleNamespace(
            topics={"t": SimpleNamespace(partitions=(partition,))}, brokers=dict.fromkeys(brokers)
        )
        self.now_ms = 0.0

    async def wait_update(self, deadline_ms) -> None:
        await trio.lowlevel.checkpoint()

    async def request_any(self, kind, request, *, timeout_ms):
        await trio.lowlevel.checkpoint()
        self.asked.append(request.topics[0].partitions[0].replicas)
        return AlterPartitionReassignmentsResponse()

    def show(self, replicas, brokers) -> None:
        self.cluster_metadata.topics["t"].partitions[0].replicas = replicas
        self.cluster_metadata.brokers = dict.fromkeys(brokers)


def test_a_partition_always_keeps_its_replication_factor() -> None:
    """With one broker left in service, moves gave up all other copies, and no later move asked for them again."""

    async def main() -> None:
        operations = ClusterOperations(real_environment(1), "127.0.0.1:1", "t")
        client = operations._client = NotingClient((1, 2, 3), (1, 2, 3, 4, 5))
        draw = random.Random(1)
        await operations.reassign(draw)
        client.show((4, 5, 1, 2, 3), (1, 2, 3, 4, 5))  # it is on its way
        await operations.reassign(draw)
        assert [len(replicas) for replicas in client.asked] == [3, 3]
        client.show((4, 5, 1), (4,))
        assert await operations.reassign(draw) == "not asked: 1 brokers for 3 replicas"
        client.show((4, 5, 1), (1, 4, 5))
        await operations.reassign(draw)
        assert [sorted(replicas) for replicas in client.asked[2:]] == [[1, 4, 5]]

    trio.run(main)


@pytest.mark.parametrize(
    ("code", "counts"),
    [(ErrorCode.NONE, True), (ErrorCode.REQUEST_TIMED_OUT, True), (ErrorCode.INVALID_REPLICA_ASSIGNMENT, False)],
)
def test_a_refused_move_does_not_count_as_a_fault(code, counts) -> None:
    """One without an answer in time may have begun."""
    answers = {
        "reassign": AlterPartitionReassignmentsResponse(error_code=code),
        "elect": ElectLeadersResponse(error_code=code, replica_election_results=[_elected(ErrorCode.NONE)] * counts),
    }
    for answer in answers.values():
        text = asked_of(answer)
        assert text.startswith(NOT_DONE) is not counts, text


def test_a_move_to_where_the_partition_is_is_no_fault() -> None:
    """With one broker, and one replica, there is no other place."""

    async def main() -> str:
        operations = ClusterOperations(real_environment(1), "127.0.0.1:1", "t")
        client = operations._client = NotingClient((7,), (7,))
        said = await operations.reassign(random.Random(1))
        assert client.asked == []
        return said

    assert trio.run(main) == "not asked: partition 0 is on [7] already"


def test_an_election_that_moves_nothing_is_no_fault() -> None:
    needless = ElectLeadersResponse(replica_election_results=[_elected(ErrorCode.ELECTION_NOT_NEEDED)])
    assert asked_of(needless) == "no effect: 0 of 1 moved, NONE"


def _elected(code: ErrorCode) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic="t", partition_result=[PartitionResult(partition_id=0, error_code=code)])


def asked_of(answer: AlterPartitionReassignmentsResponse | ElectLeadersResponse) -> str:
    """Returns the report of the operation that gets this answer."""

    async def request_any(kind, request, *, timeout_ms):
        await trio.lowlevel.checkpoint()
        return answer

    async def main() -> str:
        operations = ClusterOperations(real_environment(1), "127.0.0.1:1", "t")
        client = operations._client = NotingClient((1, 2, 3), (1, 2, 3))
        client.request_any = request_any
        if isinstance(answer, ElectLeadersResponse):
            return await operations.elect_preferred()
        return await operations.reassign(random.Random(1))

    return trio.run(main)
