"""Runs clients that send and read more than their quotas allow, while the quotas change.

A manager sets and removes byte rates of two client ids on the three levels that name a client id, so that the
allowances of other clients stay as they are. Workers send and fetch as fast as a broker lets them, over several
connections per client id, and pay no attention to the pauses that answers name: the broker has to enforce them.
``checkers.quotas`` judges the answers.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.admin.calls.quotas import QuotaAlteration, QuotaEntity, QuotaName
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import KafkaError
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.records import encode_batch
from moldau.runtime.net.rpc import RpcConnection
from moldau.values import join_address
from moldau_jepsen.checkers.quotas import CONSUMER, PRODUCER, QuotaVerdict

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Clock, Environment
    from moldau_jepsen.workloads.questions import Nodes

TOPIC = "metered"
CLIENT_IDS = ("metered-1", "metered-2")
METERED = [(client_id, key) for client_id in CLIENT_IDS for key in (PRODUCER, CONSUMER)]
WORKERS_PER_CLIENT = 3
BYTES_MAX = 4_000
RATES = (4_000.0, 12_000.0, 60_000.0)
REMOVAL_SHARE = 0.4
CHANGES_PER_SECOND = 0.7
REQUESTS_PER_SECOND = 15.0
CONNECTIONS_PER_SECOND = 4.0
REQUESTS_PER_CONNECTION_MAX = 60
CONNECT_TIMEOUT_MS = 3_000
TIMEOUT_MS = 20_000
"""Longer than the longest pause: the use of all windows at the lowest rate."""
PRODUCE_VERSION, FETCH_VERSION = 9, 12
"""They name topics."""
WINDOWS = 2
"""``quota.window.num`` of these runs, with windows of one second: few, so that a run sees limits work."""


class QuotasWorkload:
    """The manager and the workers, and the verdict about the answers."""

    def __init__(
        self, nodes: Nodes, environment: Environment, draw: random.Random, clocks: Mapping[int, Clock]
    ) -> None:
        """``draw`` is this workload's own stream; ``clocks`` are those of the brokers."""
        self._nodes = nodes
        self._clocks = clocks
        self._environment = environment
        self._draw = draw
        self._stopping = trio.Event()
        self.verdict = QuotaVerdict(
            kept_ms=WINDOWS * 1_000.0,
            connections=WORKERS_PER_CLIENT,
            bytes_max=BYTES_MAX,
        )

    def stop(self) -> None:
        """Begins no further operation."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until ``stop``."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._manage)
            for client_id in CLIENT_IDS:
                for _ in range(WORKERS_PER_CLIENT):
                    nursery.start_soon(self._work, client_id)

    async def _manage(self) -> None:
        draw = self._draw
        bootstrap = ",".join(
            join_address(host, port) for host, port in map(self._nodes.address, self._nodes.broker_ids)
        )
        config = {"bootstrap.servers": bootstrap, "request.timeout.ms": 2_000, "default.api.timeout.ms": 5_000}
        async with Admin(config, environment=self._environment) as admin:
            while not self._stopping.is_set():
                alteration = drawn_alteration(draw)
                # Its effect is judged by what brokers come to know.
                with contextlib.suppress(KafkaError, OSError, trio.TooSlowError, TimeoutError):
                    await admin.alter_client_quotas([alteration])
                await trio.sleep(draw.expovariate(CHANGES_PER_SECOND))

    async def _work(self, client_id: str) -> None:
        draw = self._draw
        while not self._stopping.is_set():
            await trio.sleep(draw.expovariate(CONNECTIONS_PER_SECOND))
            broker_id = draw.choice(self._nodes.broker_ids)
            try:
                address = self._nodes.address(broker_id)
                connection = await RpcConnection.open(
                    self._environment, *address, client_id, timeout_ms=CONNECT_TIMEOUT_MS
                )
            except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
                continue
            try:
                await self._use(connection, broker_id, client_id)
            finally:
                connection.close()

    async def _use(self, connection: RpcConnection, broker_id: int, client_id: str) -> None:
        draw, clock = self._draw, self._clocks[broker_id]
        key = draw.choice((PRODUCER, CONSUMER))
        account = self.verdict.account(broker_id, client_id, key)
        for _ in range(draw.randint(1, REQUESTS_PER_CONNECTION_MAX)):
            if self._stopping.is_set():
                return
            await trio.sleep(draw.expovariate(REQUESTS_PER_SECOND))
            size = draw.randint(BYTES_MAX // 8, BYTES_MAX)
            # The first batch of an answer may be larger than what was asked for.
            used_max = size if key == PRODUCER else BYTES_MAX
            request = self.verdict.begin(account, used_max, clock.monotonic_ms())
            try:
                ask = _produce if key == PRODUCER else _fetch
                code, used, pause_ms = await ask(connection, size)
            except (OSError, trio.TooSlowError, ProtocolError, KafkaError):
                self.verdict.gave_up(request, clock.monotonic_ms())
                return
            except BaseException:
                self.verdict.gave_up(request, clock.monotonic_ms())
                raise
            self.verdict.answered(request, used if code == 0 else 0, pause_ms, clock.monotonic_ms())
            if code != 0:
                return  # another broker leads the partition


def drawn_alteration(draw: random.Random) -> QuotaAlteration:
    """Draws a change of one quota of one client id, on one of the levels that name it."""
    client_id, key = draw.choice(METERED)
    user = draw.choice((None, None, None, "ANONYMOUS", QuotaName.DEFAULT))
    value = None if draw.random() < REMOVAL_SHARE else draw.choice(RATES)
    return QuotaAlteration(entity=QuotaEntity(client_id=client_id, user=user), quotas={key: value})


async def _produce(connection: RpcConnection, size: int) -> tuple[int, int, int]:
    """Sends records of ``size`` bytes; returns the error code, their size, and the pause in milliseconds."""
    batch = encode_batch([(0, None, bytes(size - 100), ())])
    partition = PartitionProduceData(index=0, records=batch)
    request = ProduceRequest(
        acks=1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=TOPIC, partition_data=[partition])]
    )
    answer = await connection.request_as(ProduceResponse, request, PRODUCE_VERSION, timeout_ms=TIMEOUT_MS)
    return answer.responses[0].partition_responses[0].error_code, len(batch), answer.throttle_time_ms


async def _fetch(connection: RpcConnection, size: int) -> tuple[int, int, int]:
    """Reads records of at most ``size`` bytes; returns the error code, their size, and the pause in milliseconds."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=size, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
    )
    answer = await connection.request_as(FetchResponse, request, FETCH_VERSION, timeout_ms=TIMEOUT_MS)
    if not answer.responses:
        return answer.error_code, 0, answer.throttle_time_ms
    (found,) = answer.responses[0].partitions
    return answer.error_code or found.error_code, len(found.records or b""), answer.throttle_time_ms
