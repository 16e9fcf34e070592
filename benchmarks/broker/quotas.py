"""The cost that quotas add to one Produce or Fetch request, in the bare handler of a connection:

    python -m benchmarks.broker.quotas [--requests N] [--rounds R]

A broker in a simulated world, so that neither sockets nor disks take part. The same connection handles the same frame
again and again (acks=1, one record of 100 bytes; a fetch of one such batch), first without any quota, then with quotas
that limit only other clients, then with a quota of bytes, and with quotas of bytes and of request time. No client is
above its quota. Figures are microseconds of CPU for one request: the median of all rounds, whose cases take turns, and
the least round behind it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from moldau.protocol.framing import encode_request
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.records import encode_batch
from moldau.runtime.ports.real import real_environment
from moldau.runtime.sasl.core.identity import Identity, Peer
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.world.world import run_world
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClientQuotaRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.protocol.schema import Request
    from moldau_jepsen.world.world import World

TOPIC = "quotas"
VERSION = 12
PLENTY = 1e15
CASES: Mapping[str, Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]]] = {
    "no quota": {},
    "others limited": {(("client-id", "other"),): {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0}},
    "bytes limited": {(("user", None),): {"producer_byte_rate": PLENTY, "consumer_byte_rate": PLENTY}},
    "bytes and time": {
        (("user", None),): {"producer_byte_rate": PLENTY, "consumer_byte_rate": PLENTY, "request_percentage": PLENTY}
    },
}


def frame(message: Request) -> memoryview:
    """Returns a request without its size."""
    return memoryview(encode_request(message, VERSION, 1, "benchmark"))[4:]


def produce_frame() -> memoryview:
    """Returns a Produce request of one record."""
    records = encode_batch([(1_000, None, bytes(100), ())])
    data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=records)])
    return frame(ProduceRequest(acks=1, timeout_ms=1_000, topic_data=[data]))


def fetch_frame() -> memoryview:
    """Returns a Fetch request that finds records."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    return frame(
        FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=100, topics=[FetchTopic(topic=TOPIC, partitions=[partition])]
        )
    )


def microseconds(work: Callable[[], object], repeats: int) -> float:
    """Returns the CPU time of one call."""
    gc.collect()
    gc.disable()
    begun = time.process_time()
    for _ in range(repeats):
        work()
    spent = time.process_time() - begun
    gc.enable()
    return spent / repeats * 1e6


def set_quotas(broker: object, case: str) -> None:
    """Gives a broker the quotas of a case, as a change of metadata does."""
    quotas = getattr(broker.context, "quotas", None)  # type: ignore[attr-defined]
    if quotas is None:
        return  # an older version, for comparison
    none = MetadataImage()
    records = [
        ClientQuotaRecord(entity=entity, key=key, value=value)
        for entity, values in CASES[case].items()
        for key, value in values.items()
    ]
    quotas.index = type(quotas.index)()
    quotas.follow(none.apply(records, offset=1, epoch=1))


async def measure(world: World, repeats: int, rounds: int) -> dict[tuple[str, str], list[float]]:
    """Returns the figures of all rounds by request and case."""
    cluster = SimulatedCluster(world, ClusterShape(brokers=1, controllers=1))
    cluster.start_all()
    await cluster.wait_healthy(60)
    await cluster.create_topic(world.node("client").environment, TOPIC, 1, {"retention.ms": "-1"})
    (broker,) = cluster.brokers.values()
    if hasattr(broker.context, "quotas"):
        broker.context.quotas.clock = real_environment(1).clock  # the virtual one costs more than quotas do
    services = listener_services(broker.context, "PLAINTEXT", api_table(BASE_APIS))
    who = Identity(principal="User:alice", host="h", listener_name="PLAINTEXT", security_protocol="PLAINTEXT")
    connection = BrokerConnection(services, SimpleNamespace(peer_address=("h", 1)), Peer(who))
    found: dict[tuple[str, str], list[float]] = {}
    for kind, request in (("produce", produce_frame()), ("fetch", fetch_frame())):

        def handle(request: memoryview = request) -> None:
            connection.handle(request)
            connection.flush()

        microseconds(handle, repeats)  # warm
        for _ in range(rounds):
            for case in CASES:
                set_quotas(broker, case)
                found.setdefault((kind, case), []).append(microseconds(handle, repeats))
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=3_000, help="in a round")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    found = run_world(lambda world: measure(world, given.requests, given.rounds), seed=1)
    for (kind, case), figures in found.items():
        print(f"{kind:8} {case:15} {statistics.median(figures):7.2f} us  least {min(figures):7.2f} us")


if __name__ == "__main__":
    main()
