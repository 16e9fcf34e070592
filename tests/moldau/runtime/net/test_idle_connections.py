"""Goal: connections.max.idle.ms ends silent connections, and a negative value none, as in Kafka.

Method: the limits that brokers and controllers take from a configuration, at a server in a simulated world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau.runtime.config import BROKER_CONFIG, broker_listeners
from moldau.runtime.net.serving.server import listener_limits
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.node.serving.connection_bounds import ConnectionBounds
from support.quotas.paused_server import QUICK, answer, request, with_server
from support.sasl import node_config

if TYPE_CHECKING:
    from support.quotas.paused_server import Log, Stage


@pytest.mark.parametrize(("idle_ms", "is_closed"), [("-1", False), ("30000", True)])
@pytest.mark.parametrize("role", ["broker", "controller"])
def test_a_negative_limit_closes_no_connection(role: str, idle_ms: str, is_closed: bool) -> None:
    config = BROKER_CONFIG.parse(node_config(**{"connections.max.idle.ms": idle_ms}))
    endpoint = broker_listeners(config)[0]
    of_controller = ConnectionBounds(config, [endpoint], lambda: 1, EventLogger("test"))
    limits = listener_limits(config, endpoint) if role == "broker" else of_controller.limits(endpoint)

    async def scenario(stage: Stage, log: Log) -> None:
        connection = await stage.connect()
        await connection.send_all([request(QUICK)])
        assert await answer(connection) == QUICK
        await trio.sleep(60)
        assert stage.server.tally.total == (0 if is_closed else 1)
        connection.close()

    with_server(scenario, limits)
