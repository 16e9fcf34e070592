"""Goal: a leader serves followers of any id, and consumers, by the rules of each: what ends a wait, and which rights.

Method: the handlers of connections without sockets, on two simulated brokers with the ids 0 and 1. Each sends the
fetches of consumers and of both brokers; the followers themselves go on meanwhile.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from moldau_broker.replication.fetch_session import FINAL_EPOCH, FetchContext
from moldau_broker.server.data_path.connection import BrokerConnection, listener_services
from moldau_broker.server.data_path.fetch import FetchOperation, FetchService
from moldau_broker.server.handlers.apis import BASE_APIS, api_table
from support.cluster.broker_cluster import batch, decode_response, frame, run_cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.cluster.broker_cluster import Cluster

BROKERS = (0, 1)
CONSUMER = -1
VERSION = 12
EVICTION_S = 120
RACKS: dict[str, Any] = {"replica_selector_class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


class Fetcher:
    """One connection of a consumer, or of a follower of that id, to the leader of a partition."""

    def __init__(self, cluster: Cluster, number: int, leader: int, replica_id: int, identity: Any = None) -> None:
        self.number = number
        self.replica_id = replica_id
        self.peer = SimpleNamespace(identity=identity)
        self.context = cluster.running[leader].context
        self.partition = cluster.replica(leader, "t", number)
        services = listener_services(self.context, "PLAINTEXT", api_table(BASE_APIS))
        connection: Any = SimpleNamespace(peer_address=("client", 1))
        peer: Any = self.peer
        self.handler = BrokerConnection(services, connection, peer)
        self.session_id = self.epoch = 0

    def send(self, *, min_bytes: int = 1, max_wait_ms: int = 500) -> Any:
        """Sends a fetch of a session at the end of the log; returns its answer, or the operation that waits."""
        part = FetchPartition(
            partition=self.number,
            fetch_offset=self.partition.log.log_end_offset,
            log_start_offset=-1 if self.replica_id == CONSUMER else 0,
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_id=self.replica_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[] if self.epoch > 0 else [FetchTopic(topic="t", partitions=[part])],
        )
        self.epoch += 1
        return self.handler.handle(memoryview(bytearray(frame(request, VERSION)[4:])))

    def read(self, parts: Sequence[Any]) -> tuple[int, list[int]]:
        """Returns the error code of an answer, and those of its partitions."""
        data = b"".join(part if isinstance(part, bytes | memoryview) else bytes(part.count) for part in parts)
        _, response = decode_response(FetchResponse, VERSION, memoryview(data)[4:])
        self.session_id = response.session_id
        return response.error_code, [part.error_code for topic in response.responses for part in topic.partitions]

    def watched(self, operation: FetchOperation) -> list[Any]:
        """Returns the keys on which an operation waits."""
        watched = self.context.replicas.waits.fetches.purgatory.watched
        return [key for key, found in watched.items() if any(each.operation is operation for each in found)]


def service_of(replicas: Any, *, early: bool = False) -> FetchService:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    unused: Any = None
    return FetchService(clock, replicas, unused, max_bytes=1 << 20, early_watermarks=early, close_session=unused)


async def fetchers(cluster: Cluster, identity: Any = None) -> list[Fetcher]:
    """Makes a topic that both brokers lead and follow; returns a consumer and the follower of each partition."""
    await cluster.client(0).create_topic("t", partitions=2, replicas=2)
    found = []
    for number in range(2):
        leader = await cluster.leader("t", number)
        assert (await cluster.client(leader).produce("t", batch(b"v"), partition=number)).error_code == ErrorCode.NONE
        await cluster.until(lambda: len(cluster.partition_image("t", number).isr) == 2)  # noqa: B023
        found += [Fetcher(cluster, number, leader, who, identity) for who in (CONSUMER, 1 - leader)]
    assert {each.replica_id for each in found} == {CONSUMER, *BROKERS}
    return found


@pytest.mark.parametrize("early", [False, True])
def test_each_fetcher_waits_for_what_it_reads(early: bool) -> None:
    """A consumer reads committed records, a follower all; where consumers read from followers, those need the bound."""

    async def scenario(cluster: Cluster) -> None:
        for fetcher in await fetchers(cluster):
            follows, partition = fetcher.replica_id != CONSUMER, fetcher.partition
            if not (follows and early):
                waiting = fetcher.send()
                assert isinstance(waiting, FetchOperation), "the first answer of a session waits too"
                wanted = [(waiting._context.session, not follows)]
                assert fetcher.watched(waiting) == wanted
                fetcher.read(waiting.answer_early() or ())
                assert not fetcher.watched(waiting), "what is answered does not wait any more"
            else:
                fetcher.read(fetcher.send())
            waiting = fetcher.send()
            assert isinstance(waiting, FetchOperation)
            session = waiting._context.session
            assert set(fetcher.watched(waiting)) == {(session, not follows), *([(session, True)] if early else [])}
            assert waiting.answer_early() is None, "the session holds its memory"
            assert fetcher.watched(waiting)
            waiting.end_wait()
            assert not fetcher.watched(waiting)
            fetcher.context.sessions.close(session.session_id)
            fetcher.epoch = FINAL_EPOCH  # a fetch without a session
            if not (follows and early):
                waiting = fetcher.send()
                ends = [partition.end] if follows else [partition.committed]
                assert fetcher.watched(waiting) == ends
                waiting.end_wait()
                assert not fetcher.watched(waiting)

    run_cluster(scenario, brokers=2, first_broker=0, **(RACKS if early else {}))


def test_a_fetch_waits_only_if_it_asks_to() -> None:
    """Without a minimum or without time, a fetcher that has everything gets its empty answer at once."""

    async def scenario(cluster: Cluster) -> None:
        for fetcher in await fetchers(cluster):
            fetcher.read(fetcher.send(min_bytes=0))
            for min_bytes, max_wait_ms in product((0, 1), (0, 500)):
                answer = fetcher.send(min_bytes=min_bytes, max_wait_ms=max_wait_ms)
                assert isinstance(answer, FetchOperation) is bool(min_bytes and max_wait_ms)
                if isinstance(answer, FetchOperation):
                    answer.end_wait()

    run_cluster(scenario, brokers=2, first_broker=0)


def test_followers_learn_at_once_what_consumers_may_read_there() -> None:
    """A consumer in their rack waits for it; without the news it would wait for the next record, or half a second."""

    async def scenario(cluster: Cluster) -> None:
        await fetchers(cluster)
        for number, partition in enumerate(["t-0", "t-1"]):
            leader = await cluster.leader("t", number)
            follower = cluster.replica(1 - leader, "t", number)
            for _ in range(3):
                await trio.sleep(0.7)
                assert (await cluster.client(leader).produce("t", batch(b"v"), partition=number)).error_code == 0
                await trio.sleep(0.1)
                assert follower.replica.high_watermark == follower.log.log_end_offset, partition

    run_cluster(scenario, brokers=2, first_broker=0, **RACKS)


def test_brokers_follow_by_a_right_of_their_own() -> None:
    """They need CLUSTER_ACTION and no right to read; one connection may change its identity (KIP-368)."""

    async def scenario(cluster: Cluster) -> None:
        def permissions(context: Any, identity: str) -> Any:
            return SimpleNamespace(
                identity=identity,
                acls=context.metadata.image.acls,
                basis=object(),
                readable=(set(), set()),
                may_cluster=lambda _: identity == "broker",
                topic_error=lambda *_, **__: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                refresh=lambda: None,
            )

        denied = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
        found = [each for each in await fetchers(cluster, "broker") if each.replica_id != CONSUMER]
        for fetcher in found:
            context, before = fetcher.context, fetcher.context.authorizer
            context.authorizer = SimpleNamespace(permissions=partial(permissions, context))
            try:
                waiting = fetcher.send()
                assert fetcher.read(waiting.answer_early()) == (ErrorCode.NONE, [ErrorCode.NONE])
                for identity, wanted in (("other", denied), ("broker", (ErrorCode.NONE, [])), ("other", denied)):
                    fetcher.peer.identity = identity
                    session = fetcher.session_id, fetcher.epoch
                    assert fetcher.read(fetcher.send(max_wait_ms=0)) == wanted
                    if wanted is denied:
                        fetcher.session_id, fetcher.epoch = session
            finally:
                context.authorizer = before

    run_cluster(scenario, brokers=2, first_broker=0)


def test_a_consumer_takes_no_session_from_a_follower() -> None:
    """The cache of sessions has room for one, which the follower keeps, however old the session is."""

    async def scenario(cluster: Cluster) -> None:
        consumer, follower, *_ = await fetchers(cluster)
        await trio.sleep(EVICTION_S + 10)
        consumer.read(consumer.send(max_wait_ms=0))
        assert consumer.session_id == 0
        (session,) = follower.context.sessions._sessions.values()
        assert session.privileged

    run_cluster(scenario, brokers=2, first_broker=0, max_incremental_fetch_session_cache_slots="1")


@pytest.mark.parametrize("replica_id", [CONSUMER, 0, 2])
def test_only_copies_outside_the_isr_use_up_the_rate(replica_id: int) -> None:
    """The rate is for the copies of throttled topics; all bytes are counted, those of followers by themselves."""
    for throttled, isr in product((False, True), ((1,), (1, 0), (1, 2))):
        spent: list[int] = []
        traffic = SimpleNamespace(replication_bytes_out=0, bytes_out=0)
        replica = SimpleNamespace(maximal_isr=isr)
        partition = SimpleNamespace(traffic=traffic, leader_throttled=throttled, replica=replica)
        throttle = SimpleNamespace(spend=lambda count, _, spent=spent: spent.append(count))
        replicas: Any = SimpleNamespace(by_raw_name={(b"t", 0): partition}, leader_throttle=throttle)
        service = service_of(replicas)
        query: Any = SimpleNamespace(version=VERSION, replica_id=replica_id)
        wanted: Any = SimpleNamespace(topic=b"t", partition=0)
        service._count_sent(query, wanted, 70)
        follows = replica_id != CONSUMER
        assert spent == [70] * (follows and throttled and replica_id not in isr)
        assert (traffic.replication_bytes_out, traffic.bytes_out) == ((70, 0) if follows else (0, 70))


def test_a_throttled_follower_is_not_woken() -> None:
    """It would get nothing, ask again at once, and so on until its rate allows more."""
    for held, early, log_end, watermark in product((False, True), (False, True), (4, 5), (2, 3)):
        partition: Any = Mock(log=Mock(log_end_offset=log_end), replica=Mock(high_watermark=watermark))
        replicas: Any = SimpleNamespace(holds_back=lambda *_, held=held: held)
        query: Any = SimpleNamespace(replica_id=2, min_bytes=1, isolation_level=0)
        operation = FetchOperation(service_of(replicas, early=early), query, FetchContext(), None, None)
        wanted: Any = SimpleNamespace(fetch_offset=4, sent_high_watermark=2)
        operation.wanted = {partition: wanted}
        news = log_end > 4 or (early and watermark > 2)
        assert operation.ready(partition) is (news and not held), (held, early, log_end, watermark)


@pytest.mark.parametrize("address", [("10.0.0.1", 7), ("fe80::1", 7, 0, 2)])
def test_a_client_has_an_address_of_any_family(address: tuple[Any, ...]) -> None:
    services: Any = SimpleNamespace(quotas=SimpleNamespace())
    connection: Any = SimpleNamespace(peer_address=address)
    peer: Any = SimpleNamespace(identity=None)
    handler = BrokerConnection(services, connection, peer)
    assert (handler._client_host, handler._client_port) == address[:2]
