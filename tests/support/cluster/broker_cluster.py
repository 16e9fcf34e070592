"""Whole brokers with real controllers in a simulated world, and a bare client for one broker at a time."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import decode_records, encode_batch, iterate_batches
from moldau.runtime.config import BROKER_CONFIG
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.serving.request_times import RequestTimes
from moldau_broker.server import run_broker
from moldau_jepsen.world.world import run_world
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES
from moldau_quorum.node.server import run_controller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Connection, Environment
    from moldau.values import Buffer
    from moldau_jepsen.world.network.network import NetworkProfile
    from moldau_jepsen.world.world import World
    from moldau_quorum.metadata.image import MetadataImage

CONTROLLER_PORT = 9093
BROKER_PORT = 9092
SHARED = (
    "request.max.entries",
    "broker.session",
    "metadata.quorum.engine",
    "remote.log.storage.system",
    "ssl.",
    "sasl.",
    "authorizer.class",
    "super.users",
    "delegation.token.",
    "allow.everyone",
    "connections.max.reauth",
    "listener.security",
    "listener.name.controller.",
)
"""Prefixes of the settings that controllers get too."""
QUICK = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
}


def batch(*values: bytes, timestamp: int = 1_000, **fields: Any) -> bytes:
    """Returns a record batch of ``values``."""
    return encode_batch([(timestamp, None, value, ()) for value in values], **fields)


def values_of(records: Buffer | None) -> list[bytes]:
    """Returns the values of all whole batches, without transaction markers."""
    data = memoryview(records or b"")
    return [
        bytes(record.value or b"")
        for position, header in iterate_batches(data)
        if not header.is_control
        for record in decode_records(data, position, header)
    ]


class Client:
    """Requests to one broker, over one connection."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self.broker_id = broker_id
        self._connection: RpcConnection | None = None

    async def connection(self) -> RpcConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await RpcConnection.open(
                self._cluster.client_environment, f"b{self.broker_id}", BROKER_PORT, "test"
            )
        return self._connection

    async def request(self, message: Request, version: int | None = None, timeout_ms: float = 60_000) -> Any:
        """Returns the response, whose class belongs to the request's API."""
        return await (await self.connection()).request(message, version, timeout_ms=timeout_ms)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def raw(self) -> Connection:
        return await self._cluster.client_environment.network.connect(f"b{self.broker_id}", BROKER_PORT)

    async def produce(
        self, topic: str, *batches: bytes, partition: int = 0, acks: int = -1, timeout_ms: int = 5000, version: int = 12
    ) -> Any:
        """Sends each batch as a request, all in flight together; returns the answer for the last one."""
        connection = await self.connection()
        pending = [
            connection.submit(
                ProduceRequest(
                    acks=acks,
                    timeout_ms=timeout_ms,
                    topic_data=[
                        TopicProduceData(
                            name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
                        )
                    ],
                ),
                version,
            )
            for records in batches
        ]
        answers: list[Any] = [await waiting.wait(60_000) for waiting in pending]
        return answers[-1].responses[0].partition_responses[0]

    async def fetch(self, topic: str, offset: int = 0, *, partition: int = 0, version: int = 12, **fields: Any) -> Any:
        request: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
        epoch = request.pop("current_leader_epoch", -1)
        last_fetched_epoch = request.pop("last_fetched_epoch", -1)
        partition_max_bytes = request.pop("partition_max_bytes", 1 << 20)
        answer = await self.request(
            FetchRequest(
                topics=[
                    FetchTopic(
                        topic=topic,
                        partitions=[
                            FetchPartition(
                                partition=partition,
                                fetch_offset=offset,
                                current_leader_epoch=epoch,
                                last_fetched_epoch=last_fetched_epoch,
                                partition_max_bytes=partition_max_bytes,
                            )
                        ],
                    )
                ],
                **request,
            ),
            version,
        )
        assert answer.error_code == ErrorCode.NONE
        return answer.responses[0].partitions[0]

    async def offset(self, topic: str, timestamp: int = -1, *, partition: int = 0, **fields: Any) -> Any:
        answer = await self.request(
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=timestamp)]
                    )
                ],
                **fields,
            ),
            9,
        )
        return answer.topics[0].partitions[0]

    async def metadata(self, *topics: str, version: int = 12) -> Any:
        return await self.request(
            MetadataRequest(
                topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
            ),
            version,
        )

    async def create_topic(self, name: str, *, partitions: int = 1, replicas: int = 1, **configs: str) -> None:
        answer = await self.request(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=replicas,
                        configs=[
                            CreatableTopicConfig(name=key.replace("_", "."), value=value)
                            for key, value in configs.items()
                        ],
                    )
                ],
                timeout_ms=10_000,
            )
        )
        assert answer.topics[0].error_code == ErrorCode.NONE, answer


class Cluster:
    """One controller and some brokers. ``running[broker_id]`` is the ``Broker`` of a process that has started."""

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 1,
        controllers: int = 1,
        racks: dict[int, str] | None = None,
        features: dict[int, dict[str, tuple[int, int]]] | None = None,
        own_listeners: dict[int, str] | None = None,
        first_broker: int = 1,
        first_controller: int = 101,
        **settings: str,
    ) -> None:
        """Prepares the nodes without starting them; the first ids let several clusters share a world.

        ``features``: the supported levels of nodes of another version, by node id. ``own_listeners``: listeners that
        replace the usual one, by broker id.
        """
        self.features = features or {}
        self.world = world
        self.settings = {**QUICK, **{key.replace("_", "."): value for key, value in settings.items()}}
        self.racks = racks or {}
        self.own_listeners = own_listeners or {}
        self.controller_ids = [first_controller + n for n in range(controllers)]
        self.broker_ids = list(range(first_broker, first_broker + brokers))
        self.running: dict[int, Any] = {}
        self.stops: dict[int, trio.Event] = {}
        self.requests: dict[int, RequestTimes] = {}
        self.client_environment = world.node("client").environment

    @property
    def voters(self) -> str:
        return ",".join(f"{node_id}@c{node_id}:{CONTROLLER_PORT}" for node_id in self.controller_ids)

    def controller_config(self, node_id: int) -> Config:
        return BROKER_CONFIG.parse(
            {
                "process.roles": "controller",
                "node.id": str(node_id),
                "listeners": f"CONTROLLER://c{node_id}:{CONTROLLER_PORT}",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": self.voters,
                "log.dirs": "/data",
                **{key: value for key, value in self.settings.items() if key.startswith(SHARED)},
            }
        )

    def broker_config(self, broker_id: int, **more: str) -> Config:
        given = {
            "process.roles": "broker",
            "node.id": str(broker_id),
            "listeners": self.own_listeners.get(broker_id, f"PLAINTEXT://b{broker_id}:{BROKER_PORT}"),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": self.voters,
            "log.dirs": "/data",
            "offsets.topic.replication.factor": str(min(3, len(self.broker_ids))),
            "transaction.state.log.replication.factor": str(min(3, len(self.broker_ids))),
            "transaction.state.log.min.isr": str(min(2, len(self.broker_ids))),
            "share.coordinator.state.topic.replication.factor": str(min(3, len(self.broker_ids))),
            "share.coordinator.state.topic.min.isr": str(min(2, len(self.broker_ids))),
            **self.settings,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
        if broker_id in self.racks:
            given["broker.rack"] = self.racks[broker_id]
        return BROKER_CONFIG.parse(given)

    def start_controller(self, node_id: int) -> None:
        config = self.controller_config(node_id)
        features = self.features.get(node_id, SUPPORTED_FEATURES)
        self.world.node(f"c{node_id}").start(lambda environment: run_controller(environment, config, features=features))

    def start_broker(self, broker_id: int, **more: str) -> None:
        config = self.broker_config(broker_id, **more)
        features = self.features.get(broker_id, SUPPORTED_FEATURES)
        stop = self.stops[broker_id] = trio.Event()

        async def main(environment: Environment) -> None:
            async with trio.open_nursery() as nursery:
                self.running[broker_id] = await nursery.start(
                    partial(
                        run_broker,
                        environment,
                        config,
                        shutdown=stop,
                        features=features,
                        requests=self.requests.setdefault(broker_id, RequestTimes()),
                    )
                )

        self.running.pop(broker_id, None)
        self.world.node(f"b{broker_id}").start(main)

    async def start(self) -> None:
        for node_id in self.controller_ids:
            self.start_controller(node_id)
        for broker_id in self.broker_ids:
            self.start_broker(broker_id)
        await self.until(lambda: len(self.running) == len(self.broker_ids))

    def kill(self, broker_id: int) -> None:
        self.running.pop(broker_id, None)
        self.world.node(f"b{broker_id}").kill()

    async def stop(self, broker_id: int) -> None:
        """Stops a broker with a controlled shutdown, and waits for its end."""
        self.stops[broker_id].set()
        with trio.fail_after(30):
            await self.world.node(f"b{broker_id}").wait_ended()
        self.running.pop(broker_id, None)

    async def until(self, condition: Callable[[], object], *, timeout_ms: float = 30_000) -> None:
        with trio.fail_after(timeout_ms / 1000):
            await self.world.agenda.wait_until(condition, every_seconds=0.005)

    def image(self) -> MetadataImage:
        """Returns the newest image of a running broker."""
        images: list[MetadataImage] = [broker.metadata.image for broker in self.running.values()]
        return max(images, key=lambda image: image.offset)

    def partition_image(self, topic: str, partition: int = 0) -> Any:
        """Returns a ``PartitionImage``, or None if the topic has no such partition."""
        return self.image().topics_by_name[topic].partitions.get(partition)

    def replica(self, broker_id: int, topic: str, partition: int = 0) -> Any:
        return self.running[broker_id].context.replicas.partitions.get((topic, partition))

    async def leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        """Waits until a live broker leads the partition by its own state; returns its id."""

        def led() -> bool:
            return self._leader(topic, partition, other_than) is not None

        await self.until(led)
        found = self._leader(topic, partition, other_than)
        assert found is not None
        return found

    def _leader(self, topic: str, partition: int, other_than: int) -> int | None:
        for broker_id in sorted(self.running):
            replica = self.replica(broker_id, topic, partition)
            if broker_id != other_than and replica is not None and replica.is_leader:
                return broker_id
        return None

    def client(self, broker_id: int) -> Client:
        return Client(self, broker_id)


def run_cluster(
    scenario: Callable[[Cluster], Awaitable[Any]],
    *,
    seed: int = 1,
    brokers: int = 1,
    controllers: int = 1,
    profile: NetworkProfile | None = None,
    **settings: Any,
) -> Any:
    """Runs ``scenario(cluster)`` against a started cluster; fails if an error ended a node."""

    async def main(world: World) -> tuple[Any, str]:
        cluster = Cluster(world, brokers=brokers, controllers=controllers, **settings)
        await cluster.start()
        result = await scenario(cluster)
        assert world.failures == []
        return result, world.trace.digest

    return run_world(main, seed, profile)


def frame(message: Request, version: int, correlation_id: int = 1) -> bytes:
    """Returns a request frame with its size."""
    return encode_request(message, version, correlation_id, "raw")


async def read_frame(connection: Connection) -> memoryview | None:
    """Reads one response frame without its size; None at the end of the stream."""
    data = bytearray()
    needed = 4
    while len(data) < needed:
        buffer = bytearray(65536)
        try:
            count = connection.receive_into_nowait(memoryview(buffer))
        except BlockingIOError:
            await connection.wait_readable()
            continue
        except ConnectionError:
            return None
        if count == 0:
            return None
        data += buffer[:count]
        if len(data) >= 4:
            needed = 4 + struct.unpack_from(">i", data)[0]
    return memoryview(bytes(data[4:needed]))


__all__ = ["Client", "Cluster", "batch", "decode_response", "frame", "read_frame", "run_cluster", "values_of"]
