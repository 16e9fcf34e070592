"""Runs a register in the metadata: clients set and read a topic's configuration.

Writers send a change to any broker, which forwards it to the active controller. Readers ask a controller: only the
active one answers, and only after a majority has confirmed that it still leads (ReadIndex), so a read must return the
last change that was acknowledged before it began, or a later one. A change of unknown outcome may take effect at any
later time or never. ``checkers.register`` searches for one order that explains all operations (linearizability).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from moldau_jepsen.checkers import RegisterOperation, RegisterVerdict, check_register
from moldau_jepsen.workloads.questions import Questions

if TYPE_CHECKING:
    import random

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.questions import Nodes

KEY = "retention.ms"
BASE = 604_800_000
RETRY_S = 0.1
WRITERS = 2
READERS = 2
TOPIC_RESOURCE = 2
SET = 0
FOREVER = float("inf")


class ConfigRegister:
    """The clients of the register, and the judgement of their operations."""

    def __init__(self, cluster: Nodes, environment: Environment, topic: str) -> None:
        """``topic`` exists when ``run`` begins."""
        self._cluster = cluster
        self._environment = environment
        self._topic = topic
        self._questions = Questions(environment, cluster, "register", keeps_connections=False)
        self._stopping = False
        self._next_value = 0
        self._seen: dict[int, RegisterOperation] = {}
        self._next_number = 0
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    @property
    def operations(self) -> list[RegisterOperation]:
        """Returns the operations so far. A change that is in flight, or was cancelled, has an unknown outcome."""
        return list(self._seen.values())

    def stop(self) -> None:
        """Begins no further operation."""
        self._stopping = True

    async def run(self, changes_per_second: float) -> None:
        """Runs writers and readers, each at the rate ``changes_per_second``, until ``stop``."""
        async with trio.open_nursery() as nursery:
            for _ in range(WRITERS):
                nursery.start_soon(self._write_until, changes_per_second / WRITERS)
            for _ in range(READERS):
                nursery.start_soon(self._read_until, changes_per_second / READERS)

    async def final_read(self, seconds: float) -> None:
        """Reads until a controller has answered; sets ``stuck`` when none does within ``seconds``."""
        with trio.move_on_after(seconds):
            while True:
                if await self._read(self._environment.random):
                    return
                await trio.sleep(RETRY_S)
        self.stuck = f"no controller answered a read of {KEY} within {seconds} s"

    def verdict(self) -> RegisterVerdict:
        """Searches for an order that explains all operations."""
        return check_register(self.operations)

    # --- clients

    async def _write_until(self, rate: float) -> None:
        draw = self._environment.random
        while not self._stopping:
            await trio.sleep(draw.expovariate(rate))
            self._next_value += 1
            value = self._next_value
            change = RegisterOperation(write=True, value=value, begun_ms=self._now_ms(), ended_ms=FOREVER)
            number = self._note(change)  # before the request, because a cancelled change has an unknown outcome
            code = await self._change(value, draw.choice(self._cluster.broker_ids))
            if code is ErrorCode.NONE:
                self._seen[number] = replace(change, ended_ms=self._now_ms())
            elif code is not None and not code.retriable:
                del self._seen[number]  # it was refused

    def _note(self, operation: RegisterOperation) -> int:
        """Adds an operation; returns its number."""
        self._next_number += 1
        self._seen[self._next_number] = operation
        return self._next_number

    async def _read_until(self, rate: float) -> None:
        draw = self._environment.random
        while not self._stopping:
            await trio.sleep(draw.expovariate(rate))
            await self._read(draw)

    def _now_ms(self) -> float:
        return self._environment.clock.monotonic_ms()

    async def _change(self, value: int, broker_id: int) -> ErrorCode | None:
        """Returns the broker's answer, None when there was none."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=self._topic,
                    configs=[AlterableConfig(name=KEY, config_operation=SET, value=str(BASE + value))],
                )
            ]
        )
        response = await self._questions.ask(broker_id, IncrementalAlterConfigsResponse, request)
        return None if response is None else ErrorCode.of(response.responses[0].error_code)

    async def _read(self, draw: random.Random) -> bool:
        """Asks a controller; returns whether it answered."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=self._topic, configuration_keys=[KEY]
                )
            ]
        )
        begun = self._now_ms()
        controller_id = draw.choice(self._cluster.controller_ids)
        response = await self._questions.ask(controller_id, DescribeConfigsResponse, request)
        if response is None or ErrorCode.of(response.results[0].error_code) is not ErrorCode.NONE:
            return False
        value = int(response.results[0].configs[0].value or BASE) - BASE
        self._note(RegisterOperation(write=False, value=value or None, begun_ms=begun, ended_ms=self._now_ms()))
        return True
