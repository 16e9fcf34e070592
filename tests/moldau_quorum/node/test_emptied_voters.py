"""Goal: a voter that has lost its log, and with it its promises, never votes under its old identity.

Method: whole controllers in a simulated world whose directories are removed, emptied or cut while they are down; what
is committed must stay, a majority that needs a forgetful voter must not decide, and remove and add must replace it.
"""

from __future__ import annotations

import random
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from moldau.protocol.messages.add_raft_voter import Listener as RaftListener
from moldau.protocol.messages.create_topics import CreateTopicsResponse
from moldau.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.disk.disk import NodeDisk
from moldau_jepsen.world.disk.disk_profile import DiskProfile
from moldau_jepsen.world.disk.virtual_disk import VirtualDisk
from moldau_jepsen.world.world import run_world
from moldau_quorum.log.port import LogDamagedError, VoterEndpoint
from moldau_quorum.node.directory import META_PROPERTIES, NodeDirectoryError, open_node_directory
from support.proof import proof_beyond
from support.quorum.cluster import PORT, TestCluster, create, eventually, topic
from support.raft.world import NoTrace

DIRECTORY = "/data/__cluster_metadata"


def segments(controller):
    disk = controller.node.environment.disk
    engine = next(name for name in disk.list_directory(DIRECTORY) if name in ("raft", "pysyncobj"))
    path = f"{DIRECTORY}/{engine}"
    return [f"{path}/{name}" for name in disk.list_directory(path) if name.endswith(".wal")]


def remove_log(controller):
    for path in segments(controller):
        controller.node.environment.disk.remove(path)


def empty_log(controller):
    for path in segments(controller):
        file = controller.node.environment.disk.open(path, OpenMode.WRITE)
        file.truncate(0)
        file.close()


def cut_log(controller):
    path = segments(controller)[-1]
    file = controller.node.environment.disk.open(path, OpenMode.WRITE)
    file.truncate(file.size // 2)
    file.close()


def remove_identity(controller):
    controller.node.environment.disk.remove(f"{DIRECTORY}/{META_PROPERTIES}")


def lose_directory(controller):
    controller.node.disk.replace(["/data"])


async def started(world, **settings):
    cluster = TestCluster(world, **settings)
    cluster.start_controllers()
    await cluster.start_brokers(1)
    await create(cluster.client(), topic("kept", factor=1))
    active = await cluster.wait_active()
    following = [one for one in cluster.controllers.values() if one is not active]
    for one in following:
        await eventually(lambda one=one: "kept" in one.running.machine.image.topics_by_name)
    return cluster, active, following


@pytest.mark.parametrize("engine", ["raft", "pysyncobj"])
@pytest.mark.parametrize("damage", [remove_log, empty_log, cut_log, remove_identity])
def test_a_voter_whose_log_is_gone_does_not_start(damage, engine):
    async def main(world):
        cluster, _, (victim, _) = await started(world, metadata_quorum_engine=engine)
        victim.kill()
        damage(victim)
        victim.start()
        await eventually(lambda: world.failures)
        ((_, error),) = world.failures
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, NodeDirectoryError | LogDamagedError)
        remedy = f"restore the directory as it was, or, while a majority .*remove-voter {victim.node_id}.*add-voter"
        with pytest.raises(type(error), match=remedy):
            raise error
        assert victim.running is None
        await create(cluster.client(), topic("after", factor=1))

    run_world(main, 301)


def test_an_emptied_voter_counts_only_when_added_again():
    """One voter is down and another one was emptied: the third decides nothing alone."""

    async def main(world):
        cluster, active, (victim, other) = await started(world)
        old = victim.directory_id()
        victim.kill()
        lose_directory(victim)
        victim.start()
        await eventually(lambda: victim.running is not None)
        assert victim.directory_id() != old
        other.kill()
        await trio.sleep(5)
        assert not any(one.running.active.is_active for one in (active, victim))
        assert victim.running.log.status().log_end_index == 0
        other.start()
        await cluster.wait_active()
        client = cluster.client()
        await create(client, topic("meanwhile", factor=1))
        await trio.sleep(3)
        assert victim.running.machine.image.topics_by_name.keys() == set() or not victim.running.machine.image.offset
        remove = RemoveRaftVoterRequest(cluster_id=None, voter_id=victim.node_id, voter_directory_id=old)
        removed = await client.request(remove, RemoveRaftVoterResponse, timeout_ms=30_000)
        assert (removed.error_code, removed.error_message) == (0, None)
        add = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=20_000,
            voter_id=victim.node_id,
            voter_directory_id=victim.directory_id(),
            listeners=[RaftListener(name="CONTROLLER", host=f"c{victim.node_id}", port=PORT)],
        )
        added = await client.request(add, AddRaftVoterResponse, timeout_ms=30_000)
        assert (added.error_code, added.error_message) == (0, None)
        await eventually(lambda: "meanwhile" in victim.running.machine.image.topics_by_name)
        # Now it counts: the quorum decides with it, and without the other.
        other.kill()
        await create(client, topic("after", factor=1))
        assert not world.failures

    run_world(main, 307)


@pytest.mark.parametrize("survivor_runs", proof_beyond(1, [True, False]))
def test_two_emptied_voters_do_not_begin_a_second_history(survivor_runs):
    async def main(world):
        _, active, following = await started(world)
        cluster_id = active.running.machine.image.cluster_id
        end = active.running.log.status().log_end_index
        for victim in following:
            victim.kill()
            lose_directory(victim)
        if not survivor_runs:
            active.kill()
        for victim in following:
            victim.start()
        await trio.sleep(20)
        for victim in following:
            assert not victim.running.active.is_active
            assert victim.running.machine.image.cluster_id == ""
        if not survivor_runs:
            active.start()
            await eventually(lambda: active.running is not None)
        await trio.sleep(20)
        assert active.running.log.status().log_end_index >= end
        assert active.running.machine.image.cluster_id in (cluster_id, "" if not survivor_runs else cluster_id)
        assert not active.running.active.is_active
        assert all(victim.running.machine.image.cluster_id == "" for victim in following)
        assert not world.failures

    run_world(main, 311)


def test_the_first_election_takes_all_voters():
    """Two emptied voters of three do not know whether the third has a log."""

    async def main(world):
        cluster = TestCluster(world)
        first, second, third = cluster.controllers.values()
        first.start()
        second.start()
        await trio.sleep(20)
        assert cluster.active() is None
        third.start()
        active = await cluster.wait_active()
        assert {key: voter.directory_id for key, voter in active.running.log.voters.items()} == {
            one.node_id: one.directory_id() for one in cluster.controllers.values()
        }
        # From then on any majority is enough, after a power loss too.
        for one in cluster.controllers.values():
            one.node.lose_power()
            one.running = None
        second.start()
        third.start()
        await cluster.wait_active()
        assert not world.failures

    run_world(main, 313)


def test_a_voter_of_another_directory_is_not_added_or_removed():
    async def main(world):
        cluster, active, (victim, _) = await started(world)
        client = cluster.client()
        wrong = RemoveRaftVoterRequest(
            cluster_id=None, voter_id=victim.node_id, voter_directory_id=active.directory_id()
        )
        refused = await client.request(wrong, RemoveRaftVoterResponse, timeout_ms=30_000)
        assert refused.error_code == ErrorCode.VOTER_NOT_FOUND
        joining = cluster.join(104)
        joining.start()
        await eventually(lambda: joining.running is not None)
        add = AddRaftVoterRequest(
            cluster_id=None,
            timeout_ms=4_000,
            voter_id=104,
            voter_directory_id=victim.directory_id(),
            listeners=[RaftListener(name="CONTROLLER", host="c104", port=PORT)],
        )
        refused = await client.request(add, AddRaftVoterResponse, timeout_ms=30_000)
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert joining.running.log.status().log_end_index == 0
        assert not world.failures

    run_world(main, 317)


def test_a_voter_that_was_away_learns_of_one_that_leads_now():
    """It refuses unknown voters, and asks known ones for their directory ids."""

    async def main(world):
        cluster, active, (absent, _) = await started(world)
        absent.kill()
        joining = cluster.join(104)
        joining.start()
        await eventually(lambda: joining.running is not None)
        await active.running.log.add_voter(
            VoterEndpoint(voter_id=104, directory_id=joining.directory_id(), host="c104", port=PORT)
        )
        await active.running.log.transfer_leadership(104)
        client = cluster.brokers[1].client  # it has heard of the new voter
        response = await client.request(topic("by-104", factor=1), CreateTopicsResponse, timeout_ms=20_000)
        assert response.topics[0].error_code == 0
        absent.start()
        await eventually(
            lambda: absent.running is not None and "by-104" in absent.running.machine.image.topics_by_name,
            timeout_ms=20_000,
        )
        assert (await cluster.wait_active()).node_id == 104
        assert not world.failures

    run_world(main, 331)


@pytest.mark.parametrize("seed", range(4))
def test_a_voter_is_the_same_after_a_loss_of_power(seed):
    """Its identity is durable as soon as it is known: with another directory it would be no voter any more."""
    disk = VirtualDisk("disk", random.Random(seed), NoTrace(), DiskProfile())

    def opened(number):
        node_disk = NodeDisk(disk)
        return node_disk, open_node_directory(
            node_disk, "/data", node_id=101, engine="raft", cluster_id="", new_directory_id=UUID(int=number)
        )

    def lose_power(node_disk):
        node_disk.freeze()
        disk.lose_power()

    lose_power(opened(1)[0])
    node_disk, directory = opened(2)
    assert directory.identity.directory_id == UUID(int=1)
    directory.learn_cluster_id("cluster")
    lose_power(node_disk)
    node_disk, directory = opened(3)
    assert (directory.identity.directory_id, directory.identity.cluster_id) == (UUID(int=1), "cluster")
    directory.log_opened()
    lose_power(node_disk)
    with pytest.raises(NodeDirectoryError, match="the metadata log of node 101 is gone"):
        opened(4)
