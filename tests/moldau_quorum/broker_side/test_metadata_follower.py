"""Goal: a follower reports its controllers in an order that its listeners can use, and does not press a wrong one.

Method: a follower in a simulated world, and in the place of a controller one that answers what the test says.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from moldau_quorum.broker_side.metadata_position import MetadataPosition
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClusterRecord
from moldau_quorum.metadata.snapshot import snapshot_pieces


class Controller:
    """A connection that answers every fetch with the next of ``answers``, the last one again and again."""

    def __init__(self, *answers: MetadataFetchResponse) -> None:
        self.answers = list(answers)

    async def connect(self, host: str, port: int) -> Controller:
        await trio.lowlevel.checkpoint()
        return self

    async def request_raw(self, key: int, version: int, body: bytes) -> bytes:
        await trio.sleep(0.01)
        return encode_fetch_response(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def close(self) -> None:
        """Has nothing to close."""


def image(offset: int, epoch: int) -> MetadataImage:
    editor = MetadataImage().edit()
    editor.replay_all((ClusterRecord(cluster_id="cluster"),))
    return editor.finish_image(offset=offset, epoch=epoch)


def test_a_new_voter_that_leads_is_asked_at_once() -> None:
    """The answer that names a new leader also has its address: it has joined the voters since the last answer."""

    async def main(world) -> None:
        environment, voters = world.node("b1").environment, {101: ("c101", 9093)}
        client = ControllerClient(environment, voters, client_id="b1")
        grown = MetadataFetchResponse(
            leader_id=102, leader_epoch=2, committed_offset=0, voters=((101, "c101", 9093), (102, "c102", 9093))
        )
        asked: list[int] = []

        def suggest(leader: int) -> None:
            client.suggest(leader)
            asked.append(client._target)

        follower = MetadataFollower(
            environment,
            voters,
            node_id=1,
            on_delta=lambda delta: None,
            on_leader=suggest,
            on_voters=client.update_voters,
            connect=Controller(grown).connect,
        )
        with trio.move_on_after(1):
            await follower.run()
        assert asked == [102]

    run_world(main, 1)


def test_a_log_below_the_floor_is_asked_for_less_and_less() -> None:
    """The metadata get newer with an answer, and then end too early; such an answer does not end the failures."""

    async def main(world) -> None:
        opened: list[float] = []
        pieces = tuple(snapshot_pieces(image(offset=40, epoch=5)))
        newer = MetadataFetchResponse(committed_offset=60, snapshot_offset=40, pieces=pieces, complete=True)
        nothing, end = MetadataFetchResponse(committed_offset=60), MetadataFetchResponse(committed_offset=40)

        async def connect(host: str, port: int) -> Controller:
            opened.append(trio.current_time())
            return await Controller(nothing, newer, end).connect(host, port)

        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            floor=MetadataPosition(offset=50, epoch=5),
            on_delta=lambda delta: None,
            connect=connect,
        )
        with trio.move_on_after(20):
            await follower.run()
        assert "before offset 50" in follower.refusal
        assert 10 < len(opened) < 60
        assert opened[-1] - opened[-2] > 0.4

    run_world(main, 2)


def test_a_controller_that_is_behind_names_no_former_leader() -> None:
    """Requests would move back to a controller that was deposed."""

    async def main(world) -> None:
        leaders: list[int] = []
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            on_leader=leaders.append,
            connect=Controller(
                *(
                    MetadataFetchResponse(leader_id=leader, leader_epoch=epoch, committed_offset=0)
                    for leader, epoch in ((101, 5), (103, 4), (101, 5), (102, 6))
                )
            ).connect,
        )
        with trio.move_on_after(1):
            await follower.run()
        assert leaders == [101, 102]

    run_world(main, 3)
