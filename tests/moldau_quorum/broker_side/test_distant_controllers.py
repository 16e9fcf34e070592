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
from moldau_quorum.broker_side.metadata_fetch import (
    MetadataFetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from moldau_quorum.broker_side.metadata_follower import MetadataFollower
from moldau_quorum.metadata.image import RESOURCE_TOPIC
from moldau_quorum.metadata.records import Command, ConfigRecord, encode_command
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


class SlowLink:
    """A connection that carries ``bytes_per_s`` from a controller with 60 entries of 100 kB."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        record = ConfigRecord(resource_type=RESOURCE_TOPIC, resource_name="t", name="k", value="v" * 100_000)
        self._command = encode_command(Command(controller_epoch=1, sequence=1, records=(record,)))

    async def request_raw(self, key: int, version: int, body: bytes) -> memoryview:
        request = decode_fetch_request(body)
        count = max(1, request.bytes_max // len(self._command))
        offsets = range(max(1, request.next_offset), 61)[:count]
        response = MetadataFetchResponse(
            committed_offset=60, entries=tuple((offset, 1, self._command) for offset in offsets)
        )
        answer = encode_fetch_response(response)
        await trio.sleep(len(answer) / self._bytes_per_s)
        return memoryview(answer)

    def close(self) -> None:
        pass


def test_a_slow_link_carries_what_a_broker_has_missed() -> None:
    """With 8 Mbit/s: each answer must come within the 1.5 seconds after which the broker asks another controller."""

    async def main(world) -> None:
        async def connect(host: str, port: int) -> Any:
            return SlowLink(1_000_000)

        environment = world.node("far").environment
        follower = MetadataFollower(environment, {101: HERE}, node_id=1, on_delta=lambda _: None, connect=connect)
        async with trio.open_nursery() as nursery:
            with trio.fail_after(60):
                await nursery.start(follower.run)
            assert follower.image.offset == 60
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
