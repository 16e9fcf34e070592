"""Goal: a voter that is started elsewhere is found there again (KIP-853, UpdateRaftVoter). Method: whole controllers in
a simulated world, one of which comes back on another port and with a file that says so; and the request with each thing
in it that can be wrong.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.update_raft_voter import (
    KRaftVersionFeature,
    Listener,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
)
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau_jepsen.world.world import run_world
from moldau_quorum.log.port import Leadership, MembershipChangeError, VoterEndpoint
from moldau_quorum.node.request_queue import NotActiveError
from moldau_quorum.node.voters.quorum_admin import QuorumAdmin
from moldau_quorum.node.voters.voter_address import QuorumSearch, QuorumView
from support.quorum.cluster import PORT, TestCluster, eventually

NEW_PORT = 9193


class MovingCluster(TestCluster):
    """One node's file names another port for it than the files of the others do."""

    __test__ = False
    moved: int | None = None

    def config(self, node_id):
        config = super().config(node_id)
        if node_id != self.moved:
            return config
        given = {name: config.text(name) for name in config.explicit()}
        old, new = f"{node_id}@c{node_id}:{PORT}", f"{node_id}@c{node_id}:{NEW_PORT}"
        given["controller.quorum.voters"] = given["controller.quorum.voters"].replace(old, new)
        given["listeners"] = f"CONTROLLER://c{node_id}:{NEW_PORT}"
        return BROKER_CONFIG.parse(given)


def address(controller, node_id):
    voter = controller.running.log.voters[node_id]
    return voter.host, voter.port


@pytest.mark.parametrize("leads", [False, True])
def test_a_voter_that_has_moved_is_found_again_and_can_lead(leads):
    async def main(world):
        cluster = MovingCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        moving = next(each for each in cluster.controllers.values() if (each is active) == leads)
        moving.kill()
        cluster.moved = moving.node_id
        await cluster.wait_active(other_than=moving.node_id if leads else -1)
        moving.start()
        await eventually(
            lambda: all(
                each.running is not None and address(each, moving.node_id) == (f"c{moving.node_id}", NEW_PORT)
                for each in cluster.controllers.values()
            ),
            timeout_ms=30_000,
        )
        # The others reach it at the new place: it can be elected, which takes the votes of those who must ask it.
        await (await cluster.wait_active()).running.log.transfer_leadership(moving.node_id)
        assert (await cluster.wait_active()).node_id == moving.node_id
        epoch = moving.running.log.leadership.epoch
        await trio.sleep(20)
        assert moving.running.log.leadership.epoch == epoch, "no voter misses its heartbeats"
        assert not world.failures

    run_world(main, 31 + leads)


def test_a_voter_alone_takes_the_address_of_its_file():
    """A single node that moved never served again: its broker looked for the controller at the former address."""

    async def main(world):
        cluster = MovingCluster(world, controllers=1)
        cluster.start_controllers()
        alone = await cluster.wait_active()
        alone.kill()
        cluster.moved = alone.node_id
        alone.start()
        await eventually(lambda: alone.running and address(alone, alone.node_id) == (f"c{alone.node_id}", NEW_PORT))
        assert not world.failures

    run_world(main, 37)


def test_a_voter_that_was_away_follows_a_leader_that_has_moved():
    """Its log has the former address of the leader, at which nothing answers; the others know the present one."""

    async def main(world):
        cluster = MovingCluster(world, controllers=5)
        cluster.start_controllers()
        active = await cluster.wait_active()
        away, moving, *_ = (each for each in cluster.controllers.values() if each is not active)
        away.kill()
        await trio.sleep(1)
        moving.kill()
        cluster.moved = moving.node_id
        moving.start()
        await eventually(lambda: address(active, moving.node_id) == (f"c{moving.node_id}", NEW_PORT))
        await active.running.log.transfer_leadership(moving.node_id)
        cluster.moved = None
        away.start()
        await eventually(lambda: away.running is not None)
        await eventually(lambda: away.running.log.leadership.leader_id == moving.node_id)
        assert address(away, moving.node_id) == (f"c{moving.node_id}", NEW_PORT)

    run_world(main, 36)


@pytest.mark.parametrize("settings", [{}, {"cluster_id": "another"}], ids=["new", "foreign"])
def test_a_stranger_cannot_take_a_stopped_voters_address(settings):
    """A node with the id of a voter, but of another cluster or of none, asks the voters where they look for it."""

    async def main(world):
        cluster = MovingCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        absent = next(each for each in cluster.controllers.values() if each is not active)
        absent.kill()
        absent.node.disk.replace(["/data"])
        cluster.moved = absent.node_id
        cluster._settings.update(settings)
        absent.start()
        await trio.sleep(20)
        assert address(active, absent.node_id) == (f"c{absent.node_id}", PORT)
        assert not world.failures

    run_world(main, 35)


def test_a_voter_that_answers_has_not_moved():
    async def main(world):
        cluster = TestCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        await trio.sleep(1)
        follower = next(each for each in cluster.controllers.values() if each is not active)
        voter = active.running.log.voters[follower.node_id]
        moved = VoterEndpoint(
            voter_id=voter.voter_id, directory_id=follower.directory_id(), host="mallory", port=voter.port
        )
        with pytest.raises(MembershipChangeError, match="is reached at"):
            await active.running.log.update_voter(moved)
        follower.kill()
        await trio.sleep(2)
        await active.running.log.update_voter(moved)
        assert address(active, follower.node_id) == ("mallory", voter.port)

    run_world(main, 36)


def test_nothing_is_sent_while_the_address_is_right():
    async def main(world):
        cluster = TestCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        await trio.sleep(30)
        log = active.running.log
        assert log.node.core.configuration_index == 2, "only the first leader writes the membership"
        assert {key: voter.directory_id for key, voter in log.voters.items()} == {
            key: controller.directory_id() for key, controller in cluster.controllers.items()
        }

    run_world(main, 33)


def test_a_leader_takes_over_an_address_over_the_wire():
    async def main(world):
        cluster = TestCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        log = active.running.log
        request = update(
            cluster_id=active.running.machine.image.cluster_id,
            voter_id=101,
            voter_directory_id=log.voters[101].directory_id,
            current_leader_epoch=log.leadership.epoch,
            port=PORT,
            host="c101",
        )
        for controller in cluster.controllers.values():
            connection = await RpcConnection.open(
                world.node("admin").environment, f"c{controller.node_id}", PORT, "admin"
            )
            response = await connection.request_as(UpdateRaftVoterResponse, request)
            connection.close()
            wanted = ErrorCode.NONE if controller is active else ErrorCode.NOT_CONTROLLER
            assert ErrorCode.of(response.error_code) is wanted

    run_world(main, 34)


# --- what is refused

OWN, OTHER = UUID(int=1), UUID(int=2)


def update(host="new", port=1, listener="CONTROLLER", versions=(0, 1), **fields):
    return UpdateRaftVoterRequest(
        **{
            "cluster_id": "mine",
            "current_leader_epoch": 7,
            "voter_id": 1,
            "voter_directory_id": OWN,
            "listeners": [Listener(name="OTHER", host="x", port=2), Listener(name=listener, host=host, port=port)],
            "kraft_version_feature": KRaftVersionFeature(
                min_supported_version=versions[0], max_supported_version=versions[1]
            ),
            **fields,
        }
    )


class Log:
    """Remembers what it was asked for."""

    def __init__(self, *, active=True, error=None):
        self.leadership = Leadership(leader_id=1, epoch=7, active=active)
        self.voters = {1: VoterEndpoint(voter_id=1, directory_id=OWN, host="old", port=1)}
        self.error = error
        self.updated = []

    async def update_voter(self, voter):
        self.updated.append(voter)
        if self.error is not None:
            raise self.error


def answer(log, request):
    machine = SimpleNamespace(image=SimpleNamespace(cluster_id="mine"))
    return trio.run(QuorumAdmin(log, machine, brokers=list, listener_name="CONTROLLER").update_voter, request)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (update(cluster_id=None), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (update(cluster_id=""), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (update(voter_directory_id=UUID(int=0)), ErrorCode.VOTER_NOT_FOUND),
        (update(cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (update(current_leader_epoch=6), ErrorCode.FENCED_LEADER_EPOCH),
        (update(current_leader_epoch=8), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (update(voter_id=2), ErrorCode.VOTER_NOT_FOUND),
        (update(voter_directory_id=OTHER), ErrorCode.VOTER_NOT_FOUND),
        (update(listener="ELSE"), ErrorCode.INVALID_REQUEST),
        (update(host=""), ErrorCode.INVALID_REQUEST),
        (update(port=0), ErrorCode.INVALID_REQUEST),
        (update(versions=(0, 0)), ErrorCode.INVALID_REQUEST),
        (update(versions=(2, 3)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_refusal_changes_nothing_and_names_the_leader(request_, code):
    log = Log()
    response = answer(log, request_)
    assert ErrorCode.of(response.error_code) is code
    assert log.updated == []
    leader = response.current_leader
    assert (leader.leader_id, leader.leader_epoch, leader.host, leader.port) == (1, 7, "old", 1)


def test_updates_and_refusals_of_the_log():
    log = Log()
    assert answer(log, update(cluster_id="mine", listener="controller")).error_code == 0
    assert log.updated == [VoterEndpoint(voter_id=1, directory_id=OWN, host="new", port=1)]
    busy = Log(error=MembershipChangeError("another change is under way"))
    assert ErrorCode.of(answer(busy, update()).error_code) is ErrorCode.INVALID_REQUEST
    with pytest.raises(NotActiveError):
        answer(Log(active=False), update())


@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_foreign_quorum_teaches_nothing(is_foreign):
    """An address of the file belongs to a controller of another cluster now; its voters would get this node's votes."""
    learned = []
    log = SimpleNamespace(node_id=1, learn_voters=learned.append)
    search = QuorumSearch(
        SimpleNamespace(),
        log,
        directory_id=UUID(int=1),
        cluster_id=lambda: "own",
        address=("c1", PORT),
        listener_name="CONTROLLER",
    )
    view = QuorumView(
        leader_id=2, cluster_id="other" if is_foreign else "own", addresses={1: ("c1", PORT), 2: ("x2", PORT)}
    )
    assert not trio.run(search._take, view)
    assert learned == ([] if is_foreign else [view.addresses])
