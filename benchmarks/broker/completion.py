"""How long a transaction takes from the answer to EndTxn until its producer may begin the next one:

    python -m benchmarks.broker.completion [--producers N] [--rounds R] [--bootstrap HOST:PORT | --kafka CACHE]

The coordinator answers EndTxn when the outcome is decided. It then has the markers written, and refuses a new
transaction with CONCURRENT_TRANSACTIONS until it has recorded the end. Each producer writes one record to each of three
partitions, commits, and asks every 2 ms whether it may add a partition again. Without ``--bootstrap`` the cluster is
one of Moldau's launcher (three brokers, three controllers); any cluster of Kafka's protocol may be named instead.
``--kafka`` starts Apache Kafka (three brokers, one controller) and fetches it into the folder CACHE if it is not there.
The load average before and after stands beside the figures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path
from typing import TypeVar

import trio
from benchmarks.broker.peers import KafkaPeer, kafka_libraries

from moldau.admin import Admin, NewTopic
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from moldau.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from moldau.protocol.schema import Request, Response
from moldau.records import encode_batch
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.launcher import ClusterSpec, LocalCluster, start_cluster

TOPIC = "completion"
PARTITIONS = 3
ASK_SECONDS = 0.002
ENVIRONMENT = real_environment()


R = TypeVar("R", bound=Response)


async def ask(connection: RpcConnection, kind: type[R], request: Request, version: int) -> R:
    """Returns the response to a request, which is of this kind."""
    response = await connection.request(request, version)
    assert isinstance(response, kind)
    return response


class Producer:
    """One transactional id on connections of its own."""

    def __init__(self, number: int, bootstrap: str) -> None:
        self.transactional_id = f"completion-{number}"
        self._bootstrap = bootstrap.split(",")[0]
        self._sequence = 0

    async def open(self) -> None:
        """Finds coordinator and leaders, and gets a producer id."""
        host, port = self._bootstrap.rsplit(":", 1)
        any_broker = await RpcConnection.open(ENVIRONMENT, host, int(port), "completion")
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        while True:
            (found,) = (await ask(any_broker, FindCoordinatorResponse, find, 4)).coordinators
            if found.error_code == ErrorCode.NONE:
                break
            await trio.sleep(0.1)
        self._coordinator = await RpcConnection.open(ENVIRONMENT, found.host, found.port, "completion")
        init = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=60_000)
        answer = await ask(self._coordinator, InitProducerIdResponse, init, 4)
        while answer.error_code != ErrorCode.NONE:
            await trio.sleep(0.1)
            answer = await ask(self._coordinator, InitProducerIdResponse, init, 4)
        self._identity = answer.producer_id, answer.producer_epoch
        metadata = await ask(
            any_broker,
            MetadataResponse,
            MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False),
            12,
        )
        addresses = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
        self._leaders = {
            part.partition_index: await RpcConnection.open(ENVIRONMENT, *addresses[part.leader_id], "completion")
            for part in metadata.topics[0].partitions
        }

    async def _add(self) -> ErrorCode:
        producer_id, epoch = self._identity
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(PARTITIONS)))],
        )
        answer = await ask(self._coordinator, AddPartitionsToTxnResponse, request, 3)
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def _write(self, partition: int) -> None:
        producer_id, epoch = self._identity
        records = encode_batch(
            [(1, None, b"x", ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence,
            is_transactional=True,
        )
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=partition, records=records)])
        request = ProduceRequest(transactional_id=self.transactional_id, acks=-1, timeout_ms=30_000, topic_data=[data])
        code = ErrorCode.NOT_ENOUGH_REPLICAS
        while code is ErrorCode.NOT_ENOUGH_REPLICAS:  # also where the coordinator could not be asked yet
            answer = await ask(self._leaders[partition], ProduceResponse, request, 9)
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        assert code is ErrorCode.NONE, code

    async def rounds(self, count: int, found: list[tuple[float, float]]) -> None:
        """Runs transactions; collects milliseconds to the answer of EndTxn, and from there to the next one."""
        while (code := await self._add()) is not ErrorCode.NONE:
            assert code is ErrorCode.CONCURRENT_TRANSACTIONS, code
            await trio.sleep(ASK_SECONDS)
        for _ in range(count):
            for partition in range(PARTITIONS):
                await self._write(partition)
            self._sequence += 1
            producer_id, epoch = self._identity
            began = trio.current_time()
            answer = await ask(
                self._coordinator,
                EndTxnResponse,
                EndTxnRequest(
                    transactional_id=self.transactional_id,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    committed=True,
                ),
                3,
            )
            assert answer.error_code == ErrorCode.NONE, answer
            ended = trio.current_time()
            while (code := await self._add()) is not ErrorCode.NONE:
                assert code is ErrorCode.CONCURRENT_TRANSACTIONS, code
                await trio.sleep(ASK_SECONDS)
            found.append(((ended - began) * 1000, (trio.current_time() - ended) * 1000))


async def measure(bootstrap: str, producers: int, rounds: int) -> list[tuple[float, float]]:
    """All transactions of all producers, which run at the same time."""
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)])
    found: list[tuple[float, float]] = []
    clients = [Producer(number, bootstrap) for number in range(producers)]
    for client in clients:
        await client.open()
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.rounds, rounds, found)
    return found


def load_average() -> str:
    """Returns the load averages of the machine for 1 and 5 minutes."""
    return "{:.1f}, {:.1f}".format(*os.getloadavg()[:2])


def report(found: list[tuple[float, float]], producers: int, load_before: str) -> None:
    """Prints two lines: median, 99th percentile and longest time."""
    for name, values in zip(("EndTxn answered", "next one admitted"), zip(*found, strict=True), strict=True):
        ordered = sorted(values)
        median, late = statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        print(
            f"{producers:3d} producers: {name:18s} median {median:7.1f} ms, 99% {late:7.1f} ms, longest "
            f"{ordered[-1]:7.1f} ms, {len(ordered)} transactions, load {load_before} to {load_average()}"
        )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Time from the end of a transaction to the next one.")
    parser.add_argument("--producers", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--bootstrap")
    parser.add_argument("--kafka", type=Path, metavar="CACHE")
    options = parser.parse_args()
    for producers in options.producers or [1, 10]:
        before = load_average()
        if options.bootstrap:
            report(trio.run(measure, options.bootstrap, producers, options.rounds), producers, before)
            continue
        with tempfile.TemporaryDirectory(prefix="moldau-", ignore_cleanup_errors=True) as directory:
            cluster: KafkaPeer | LocalCluster
            if options.kafka is not None:
                cluster = KafkaPeer(kafka_libraries(options.kafka), Path(directory), 3, {})
            else:
                cluster = start_cluster(Path(directory) / "cluster", ClusterSpec())
            try:
                report(trio.run(measure, cluster.bootstrap, producers, options.rounds), producers, before)
            finally:
                cluster.shut_down()


if __name__ == "__main__":
    main()
