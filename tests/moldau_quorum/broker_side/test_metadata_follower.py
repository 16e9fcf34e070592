"""Goal: a follower says what it hears of its controllers in an order that its listeners can use.

Method: a follower in a simulated world, and in the place of a controller one that answers what the test says.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import MetadataFollower


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
