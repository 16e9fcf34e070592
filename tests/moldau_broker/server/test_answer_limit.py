"""Goal: no request gets an answer beyond the limit of bytes, and an answer that is too large costs no connection.

Method: for each row of the tables of broker and controller, an answer that exceeds the limit by one byte; and brokers
on virtual time that get requests with the largest answers.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_response, encode_response
from moldau.protocol.messages.describe_configs import DescribeConfigsResponse, DescribeConfigsResult
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from moldau.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from moldau.protocol.messages.describe_transactions import DescribeTransactionsRequest
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.protocol.refusals import has_code, refusal
from moldau.runtime.net.serving import answer_limit
from moldau.runtime.net.serving.answer_limit import ELEMENTS_PER_TURN, encode_answer
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.server.data_path.handler_answers import Exchange
from moldau_broker.server.handlers.apis import BASE_APIS
from moldau_quorum.node.serving.apis import CONTROLLER_APIS
from support.cluster.broker_cluster import batch, run_cluster
from support.protocol_samples import samples
from support.turns import counted_turns

SERVED = sorted({api.key for api in (*BASE_APIS, *CONTROLLER_APIS)} - {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.ENVELOPE})


def encoded(key: ApiKey, version: int, request, response, limit: int):
    return encode_answer(
        response, version, 7, request=lambda: request, logger=EventLogger("test", node=1), bytes_max=limit
    )


def largest(key: ApiKey, version: int, response):
    """Returns the response with each of its arrays a hundred times as long."""
    for field, spec in response.__fields__.items():
        if spec.is_array and version in spec.versions and getattr(response, field):
            setattr(response, field, list(getattr(response, field)) * 100)
    return response


@pytest.mark.parametrize("key", SERVED, ids=lambda key: key.name)
def test_each_api_refuses_an_answer_that_is_too_large(key: ApiKey) -> None:
    """One byte beyond the limit, the client gets a code for its whole request and keeps its connection."""
    api = APIS[key]
    refused = 0
    for version in range(api.versions.first, api.versions.last + 1):
        pairs = zip(samples(api.request, version, 8), samples(api.response, version, 8), strict=True)
        for request, sample in pairs:
            response = largest(key, version, sample)
            whole = encode_response(response, version, 7)
            assert encoded(key, version, request, response, len(whole) - 4) == whole
            answer = encoded_or_none(key, version, request, response, len(whole) - 5)
            if answer is None:
                continue
            refused += 1
            assert len(answer) < len(whole)
            correlation_id, refused_answer = decode_response(api.response, version, memoryview(answer)[4:])
            assert correlation_id == 7
            assert has_code(refused_answer)
    assert refused or not any(spec.is_array for spec in api.response.__fields__.values()), "it can be large"


def encoded_or_none(key: ApiKey, version: int, request, response, limit: int) -> bytes | None:
    """Returns the frame; None if the connection had to be closed, which only a response without a code allows."""
    short_answer = refusal(request, ErrorCode.INVALID_REQUEST, "too large", version=version)
    try:
        return encoded(key, version, request, response, limit)
    except CloseConnection as error:
        reason = str(error)
    assert not has_code(short_answer) or "and so has its refusal" in reason, (key, version)
    return None


def test_a_broker_refuses_and_keeps_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal names the size and the limit, and the next request is answered."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=60)
        await cluster.until(lambda: all(cluster.replica(1, "t", index) for index in range(60)))
        connection = await client.connection()
        monkeypatch.setattr(answer_limit, "ANSWER_BYTES_MAX", 1_000)
        answer = await client.request(DescribeLogDirsRequest(topics=None), 4)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        metadata = await client.request(MetadataRequest(topics=[]), 12)
        assert metadata.cluster_id
        assert connection.is_open
        client.close()

    with caplog.at_level(logging.WARNING):
        run_cluster(scenario)
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("answer-too-large ")]
    assert "api=DESCRIBE_LOG_DIRS" in line
    assert "bytes_max=1000" in line


def test_other_tasks_run_while_a_long_answer_is_encoded() -> None:
    """A description of ten thousand topics takes a second to encode."""

    async def main() -> int:
        call: Any = SimpleNamespace(verdict=None, version=4, correlation_id=7)
        unused: Any = None
        exchange = Exchange(api=unused, call=call, body=b"", quotas=unused, throttle=unused, toll=None)

        async def work() -> DescribeConfigsResponse:
            return DescribeConfigsResponse(results=[DescribeConfigsResult() for _ in range(10 * ELEMENTS_PER_TURN)])

        async with counted_turns() as turns:
            (frame,) = await exchange.finish(work())
        assert frame == encode_response(await work(), 4, 7)
        return turns.count

    assert trio.run(main) >= 9


def test_repeated_names_are_answered_once() -> None:
    """A name of four bytes must not be answered again and again with all that belongs to it."""

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t")
        await cluster.leader("t")
        first = await client.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        assert first.producer_id >= 0
        await client.produce("t", batch(b"x", producer_id=first.producer_id, producer_epoch=0, base_sequence=0))
        many = [TopicRequest(name="t", partition_indexes=[0] * 50)] * 20
        producers = await client.request(DescribeProducersRequest(topics=many), 0)
        (topic,) = producers.topics
        assert [len(partition.active_producers) for partition in topic.partitions] == [1]
        transactions = await client.request(DescribeTransactionsRequest(transactional_ids=["none"] * 500), 0)
        assert len(transactions.transaction_states) == 1
        partitions = [DescribeQuorumRequestPartitionData(partition_index=0)] * 50
        quorum = [DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=partitions)] * 20
        described = await client.request(DescribeQuorumRequest(topics=quorum), 1)
        assert sum(len(topic.partitions) for topic in described.topics) == 1
        client.close()

    run_cluster(scenario)
