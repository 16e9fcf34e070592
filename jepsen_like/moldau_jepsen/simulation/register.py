"""A register in the metadata: one client sets a topic's configuration again and again, and the last value must stay.

The writer waits for each change before it makes the next. So in the end the value is that of the last acknowledged
change, or of one whose outcome nobody knows (it may take effect at any later time). Anything else is a change that was
acknowledged and lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau.runtime.rpc import RpcConnection

if TYPE_CHECKING:
    from moldau.runtime.environment import Environment
    from moldau_jepsen.simulation.cluster import SimulatedCluster

KEY = "retention.ms"
BASE = 604_800_000
TIMEOUT_MS = 3_000
TOPIC_RESOURCE = 2
SET = 0
BROKER_PORT = 9092  # of every simulated broker


class ConfigRegister:
    """The writer, and the judgement of what it wrote."""

    def __init__(self, cluster: SimulatedCluster, environment: Environment, topic: str) -> None:
        """``topic`` exists when ``run`` begins."""
        self._cluster = cluster
        self._environment = environment
        self._topic = topic
        self._stopping = False
        self.acknowledged = 0  # number of the last acknowledged change; 0: none
        self._unknown: dict[int, None] = {}

    def stop(self) -> None:
        """No further change is begun."""
        self._stopping = True

    async def run(self, changes_per_second: float) -> None:
        """Makes changes until ``stop``."""
        draw = self._environment.random
        number = 0
        while not self._stopping:
            await trio.sleep(draw.expovariate(changes_per_second))
            number += 1
            code = await self._change(number, draw.choice(self._cluster.broker_ids))
            if code is ErrorCode.NONE:
                self.acknowledged = number
            elif code is None or code.retriable:
                self._unknown[number] = None

    async def _change(self, number: int, broker_id: int) -> ErrorCode | None:
        """Returns the broker's answer, None when there was none."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=self._topic,
                    configs=[AlterableConfig(name=KEY, config_operation=SET, value=str(BASE + number))],
                )
            ]
        )
        connection: RpcConnection | None = None
        try:
            connection = await RpcConnection.open(
                self._environment, self._cluster.host(broker_id), BROKER_PORT, "register", timeout_ms=TIMEOUT_MS
            )
            response = await connection.request_as(IncrementalAlterConfigsResponse, request, timeout_ms=TIMEOUT_MS)
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
            return None
        finally:
            if connection is not None:
                connection.close()
        return ErrorCode.of(response.responses[0].error_code)

    def lost(self) -> str | None:
        """Compares the newest image of a broker with what was acknowledged; returns what is wrong with it."""
        images = [broker.metadata.image for broker in self._cluster.brokers.values()]
        image = max(images, key=lambda one: one.offset)
        text = image.topic_config(self._topic).get(KEY)
        value = int(text) - BASE if text is not None else 0
        if value == self.acknowledged or value in self._unknown:
            return None
        return f"{KEY} of {self._topic} is that of change {value}, but change {self.acknowledged} was acknowledged last"
