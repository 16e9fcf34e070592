"""Goal: the bounds of connections in a controller's file, and in the metadata, hold for its listeners.

Method: a controller on the simulated network, and a client that opens connections; the rule alone.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.runtime.config import BROKER_CONFIG, controller_listeners
from moldau.runtime.telemetry.log import EventLogger
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.metadata.image import RESOURCE_BROKER, MetadataImage
from moldau_quorum.node.server import _listen
from moldau_quorum.node.serving.connection_bounds import ConnectionBounds, connection_tally
from support.quorum.cluster import TestCluster, eventually
from support.quorum.memory_log import MemoryLog

if TYPE_CHECKING:
    from moldau.runtime.net.serving.server import ServerLimits

FILE = {
    "process.roles": "controller",
    "node.id": "101",
    "listeners": "CONTROLLER://c101:9093",
    "controller.quorum.voters": "101@c101:9093",
    "controller.listener.names": "CONTROLLER",
}
ROLES: dict[str, dict[str, str]] = {
    "controller": {},
    "broker,controller": {"process.roles": "broker,controller", "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093"},
}
OWN = "listener.name.controller.max.connections"


async def opened(world, count: int, **settings: str):
    """Returns the server of a controller to whose listener a client has opened connections."""
    cluster = TestCluster(world, controllers=1, make_log=MemoryLog, **settings)
    cluster.start_controllers()
    await cluster.wait_active()
    network = world.node("client").environment.network
    for _ in range(count):
        await network.connect("c101", 9093)
    return cluster.controllers[101].running.servers["CONTROLLER"]


def test_a_listener_of_a_controller_has_its_own_bound() -> None:
    async def main(world) -> None:
        server = await opened(world, 5, listener_name_controller_max_connections="2")
        await eventually(lambda: server.refused == 3)
        assert len(server.connections) == 2

    run_world(main, 1)


def test_a_controller_accepts_at_the_rate_of_its_file() -> None:
    """The allowance of all windows but one may be used at once; the rest is accepted later, and nothing refused."""
    for key in ("max_connection_creation_rate", "listener_name_controller_max_connection_creation_rate"):

        async def main(world, key: str = key) -> None:
            server = await opened(world, 8, quota_window_num="3", **{key: "1"})
            await trio.sleep(0.5)
            assert len(server.connections) == 2
            await eventually(lambda: len(server.connections) == 8, timeout_ms=30_000)
            assert server.refused == server.throttled == 0

        run_world(main, 1)


def test_a_controller_follows_the_bounds_in_the_metadata() -> None:
    async def main(world) -> None:
        server = await opened(world, 5)
        client = ControllerClient(world.node("admin").environment, {101: ("c101", 9093)}, client_id="admin")

        async def alter(value: str | None) -> None:
            configs = [
                AlterableConfig(name=key, config_operation=0 if value else 1, value=value)
                for key in ("max.connections", OWN, "max.connections.per.ip")
            ]
            resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name="", configs=configs)
            request = IncrementalAlterConfigsRequest(resources=[resource])
            response = await client.request(
                request, IncrementalAlterConfigsResponse, timeout_ms=10_000, repeatable=True
            )
            assert response.responses[0].error_code == ErrorCode.NONE

        before = server.limits
        await alter("3")
        limits = server.limits
        assert (limits.connections_max, limits.listener_connections_max, limits.connections_per_ip_max) == (3, 3, 3)
        await eventually(lambda: len(server.connections) == 3)
        await alter(None)
        assert server.limits == before

    run_world(main, 1)


def test_a_controller_listens_with_the_backlog_of_its_file() -> None:
    asked: list[tuple[str, int, int]] = []

    async def listen(host: str, port: int, *, backlog: int) -> None:
        await trio.lowlevel.checkpoint()
        asked.append((host, port, backlog))

    environment: Any = SimpleNamespace(network=SimpleNamespace(listen=listen))
    trio.run(_listen, environment, BROKER_CONFIG.parse(FILE | {"socket.listen.backlog.size": "4096"}))
    assert asked == [("c101", 9093, 4096)]


@pytest.mark.parametrize(("roles", "most"), [("controller", 36), ("broker,controller", 24)])
def test_connections_leave_descriptors_to_the_log(roles: str, most: int) -> None:
    """A flood of silent connections took them all, and the controller ended when it was to write a snapshot."""
    for limit, expected in ((96, most), (1024, {36: 576, 24: 256}[most])):
        disk: Any = SimpleNamespace(open_files_max=lambda limit=limit: limit)
        assert connection_tally(disk, BROKER_CONFIG.parse(FILE | ROLES[roles])).descriptors_max() == expected


def test_a_controller_refuses_connections_before_descriptors_end() -> None:
    async def main(world) -> None:
        world.node("c101").disk.profile.open_files_max = 96
        server = await opened(world, 60)
        await eventually(lambda: server.refused == 24)
        assert len(server.connections) == 36

    run_world(main, 1)


def in_force(in_file: dict[str, str], in_metadata: dict[str, str], *, brokers: int = 3) -> ServerLimits:
    """Returns the limits of one of three controllers, which need 3 connections of each other node and one more."""
    config = BROKER_CONFIG.parse(FILE | in_file)
    endpoints = controller_listeners(config)
    bounds = ConnectionBounds(config, endpoints, lambda: 3, EventLogger("test"))
    server: Any = SimpleNamespace(limits=bounds.limits(endpoints[0]))
    bounds.serve(endpoints[0], server)
    configs: Any = {(RESOURCE_BROKER, ""): in_metadata}
    registered: Any = dict.fromkeys(range(brokers))
    for _ in range(2):
        bounds.follow(MetadataImage(brokers=registered, configs=configs))
    limits: ServerLimits = server.limits
    return limits


@pytest.mark.parametrize(
    ("in_file", "in_metadata", "expected"), [(None, "20", 20), (None, "0", 16), ("9", "0", 9), ("9", "30", 30)]
)
def test_bounds_in_the_metadata_leave_room_for_the_nodes(
    in_file: str | None, in_metadata: str, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without room the controllers would refuse each other and the request that raises the bound, for good."""
    of_file = {} if in_file is None else dict.fromkeys(("max.connections", OWN, "max.connections.per.ip"), in_file)
    keys = dict.fromkeys(("max.connections", OWN, "max.connections.per.ip"), in_metadata)
    limits = in_force(of_file, keys | {"max.connections.per.ip.overrides": f"10.0.0.1:{in_metadata}"})
    assert limits.connections_max == limits.listener_connections_max == limits.connections_per_ip_max == expected
    assert limits.connections_of_ips == {"10.0.0.1": expected}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (2 if int(in_metadata) < 16 else 0)
    assert all(f"value={in_metadata} needed=16 nodes=6" in line for line in lines)


def test_a_low_bound_of_the_file_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    assert in_force({"max.connections": "6"}, {}).connections_max == 6
    assert [record.getMessage().partition(" why=")[0] for record in caplog.records] == [
        "connections-bound-low key=max.connections value=6 needed=16 nodes=6"
    ]


def test_an_unset_bound_is_one_hundred_thousand() -> None:
    assert in_force({}, {}).connections_max == 100_000
    assert in_force({"max.connections": "200000"}, {}).connections_max == 200_000
