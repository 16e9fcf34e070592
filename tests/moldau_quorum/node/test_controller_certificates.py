"""Goal: a controller takes renewed certificates that the metadata name, as brokers do.

Method: a controller with TLS on the simulated network, whose configuration an administrator changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.tls.outgoing import controllers_environment
from moldau_jepsen.world.world import run_world
from moldau_quorum.broker_side.controller_client import ControllerClient
from moldau_quorum.metadata.image import RESOURCE_BROKER
from support.certificates import authority
from support.quorum.cluster import TestCluster, eventually
from support.quorum.memory_log import MemoryLog

if TYPE_CHECKING:
    import pytest

KEYSTORE = "ssl.keystore.location"
OWN = f"listener.name.controller.{KEYSTORE}"


def test_a_controller_takes_certificates_of_the_metadata(caplog: pytest.LogCaptureFixture) -> None:
    """A certificate at another path served brokers alone, and the controller showed the former until it expired."""

    async def main(world) -> None:
        old, new = (authority(number).issue("c101") for number in (0, 1))
        disk = world.node("c101").environment.disk
        for path, (chain, key) in (("/old.pem", old), ("/new.pem", new)):
            file = disk.open(path, OpenMode.WRITE)
            file.append([(key + chain).encode()])
            file.close()
        trust = authority(0).trust + authority(1).trust
        settings = {"ssl_keystore_location": "/old.pem", "ssl_truststore_certificates": trust}
        cluster = TestCluster(
            world, controllers=1, make_log=MemoryLog, listener_security_protocol_map="CONTROLLER:SSL", **settings
        )
        cluster.start_controllers()
        await cluster.wait_active()
        shown = cluster.controllers[101].running.certificates["CONTROLLER"]
        await eventually(lambda: 101 in cluster.controllers[101].running.machine.image.controllers)
        admin = controllers_environment(world.node("c101").environment, cluster.config(101))
        client = ControllerClient(admin, {101: ("c101", 9093)}, client_id="admin")

        async def alter(name: str, value: str | None) -> None:
            config = AlterableConfig(name=name, config_operation=0 if value else 1, value=value)
            resource = AlterConfigsResource(resource_type=RESOURCE_BROKER, resource_name="101", configs=[config])
            response = await client.request(
                IncrementalAlterConfigsRequest(resources=[resource]),
                IncrementalAlterConfigsResponse,
                timeout_ms=10_000,
                repeatable=True,
            )
            assert response.responses[0].error_code == ErrorCode.NONE, response

        former = shown._context.current()
        await alter("ssl.client.auth", "required")
        assert shown._context.current() is former, "how controllers know each other is decided by the file"
        for key in (KEYSTORE, OWN):
            before = shown._context.current()
            await alter(key, "/new.pem")
            renewed = shown._context.current()
            assert renewed is not before
            await alter(key, "/absent.pem")
            assert shown._context.current() is renewed
            await alter(key, None)
            assert shown._context.current() is not renewed

    run_world(main, 1)
    refused = [line for line in caplog.messages if line.startswith("certificates-refused")]
    assert len(refused) == 4, "each key at the listener and at connections to other controllers"
