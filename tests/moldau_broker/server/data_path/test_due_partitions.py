"""Goal: a fetch session that looks at changed partitions only answers as one that looks at all of them.

Method: two consumers send the same requests in sessions of their own, to one broker on virtual time. The one with a
rack makes the broker look at each partition every time; the answers must be equal. Between the requests, records are
produced, deleted and expire, partitions move between the sessions, and topics are deleted and created again.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster
from support.proof import all_examples

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

TOPICS = ("a", "b")
PARTITIONS = 4
STEPS = 120 if all_examples() else 60
BY_NAME, BY_ID = 12, 13

Key = tuple[str, int]


class Reader:
    """One consumer's session, on a connection without a socket."""

    def __init__(self, cluster: Any, version: int, rack: str) -> None:
        services = listener_services(cluster.running[1].context, "PLAINTEXT", api_table(BASE_APIS))
        connection: Any = SimpleNamespace(peer_address=("client", 1))
        peer: Any = SimpleNamespace(identity=None)
        self.handler = BrokerConnection(services, connection, peer)
        self.version = version
        self.rack = rack
        self.session_id = self.epoch = 0

    def fetch(self, named: dict[Key, int], forgotten: list[Key], ids: dict[str, UUID]) -> Any:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            rack_id=self.rack,
            topics=[
                FetchTopic(
                    topic=topic,
                    topic_id=ids[topic],
                    partitions=[FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=300)],
                )
                for (topic, number), offset in named.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=ids[topic], partitions=[number]) for topic, number in forgotten
            ],
        )
        body = bytearray(frame(request, self.version)[4:])
        answer: Any = self.handler.handle(memoryview(body))
        data = b"".join(part if isinstance(part, bytes | memoryview) else bytes(part.count) for part in answer)
        _, response = decode_response(FetchResponse, self.version, memoryview(data)[4:])
        assert response.error_code == 0
        self.session_id, self.epoch = response.session_id, self.epoch + 1
        return [
            (
                *(topic.topic, topic.topic_id, part.partition_index, part.error_code),
                *(part.high_watermark, part.log_start_offset, part.last_stable_offset, len(part.records or b"")),
            )
            for topic in response.responses
            for part in topic.partitions
        ]


class Consumers:
    """Both sessions, and what they want."""

    def __init__(self, cluster: Any, version: int) -> None:
        self.cluster = cluster
        self.readers = [Reader(cluster, version, rack) for rack in ("", "a")]
        self.offsets: dict[Key, int] = {}
        self.named: dict[Key, int] = {}
        self.sent: dict[Key, None] = {}
        """The partitions of the sessions."""
        self.forgotten: list[Key] = []
        self.ids: dict[str, UUID] = {}

    def want(self, key: Key, offset: int) -> None:
        self.offsets[key] = self.named[key] = offset
        if key in self.forgotten:
            self.forgotten.remove(key)

    def forget(self, key: Key) -> None:
        if key in self.offsets and len(self.offsets) > 1:
            del self.offsets[key]
            self.named.pop(key, None)
            if key in self.sent:
                self.forgotten.append(key)

    def fetch(self) -> int:
        """Returns how many partitions both answers name."""
        indexed, plain = [reader.fetch(self.named, self.forgotten, self.ids) for reader in self.readers]
        self.sent = dict.fromkeys(self.offsets)
        self.named, self.forgotten = {}, []
        assert indexed == plain
        return len(indexed)

    def due(self) -> int:
        sessions = self.cluster.running[1].context.sessions._sessions
        return len(sessions[self.readers[0].session_id].due)


async def make_topic(cluster: Any, name: str) -> UUID:
    await cluster.client(1).create_topic(
        name, partitions=PARTITIONS, **{"retention.ms": "60000", "segment.ms": "20000"}
    )
    for number in range(PARTITIONS):
        await cluster.leader(name, number)
    topic_id: UUID = cluster.image().topics_by_name[name].topic_id
    return topic_id


@pytest.mark.drawn
@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_due_partitions_answer_as_all_partitions(version: int) -> None:
    async def scenario(cluster: Any) -> None:
        random = Random(version)
        client = cluster.client(1)
        consumers = Consumers(cluster, version)
        for topic in TOPICS:
            consumers.ids[topic] = await make_topic(cluster, topic)
        keys = [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
        for key in keys:
            consumers.want(key, 0)
        consumers.fetch()

        async def produce(key: Key) -> None:
            await client.produce(key[0], batch(*[b"x" * 50] * random.randint(1, 4)), partition=key[1])

        async def advance(key: Key) -> None:
            if key in consumers.offsets:
                consumers.want(key, max(0, consumers.offsets[key] + random.randint(-1, 3)))

        async def toggle(key: Key) -> None:
            if key in consumers.offsets:
                consumers.forget(key)
            else:
                consumers.want(key, random.randint(0, 3))

        async def delete_records(key: Key) -> None:
            parts = [DeleteRecordsPartition(partition_index=key[1], offset=-1)]
            topics = [DeleteRecordsTopic(name=key[0], partitions=parts)]
            await client.request(DeleteRecordsRequest(topics=topics, timeout_ms=1000))

        async def recreate(key: Key) -> None:
            topic = key[0]
            for each in [each for each in consumers.offsets if each[0] == topic]:
                consumers.forget(each)
            if not consumers.offsets or any(each[0] == topic for each in consumers.offsets):
                return
            consumers.fetch()
            await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=5000))
            consumers.fetch()
            consumers.ids[topic] = await make_topic(cluster, topic)

        async def rest(_: Key) -> None:
            await trio.sleep(random.choice((1, 30)))

        steps: list[Callable[[Key], Any]] = [produce, produce, produce, advance, advance, toggle, delete_records]
        named = looks = 0
        for _ in range(STEPS):
            step = random.choice([*steps, rest] if random.random() < 0.9 else [recreate])
            await step(random.choice(keys))
            for _ in range(random.randint(0, 2)):
                named += consumers.fetch()
                looks += consumers.due()
        assert named > STEPS / 2, "hardly anything was compared"
        for key in list(consumers.offsets):
            consumers.want(key, int(cluster.replica(1, *key).replica.high_watermark))
        for _ in range(3):
            consumers.fetch()
        assert consumers.due() == 0, "partitions at rest are still looked at"

    run_cluster(scenario)


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
@pytest.mark.parametrize("ending", ["deleted", "moved"])
def test_the_end_of_replicas_at_rest_is_answered(ending: str, version: int) -> None:
    """Else a consumer waits for records of a broker that has the partition no more, and looks for no other leader."""

    async def scenario(cluster: Any) -> None:
        consumers = Consumers(cluster, version)
        client = cluster.client(1)
        await client.create_topic("a", partitions=PARTITIONS)  # without settings, whose change would make them due
        led = [number for number in range(PARTITIONS) if await cluster.leader("a", number) == 1]
        assert led
        consumers.ids["a"] = cluster.image().topics_by_name["a"].topic_id
        for number in led:
            consumers.want(("a", number), 0)

        def ended() -> bool:
            """Returns whether the replicas are gone, and lets the consumers fetch as long as they are not."""
            is_over = not any(cluster.replica(1, "a", number) for number in led)
            if not is_over:
                consumers.fetch()
            return is_over

        for _ in range(3):
            assert not ended()
        assert consumers.due() == 0
        if ending == "deleted":
            await client.request(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")], timeout_ms=5000))
        else:
            moves = [ReassignablePartition(partition_index=number, replicas=[2]) for number in led]
            await client.request(
                AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="a", partitions=moves)])
            )
        await cluster.until(ended)
        assert consumers.fetch() == len(led)

    run_cluster(scenario, brokers=2)
