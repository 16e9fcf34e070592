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
from moldau.runtime.rpc import RpcConnection
from moldau_jepsen.simulation.world import run_world
from moldau_quorum.active import NotActiveError
from moldau_quorum.log_engine import Leadership, MembershipChangeError, VoterEndpoint
from moldau_quorum.quorum_admin import QuorumAdmin
from quorum_cluster import PORT, TestCluster, eventually

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
        assert moving.running.log.leadership.epoch == epoch, "nobody misses its heartbeats"
        assert not world.failures

    run_world(main, 31 + leads)


def test_nothing_is_sent_while_the_address_is_right():
    async def main(world):
        cluster = TestCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        await trio.sleep(30)
        assert active.running.log.node.core.configuration_index == 0, "the membership was never written"

    run_world(main, 33)


def test_a_leader_takes_over_an_address_over_the_wire():
    async def main(world):
        cluster = TestCluster(world)
        cluster.start_controllers()
        active = await cluster.wait_active()
        request = update(voter_id=101, current_leader_epoch=active.running.log.leadership.epoch, port=PORT, host="c101")
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
            "cluster_id": None,
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
    return trio.run(QuorumAdmin(log, machine, listener_name="CONTROLLER").update_voter, request)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
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
def test_what_is_refused_changes_nothing_and_tells_the_leader(request_, code):
    log = Log()
    response = answer(log, request_)
    assert ErrorCode.of(response.error_code) is code
    assert log.updated == []
    leader = response.current_leader
    assert (leader.leader_id, leader.leader_epoch, leader.host, leader.port) == (1, 7, "old", 1)


def test_what_the_log_is_asked_for_and_what_it_refuses():
    log = Log()
    assert answer(log, update(cluster_id="mine", listener="controller")).error_code == 0
    assert log.updated == [VoterEndpoint(voter_id=1, directory_id=OWN, host="new", port=1)]
    busy = Log(error=MembershipChangeError("another change is under way"))
    assert ErrorCode.of(answer(busy, update()).error_code) is ErrorCode.INVALID_REQUEST
    with pytest.raises(NotActiveError):
        answer(Log(active=False), update())
