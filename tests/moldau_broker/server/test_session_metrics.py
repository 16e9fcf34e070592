"""Goal: exported counts of connections, requests, sessions, share-partitions and transactions are those of a model.

Method: one simulated broker. The test opens, sends and closes a known number of each, and keeps the counts itself.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from types import SimpleNamespace

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from moldau.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from moldau.runtime.telemetry.metrics import LATENCY_BUCKETS_MS, Histogram, Registry
from moldau_broker.server.metrics import export
from moldau_broker.server.metrics.groups import register_groups
from moldau_broker.server.metrics.quotas import GROUPS_MAX, register_quotas
from moldau_broker.server.metrics.traffic import BrokerTraffic
from moldau_quorum.quotas.client_quotas import BROKER_QUOTAS, ClientQuotas
from moldau_quorum.quotas.precedence import Limit
from moldau_quorum.quotas.rate import Windows
from support.cluster.broker_cluster import batch, run_cluster
from support.cluster.transactional_client import TransactionalProducer
from support.metrics_samples import SAMPLE, scrape
from support.share.member import Member, acquired
from support.share.memory_persister import MemoryPersister

OK = ErrorCode.NONE
TRAFFIC = "kafka_server_brokertopicmetrics_"
SOCKETS = "kafka_server_socketservermetrics_"
FETCH = "kafka_server_fetchsessioncache_"
SHARE = "kafka_server_sharesessioncache_"
LATE = "kafka_server_replicamanager_partitionswithlatetransactionscount"
PRODUCER_IDS = "kafka_server_replicamanager_produceridcount"
REFUSED = 'kafka_server_brokertopicmetrics_failedproducerequests_total{topic="t"}'
KEYS = dict(zip(("produce", "fetch", "request"), BROKER_QUOTAS, strict=True))
KEPT = 'kafka_server_brokertopicmetrics_messagesin_total{topic="t"}'


def run(scenario, **settings):
    """Runs a scenario with one broker and a topic ``t`` of three partitions."""

    async def prepared(cluster):
        await cluster.client(1).create_topic("t", partitions=3)
        await cluster.leader("t")
        await scenario(cluster)

    run_cluster(prepared, brokers=1, **settings)


def samples(cluster):
    return scrape(cluster.running[1], cluster.requests[1])


def of_listener(cluster, name):
    (found,) = [value for key, value in samples(cluster).items() if key.startswith(f"{SOCKETS}{name}{{")]
    return found


def requests_of(cluster):
    prefix = "kafka_network_requestmetrics_requests_total{"
    return Counter({key.removeprefix(prefix): n for key, n in samples(cluster).items() if key.startswith(prefix)})


def test_connections_are_counted():
    async def scenario(cluster):
        before, created = of_listener(cluster, "connection_count"), of_listener(cluster, "connection_creation_total")
        client, opened = cluster.client(1), []
        for number in range(1, 5):
            opened.append(await client.raw())
            await cluster.until(lambda number=number: of_listener(cluster, "connection_count") == before + number)
        for number, connection in enumerate(opened, 1):
            connection.close()
            await cluster.until(lambda number=number: of_listener(cluster, "connection_count") == before + 4 - number)
        assert of_listener(cluster, "connection_creation_total") == created + 4

    run(scenario)


def test_requests_and_refused_batches_are_counted():
    async def scenario(cluster):
        client, before = cluster.client(1), requests_of(cluster)
        good, bad = batch(b"1", b"2"), bytearray(batch(b"3"))
        bad[-1] ^= 1  # the checksum of the batch no longer fits
        sent = Counter()
        for version in (9, 12, 12):
            await client.metadata("t", version=version)
            sent[f'request="Metadata",version="{version}"}}'] += 1
        for records, wanted in (
            (good, ErrorCode.NONE),
            (bytes(bad), ErrorCode.CORRUPT_MESSAGE),
            (good, ErrorCode.NONE),
        ):
            for partition in (0, 2):
                answer = await client.produce("t", records, partition=partition)
                assert answer.error_code == wanted
                sent['request="Produce",version="12"}'] += 1
        for _ in range(3):
            await client.fetch("t")
            sent['request="Fetch",version="12"}'] += 1
        found = requests_of(cluster)
        assert {key: found[key] - before[key] for key in sent} == sent
        assert (samples(cluster)[REFUSED], samples(cluster)[KEPT]) == (2, 8)

    run(scenario)


def test_fetch_sessions_are_counted():
    async def scenario(cluster):
        client, opened = cluster.client(1), {}

        async def fetch(*partitions, session_id=0, epoch=0):
            asked = [FetchPartition(partition=index, partition_max_bytes=1000) for index in partitions]
            topics = [FetchTopic(topic="t", partitions=asked)] if asked else []
            request = FetchRequest(
                topics=topics, session_id=session_id, session_epoch=epoch, max_wait_ms=0, min_bytes=0, max_bytes=1000
            )
            answer = await client.request(request, 12)
            assert answer.error_code == ErrorCode.NONE
            return answer.session_id

        def check(evicted):
            found = samples(cluster)
            assert found[FETCH + "numincrementalfetchsessions"] == len(opened)
            assert found[FETCH + "numincrementalfetchpartitionscached"] == sum(opened.values())
            assert found[FETCH + "incrementalfetchsessionevictions_total"] == evicted

        check(0)
        first = await fetch(0, 1)
        opened[first] = 2
        check(0)
        await fetch(2, session_id=first, epoch=1)
        opened[first] = 3
        second = await fetch(0)
        opened[second] = 1
        check(0)
        assert await fetch(1) == 0, "there is room for two, and both are in use"
        check(0)
        await trio.sleep(130)
        third = await fetch(1, 2)
        del opened[first]  # that was used longest ago
        opened[third] = 2
        check(1)
        await fetch(session_id=second, epoch=-1)
        del opened[second]
        check(1)

    run(scenario, max_incremental_fetch_session_cache_slots="2")


def test_share_sessions_are_counted():
    async def scenario(cluster):
        cluster.running[1].context.share_partitions.persister = MemoryPersister()
        a, b = Member(cluster, 1, "a"), Member(cluster, 1, "b")

        def counts():
            found = samples(cluster)
            names = (SHARE + "sharesessionscount", SHARE + "sharepartitionscount")
            return tuple(found[name] for name in (*names, "moldau_share_partitions", "moldau_share_records_in_flight"))

        assert counts() == (0, 0, 0, 0)
        await a.fetch(0, max_wait_ms=100)
        assert counts() == (1, 1, 1, 0)
        await b.fetch(0, 1, max_wait_ms=100)
        assert counts() == (2, 3, 2, 0)
        await cluster.client(1).produce("t", batch(b"0", b"1", b"2"))
        assert acquired(await a.fetch(max_wait_ms=1000)) == {0: [(0, 2, 1)]}
        assert counts() == (2, 3, 2, 3)
        await a.acknowledge({0: [(0, 1, (1,))]})
        await cluster.until(lambda: counts() == (2, 3, 2, 1))
        await b.acknowledge({}, share_session_epoch=-1)
        await cluster.until(lambda: counts()[:2] == (1, 1))
        letters = cluster.running[1].context.share_partitions.dead_letters.counts
        letters.written, letters.given_up = 3, 2
        found = samples(cluster)
        assert found['moldau_share_dead_letters_total{outcome="written"}'] == 3
        assert found['moldau_share_dead_letters_total{outcome="given_up"}'] == 2

    run(scenario)


def test_transactions_are_counted():
    async def scenario(cluster):
        def counts():
            prefix, found = "moldau_transactional_ids{", samples(cluster)
            states = {key.split('"')[1]: n for key, n in found.items() if key.startswith(prefix) and n}
            return states, found["moldau_transaction_open_max_ms"]

        assert counts() == ({}, 0)
        one, two = (TransactionalProducer(cluster, name, timeout_ms=60_000) for name in ("one", "two"))
        await one.begin()
        await two.begin()
        assert counts() == ({"Empty": 2}, 0)
        assert await one.add(0) == ErrorCode.NONE
        await trio.sleep(2)
        assert await two.add(1) == ErrorCode.NONE
        states, open_ms = counts()
        assert states == {"Ongoing": 2}
        assert 2000 <= open_ms < 2500, "the older of both"
        assert await one.end(commit=True) == ErrorCode.NONE
        await cluster.until(lambda: counts()[0] == {"CompleteCommit": 1, "Ongoing": 1})
        assert counts()[1] < open_ms
        assert await two.end(commit=False) == ErrorCode.NONE
        await cluster.until(lambda: counts() == ({"CompleteCommit": 1, "CompleteAbort": 1}, 0))
        partitions = 'moldau_transaction_partitions{state="%s"}'
        assert (samples(cluster)[partitions % "active"], samples(cluster)[partitions % "loading"]) == (2, 0)

    run(scenario)


def test_late_transactions_and_producer_ids_are_counted():
    """A transaction is late when nothing was written to it for the longest timeout and five minutes more (KIP-664).

    The longest timeout is two minutes here.

    No coordinator knows these transactions, as after a bug or a lost transaction log, so only an operator ends them.
    """

    async def scenario(cluster):
        client = cluster.client(1)

        def counts():
            found = samples(cluster)
            return found[LATE], found[PRODUCER_IDS]

        async def write(partition, producer_id, sequence=0, **more):
            client.close()  # the broker closes connections that are idle for ten minutes
            now_ms = int(cluster.running[1].context.environment.clock.wall_ms())
            fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, **more}
            part = PartitionProduceData(index=partition, records=batch(b"x", timestamp=now_ms, **fields))
            data = [TopicProduceData(name="t", partition_data=[part])]
            wanted = ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=5000, topic_data=data)
            (answer,) = (await client.request(wanted, 11)).responses
            assert answer.partition_responses[0].error_code == OK

        async def write_open(partition, producer_id, sequence=0):
            await write(partition, producer_id, sequence, is_transactional=True)

        assert counts() == (0, 0)
        await write_open(0, 7)
        await write_open(0, 8)
        await write_open(2, 7)
        assert counts() == (0, 3)
        await trio.sleep(90)
        await write_open(2, 7, sequence=1)
        await trio.sleep(270)
        assert counts() == (0, 3), "6 minutes"
        await trio.sleep(2 * 60)
        assert counts() == (1, 3), "partition 0 is late, with two transactions; partition 2 has been written to"
        await write(1, 9)
        assert counts() == (1, 4)
        await trio.sleep(60)
        assert counts() == (2, 4)

    run(scenario, transaction_max_timeout_ms="120000", transaction_partition_verification_enable="false")


def test_what_is_gone_has_no_sample_any_more():
    """A state without groups and a log that was deleted; their last numbers would stay on the page for ever."""
    counts = {("consumer", "Stable"): 2, ("classic", "Empty"): 1}
    groups = SimpleNamespace(statistics=lambda: SimpleNamespace(partitions={}, groups=counts))
    log = SimpleNamespace(log_end_offset=9, log_start_offset=4)
    partitions = {("t", 0): SimpleNamespace(log=log), ("t", 1): SimpleNamespace(log=log)}
    logs = SimpleNamespace(directories=[], cordons={}, room=SimpleNamespace(spaces={}))
    context = SimpleNamespace(groups=groups, logs=logs, replicas=SimpleNamespace(partitions=partitions))
    broker, registry = SimpleNamespace(context=context, flush_times=Histogram(LATENCY_BUCKETS_MS)), Registry()
    register_groups(registry, broker)
    export._register_logs(registry, broker)

    def shown():
        names = ("group_count{", "logendoffset{", "logstartoffset{")
        lines = [line for line in registry.expose().splitlines() if any(name in line for name in names)]
        return sorted(line for line in lines if not line.endswith(" 0"))

    assert len(shown()) == 2 * len(counts) + 2 * len(partitions)
    counts.pop(("consumer", "Stable"))
    partitions.pop(("t", 1))
    assert len(shown()) == 2 * len(counts) + 2 * len(partitions)


def test_topics_have_series_while_they_have_replicas(monkeypatch):
    """Series of deleted topics leave the page; with new topics each day, their number would have no bound."""
    monkeypatch.setattr(export, "TOPICS_MAX", 2)
    looks = [held for count in range(4) for held in itertools.combinations("abc", count)]
    for story in itertools.product(looks, repeat=2):
        traffic, registry = BrokerTraffic(), Registry()
        export._register_traffic(
            registry, SimpleNamespace(context=SimpleNamespace(replicas=SimpleNamespace(traffic=traffic)))
        )
        for held in story:
            for topic in [*traffic.topics]:
                traffic.leave(topic)
            for topic in held:
                traffic.join(topic)
            lines = registry.expose().splitlines()
            for name in ("messagesin", "bytesin", "bytesout", "failedproducerequests"):
                found = [line.split('"')[1] for line in lines if line.startswith(f"{TRAFFIC}{name}_total{{")]
                assert found == ["", *held[:2]], story
            assert f'moldau_series_left_out{{kind="topic"}} {max(0, len(held) - 2)}' in lines, story


def test_the_page_has_the_quota_groups_used_last_and_no_other():
    """Clients choose their ids: each id that ever was would have its samples for ever, and its last pause in them."""
    use, clock = ClientQuotas(Windows(3, 1000.0)), SimpleNamespace(monotonic_ms=lambda: now_ms)
    quotas = SimpleNamespace(use=use, clock=clock, paused_count=lambda: 0)
    registry, now_ms, begun = Registry(), 0.0, 0
    register_quotas(registry, SimpleNamespace(is_built=True, context=SimpleNamespace(quotas=quotas)))
    groups = [(BROKER_QUOTAS[number % 3], f"client-{number}") for number in range(2 * GROUPS_MAX)]
    for end in (3, GROUPS_MAX, GROUPS_MAX + 1, 2 * GROUPS_MAX):
        for key, client_id in groups[begun:end]:
            use.charge(Limit(key, 1.0, None, client_id), 1e6, now_ms)
        begun, found = end, Counter()
        for name, labels, _ in SAMPLE.findall(registry.expose()):
            kind = name.removeprefix("kafka_server_").partition("_")[0]
            if "client-" in labels:
                found[KEYS[kind], re.findall(r"client-\d+", labels)[0]] += 1
        assert found == dict.fromkeys(groups[max(0, end - GROUPS_MAX) : end], 2), "a rate and a pause of each"
