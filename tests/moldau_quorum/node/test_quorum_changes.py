"""The quorum changes: voters join and leave, leadership is handed over, controllers are asked to stop.

Each test runs production controllers and broker sessions; only the disk, the network and time are simulated.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.add_raft_voter import Listener as RaftListener
from moldau.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.runtime.config import BROKER_CONFIG, quorum_voters
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.context import Result
from moldau_quorum.log.port import MembershipChangeError
from moldau_quorum.metadata.records import RemoveTopicRecord
from moldau_quorum.node import active_controller as active_module
from moldau_quorum.node.server import _known_voters
from moldau_quorum.node.voters.leadership_transfer import ControllersUnreachableError, transfer_leadership
from support.quorum.cluster import TestCluster, create, eventually, topic


def test_the_quorum_describes_itself_and_refuses_strangers() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
                ),
                DescribeQuorumRequestTopicData(
                    topic_name="t", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
                ),
            ]
        )
        response = await client.request(request, DescribeQuorumResponse, timeout_ms=5000)
        known = response.topics[0].partitions[0]
        active = await cluster.wait_active()
        assert known.leader_id == active.node_id
        assert sorted(voter.replica_id for voter in known.current_voters) == [101, 102, 103]
        assert all(voter.log_end_offset > 0 for voter in known.current_voters)
        assert known.high_watermark > 0
        assert response.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [node.node_id for node in response.nodes] == [101, 102, 103]

        host, port = cluster.voters[active.node_id]
        connection = await RpcConnection.open(world.node("admin").environment, host, port, "admin")
        described = await connection.request(DescribeClusterRequest(endpoint_type=2))
        assert [node.broker_id for node in described.brokers] == [101, 102, 103]
        assert described.controller_id == active.node_id
        mismatched = await connection.request(DescribeClusterRequest())
        assert mismatched.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
        stranger = AddRaftVoterRequest(cluster_id="other", voter_id=104)
        refused = await connection.request(stranger)
        assert refused.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
        removed = await connection.request(RemoveRaftVoterRequest(cluster_id=None, voter_id=777))
        assert removed.error_code == ErrorCode.VOTER_NOT_FOUND

        # Each other node says that it is not the one to ask.
        passive = next(node_id for node_id in cluster.voters if node_id != active.node_id)
        host, port = cluster.voters[passive]
        connection = await RpcConnection.open(world.node("admin").environment, host, port, "admin")
        refused = await connection.request(topic("t"))
        assert refused.topics[0].error_code == ErrorCode.NOT_CONTROLLER
        refused = await connection.request(DescribeQuorumRequest())
        assert refused.error_code == ErrorCode.NOT_CONTROLLER

    run_world(main, 41)


def test_brokers_are_observers_of_the_quorum() -> None:
    """An operator sees which broker lags behind the metadata, as with Kafka's ``kafka-metadata-quorum``."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        asked = DescribeQuorumRequestPartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[asked])]
        )

        async def seen() -> tuple[dict[int, tuple[int, bool]], int]:
            response = await client.request(request, DescribeQuorumResponse, timeout_ms=5000)
            found = response.topics[0].partitions[0]
            now_ms = world.node("admin").environment.clock.wall_ms()
            observers = {
                each.replica_id: (
                    each.log_end_offset,
                    0 < each.last_caught_up_timestamp <= each.last_fetch_timestamp <= now_ms,
                )
                for each in found.observers
            }
            return observers, found.high_watermark

        await create(client, topic("t"))
        with trio.fail_after(30):
            observers, high_watermark = await seen()
            while observers != dict.fromkeys((1, 2, 3), (high_watermark, True)):
                await trio.sleep(0.1)
                observers, high_watermark = await seen()
            cluster.brokers[2].node.kill()
            while 2 in observers:
                await trio.sleep(0.1)
                observers, _ = await seen()
        assert sorted(observers) == [1, 3], "a fenced broker follows no longer"

    run_world(main, 1)


def test_a_requested_hand_over_fences_no_broker() -> None:
    """The quorum hands over on request, and brokers follow without being fenced."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        for _ in range(3):
            active = await cluster.wait_active()
            await active.running.log.transfer_leadership()
            following = await cluster.wait_active(other_than=active.node_id)
            await trio.sleep(4)
            assert following.running.active.statistics().brokers_fenced == 0
            image = following.running.machine.image
            assert not any(broker.fenced for broker in image.brokers.values())

    run_world(main, 59)


def test_the_only_voter_hands_nothing_over() -> None:
    """The answer spoke of a node None."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        cluster.start_controllers()
        await cluster.wait_active()
        environment = world.node("admin").environment
        with pytest.raises(KafkaError, match="node 101 is the only voter, so no other node can lead"):
            await transfer_leadership(environment, cluster.voters)
        assert await transfer_leadership(environment, cluster.voters, target_id=101) == 101

    run_world(main, 62)


def test_leadership_is_handed_to_a_named_voter() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        environment = world.node("admin").environment
        active = await cluster.wait_active()
        target = next(node_id for node_id in cluster.voters if node_id != active.node_id)
        await transfer_leadership(environment, cluster.voters, target_id=target)
        await eventually(lambda: cluster.active() is cluster.controllers[target])
        with pytest.raises(KafkaError, match="no voter"):
            await transfer_leadership(environment, cluster.voters, target_id=999)
        # Where no controller answers this client, the reason is named; no leader need be missing.
        closed = {node_id: (host, port + 1) for node_id, (host, port) in cluster.voters.items()}
        with pytest.raises(ControllersUnreachableError, match=r"^controller 101 at .*refused.*; controller 102"):
            await transfer_leadership(environment, closed, target_id=target)
        await create(cluster.client(), topic("t", factor=1))

    run_world(main, 61)


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_hand_over_to_a_dead_voter_changes_nothing(cut_off: bool) -> None:
    """A change that is asked for meanwhile is decided when the hand-over has failed, by the same controller."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        client = cluster.client()
        await create(client, topic("before", factor=1))
        active = await cluster.wait_active()
        leadership = active.running.log.leadership
        target = next(node_id for node_id in cluster.voters if node_id != active.node_id)
        if cut_off:
            rest = [c.node.name for c in cluster.controllers.values() if c.node_id != target]
            world.network.cut_between([cluster.controllers[target].node.name], rest)
        else:
            cluster.controllers[target].kill()
        asked = trio.current_time()
        async with trio.open_nursery() as nursery:

            async def hand_over() -> None:
                with pytest.raises(MembershipChangeError):
                    await active.running.log.transfer_leadership(target)

            nursery.start_soon(hand_over)
            await trio.sleep(0.01)
            await create(client, topic("meanwhile", factor=1))
            assert trio.current_time() - asked < 2
        assert active.running.log.leadership == leadership
        assert active.running.active.is_active
        await create(client, topic("after", factor=1))
        assert not world.failures

    run_world(main, 103)


def test_an_unnamed_hand_over_goes_to_a_voter_that_answers() -> None:
    """Without a name the leadership goes to a voter that answers."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        active = await cluster.wait_active()
        first, second = (node_id for node_id in cluster.voters if node_id != active.node_id)
        cluster.controllers[first].kill()
        await trio.sleep(1)  # nothing is written meanwhile: the dead one holds as much as the other
        await active.running.log.transfer_leadership()
        following = await cluster.wait_active(other_than=active.node_id)
        assert following.node_id == second

    run_world(main, 107)


@pytest.mark.parametrize("lost", ["connection", "leader"])
def test_an_abandoned_addition_leaves_no_learner(lost: str) -> None:
    """No client waits for the answer any more: it has left, or the leader that was asked has died."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        active = await cluster.wait_active()
        host, port = cluster.voters[active.node_id]
        connection = await RpcConnection.open(world.node("admin").environment, host, port, "admin")
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=50_000,
            voter_id=104,
            voter_directory_id=UUID(int=400),
            listeners=[RaftListener(name="CONTROLLER", host="nowhere", port=9093)],
        )

        def learners() -> list[int]:
            leader = cluster.active()
            return [] if leader is None else sorted(leader.running.log.node.configuration.learners)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.request, request)
            await eventually(lambda: learners() == [104])
            nursery.cancel_scope.cancel()
        if lost == "connection":
            connection.close()
        else:
            active.kill()
        await trio.sleep(1)
        await cluster.wait_active(other_than=active.node_id if lost == "leader" else -1)
        assert learners() == [104]
        await trio.sleep(12)
        assert cluster.active() is not None
        assert learners() == []
        joining = cluster.join(104)
        joining.start()
        await eventually(lambda: joining.running is not None)
        request.listeners = [RaftListener(name="CONTROLLER", host="c104", port=9093)]
        request.voter_directory_id = joining.directory_id()
        added = await cluster.client().request(request, AddRaftVoterResponse, timeout_ms=30_000)
        assert (added.error_code, added.error_message) == (0, None)
        assert not world.failures

    run_world(main, 127)


@pytest.mark.parametrize(("voter_id", "host", "port"), [(-1, "c104", 9093), (104, "", 9093), (104, "c" * 300, 9093)])
def test_an_impossible_voter_never_enters_the_log(voter_id: int, host: str, port: int) -> None:
    """An entry that followers cannot decode would stay in the log of its leader, which could then never start."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        active = await cluster.wait_active()
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=5_000,
            voter_id=voter_id,
            voter_directory_id=UUID(int=4),
            listeners=[RaftListener(name="CONTROLLER", host=host, port=port)],
        )
        refused = await cluster.client().request(request, AddRaftVoterResponse, timeout_ms=10_000)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message
        active.kill()
        await cluster.wait_active(other_than=active.node_id)
        active.start()
        await eventually(lambda: active.running is not None)
        await create(cluster.client(), topic("after", factor=1))
        await eventually(lambda: "after" in active.running.machine.image.topics_by_name)
        assert not world.failures

    run_world(main, 109)


def test_a_decision_that_cannot_be_replayed_is_not_written(monkeypatch) -> None:
    """The controller replays what it proposes before it enters the log, with the decoder of the replicas."""

    def decide(request, knowledge):
        records = (RemoveTopicRecord(topic_id=UUID(int=77)),)
        return Result(records=records, response=CreateTopicsResponse(topics=[]))

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        active = await cluster.wait_active()
        end = active.running.log.status().log_end_index
        with monkeypatch.context() as planted:
            planted.setitem(active_module.CHANGES, CreateTopicsRequest.__api_key__, decide)
            host, port = cluster.voters[active.node_id]
            connection = await RpcConnection.open(world.node("admin").environment, host, port, "admin")
            refused = await connection.request(topic("t"))
            assert refused.topics[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert active.running.log.status().log_end_index == end
        await create(cluster.client(), topic("after", factor=1))
        assert await cluster.wait_active() is active
        assert not world.failures

    run_world(main, 113)


async def expect_not_added(client, request: AddRaftVoterRequest) -> None:
    response = await client.request(request, AddRaftVoterResponse, timeout_ms=30_000)
    assert response.error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_REQUEST), response


def test_a_controller_joins_and_another_leaves() -> None:
    """A controller joins and another leaves while the quorum works."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1)
        client = cluster.client()
        await create(client, topic("before", factor=1))

        joining = cluster.join(104)
        joining.start()
        await eventually(lambda: joining.running is not None)
        absent = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=8_000,
            voter_id=105,
            voter_directory_id=UUID(int=5),
            listeners=[RaftListener(name="CONTROLLER", host="nowhere", port=9093)],
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_not_added, client, absent)
            await trio.sleep(2)
            asked = trio.current_time()
            await create(client, topic("meanwhile", factor=1))
            assert trio.current_time() - asked < 0.5, "a slow request delays no other"
        replicas = (await cluster.wait_active()).running.log.status().replicas
        assert [replica.voter.voter_id for replica in replicas] == [101, 102, 103], "no change waits for node 105"
        request = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=20_000,
            voter_id=104,
            voter_directory_id=joining.directory_id(),
            listeners=[RaftListener(name="CONTROLLER", host="c104", port=9093)],
        )
        added = await client.request(request, AddRaftVoterResponse, timeout_ms=30_000)
        assert (added.error_code, added.error_message) == (0, None)
        again = await client.request(request, AddRaftVoterResponse, timeout_ms=30_000)
        assert again.error_code == ErrorCode.DUPLICATE_VOTER
        await eventually(lambda: "before" in joining.running.machine.image.topics_by_name)

        leaving = cluster.controllers[101]
        remove = RemoveRaftVoterRequest(cluster_id=None, voter_id=101)
        removed = await client.request(remove, RemoveRaftVoterResponse, timeout_ms=30_000)
        assert (removed.error_code, removed.error_message) == (0, None)
        leaving.kill()
        await create(client, topic("after", factor=1))
        await eventually(lambda: "after" in joining.running.machine.image.topics_by_name)
        active = await cluster.wait_active()
        assert sorted(active.running.log.voters) == [102, 103, 104]
        # The broker has heard of the new set, and still finds a controller when only that one is left to lead.
        broker = cluster.brokers[1]
        epoch = broker.session.broker_epoch
        await eventually(lambda: sorted(broker.client.voters) == [102, 103, 104])
        cluster.controllers[102].kill()
        response = await broker.client.request(topic("last", factor=1), CreateTopicsResponse, timeout_ms=20_000)
        assert response.topics[0].error_code == 0
        await eventually(lambda: "last" in broker.follower.image.topics_by_name)
        assert (broker.session.broker_epoch, broker.session.fenced) == (epoch, False)
        assert not world.failures

    run_world(main, 67)


def test_a_controller_that_started_alone_finds_its_quorum() -> None:
    """Its log names no voters yet, and while it started again, no controller ran that could name them."""

    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        voters = list(cluster.controllers.values())
        await cluster.wait_active()
        following = cluster.join(104)
        following.start()
        await eventually(lambda: following.running is not None)
        for controller in [*voters, following]:
            controller.kill()
        following.start()
        await trio.sleep(8)
        assert not following.running.log.peers
        for controller in voters:
            controller.start()
        await cluster.wait_active()
        listeners = [RaftListener(name="CONTROLLER", host="c104", port=9093)]
        request = AddRaftVoterRequest(timeout_ms=30_000, voter_id=104, listeners=listeners)
        added = await cluster.client().request(request, AddRaftVoterResponse, timeout_ms=30_000)
        assert (added.error_code, added.error_message) == (0, None)

    run_world(main, 3)


def test_a_controller_that_is_asked_to_stop_hands_over_first() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        for number in range(3):
            await create(client, topic(f"t{number}"))
            active = await cluster.wait_active()
            active.shutdown.set()
            asked = trio.current_time()
            await active.node.wait_ended()
            await create(client, topic(f"u{number}"))
            assert trio.current_time() - asked < 0.25, "no election timeout passes"
            active.start()
            await eventually(lambda: active.running is not None)  # noqa: B023 - waited for within the turn
            await trio.sleep(1)
        statistics = [c.running.active.statistics() for c in cluster.controllers.values()]
        assert sum(each.brokers_fenced for each in statistics) == 0
        assert not world.failures

    run_world(main, 97)


def test_a_lone_controller_stops_at_once_and_a_starting_one_too() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1)
        controller = cluster.controllers[101]
        controller.start()
        await cluster.wait_active()
        controller.shutdown.set()
        with trio.fail_after(0.5):
            await controller.node.wait_ended()
        joining = cluster.join(104)  # looks for a quorum that is not there
        joining.start()
        await trio.sleep(3)
        assert joining.running is None
        joining.shutdown.set()
        with trio.fail_after(0.5):
            await joining.node.wait_ended()

    run_world(main, 101)


def test_the_advice_for_a_new_cluster_can_be_used():
    """An address of IPv6 lacked its brackets, so the node refused what it had advised."""
    keys = {
        "process.roles": "controller",
        "node.id": "7",
        "listeners": "CONTROLLER://[::1]:9093",
        "controller.listener.names": "CONTROLLER",
    }
    config = BROKER_CONFIG.parse(keys | {"controller.quorum.bootstrap.servers": "[::1]:9093"})
    directory = SimpleNamespace(is_new=True, identity=SimpleNamespace(node_id=7))
    with pytest.raises(ValueError, match="names this node alone") as refused:
        trio.run(_known_voters, None, config, directory)
    name, _, value = str(refused.value).partition("set ")[2].split(" ")[0].partition("=")
    (voter,) = quorum_voters(BROKER_CONFIG.parse(keys | {name: value}))
    assert (voter.node_id, voter.host, voter.port) == (7, "::1", 9093)
