"""Goal: nodes reach controllers whose TLS and login take long, and lose little time at silent ones.

Method: a network on virtual time whose connections open after a delay, below the rule and below the clients of it.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.runtime.net.setup_times import SECURED_SETUP_MS_MAX, SETUP_MS, SetupTimes
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from support.quorum.cluster import TestCluster
from support.quorum.memory_log import MemoryLog

HERE, THERE = ("c1", 9093), ("c2", 9093)


class Distant:
    """A network with a login that takes ``seconds``."""

    def __init__(self, plain: Any, seconds: float) -> None:
        self.plain = plain
        self._seconds = seconds

    async def connect(self, host: str, port: int) -> Any:
        connection = await self.plain.connect(host, port)
        try:
            await trio.sleep(self._seconds)
        except BaseException:
            connection.close()
            raise
        return connection


def test_a_login_from_far_away_succeeds() -> None:
    """A fixed second included TLS and login, and a broker 150 ms away never started."""

    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.wait_active()
        near = world.node("far").environment
        far = replace(near, network=Distant(near.network, 1.5))
        client = ControllerClient(far, cluster.voters, client_id="admin")
        question = DescribeClusterRequest(endpoint_type=2)
        answer = await client.request(question, DescribeClusterResponse, timeout_ms=10_000)
        assert answer.error_code == ErrorCode.NONE
        follower = MetadataFollower(far, cluster.voters, node_id=1, on_delta=lambda _: None)
        async with trio.open_nursery() as nursery:
            with trio.fail_after(10):
                await nursery.start(follower.run)
            assert follower.caught_up
            nursery.cancel_scope.cancel()

    run_world(main, 1)


@pytest.mark.parametrize("is_secured", [False, True])
def test_each_silent_attempt_doubles_the_next_limit(*, is_secured: bool) -> None:
    async def main(_) -> None:
        plain: Any = SimpleNamespace()
        environment: Any = SimpleNamespace(network=Distant(plain, 0) if is_secured else plain)
        times = SetupTimes(environment)

        async def took(address: tuple[str, int], seconds: float) -> float:
            began = trio.current_time()
            try:
                with times.limited(address):
                    await trio.sleep(seconds)
            except trio.TooSlowError:
                pass
            return round((trio.current_time() - began) * 1000)

        silent = [await took(HERE, 60) for _ in range(5)]
        most = SECURED_SETUP_MS_MAX if is_secured else SETUP_MS
        assert silent == [min(SETUP_MS * 2**number, most) for number in range(5)]
        assert await took(THERE, 60) == SETUP_MS, "another host"
        assert await took(HERE, 0.75) == 750
        assert await took(HERE, 60) == (1500 if is_secured else SETUP_MS), "twice what it last took"

    run_world(main, 1)
