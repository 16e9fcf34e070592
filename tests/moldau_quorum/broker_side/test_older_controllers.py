"""Goal: a broker that was upgraded before its controllers says so, and goes on by itself once they are upgraded.

Method: a follower in a simulated world; in the place of a controller one that closes the connection of a peer whose
message it does not understand, as a controller does, until it is upgraded.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchResponse, decode_fetch_request, encode_fetch_response
from moldau_quorum.broker_side.metadata_follower import MetadataFollower


class Controller:
    """Answers fetches once it is new; the last fetch of a connection may be refused as well."""

    def __init__(self):
        self.is_new = False
        self.fetches = 0

    async def connect(self, host, port):
        return self

    async def request_raw(self, key, version, body):
        await trio.sleep(0.01)
        if not self.is_new:
            raise ConnectionResetError("the peer has closed the connection")
        self.fetches += 1
        assert decode_fetch_request(body).next_offset == 0
        return encode_fetch_response(MetadataFetchResponse(leader_id=101, leader_epoch=1, committed_offset=-1))

    def close(self):
        pass


def test_an_older_controller_is_named_as_the_cause():
    async def main(world):
        controller = Controller()
        follower = MetadataFollower(
            world.node("b1").environment,
            {101: ("c101", 9093)},
            node_id=1,
            on_delta=lambda delta: None,
            connect=controller.connect,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower.run)
            await trio.sleep(5)
            said = follower.reachability.last_cause
            assert said.startswith("controller 101: it closed the connection at the first metadata fetch")
            assert said.endswith("if it runs an older version than this broker, upgrade the controllers first")
            controller.is_new = True
            await trio.sleep(5)
            assert follower.reachability.last_cause == ""
            assert controller.fetches > 5
            controller.is_new = False  # it dies in the middle: nothing is said of versions
            await trio.sleep(0.015)
            assert follower.reachability.failures == 1
            assert "older version" not in follower.reachability.last_cause
            nursery.cancel_scope.cancel()

    run_world(main, seed=1)
