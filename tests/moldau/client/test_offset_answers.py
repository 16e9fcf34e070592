"""Goal: ListOffsets of many partitions takes from each answer what was asked, and says why the rest is missing.

Method: the search alone, on virtual time, with brokers of the test.
"""

import pytest
import trio
import trio.testing

from moldau.cluster.metadata import BrokerNode, ClusterMetadata, PartitionInfo, TopicInfo, TopicPartition
from moldau.cluster.offsets import list_offsets
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import ZERO_UUID

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Client:
    """The part of a client that the search uses. Broker 1 leads both partitions until ``leaders`` changes."""

    bootstrap_error = None
    clusters_left = 0
    request_timeout_ms = 30_000
    logger = EventLogger("test")

    def __init__(self, *answers):
        self.answers, self.leaders = list(answers), (1, 1)
        self.requests = 0

    @property
    def now_ms(self):
        return trio.current_time() * 1000

    @property
    def cluster_metadata(self):
        partitions = tuple(
            PartitionInfo(topic="t", partition=number, leader=leader, leader_epoch=3)
            for number, leader in enumerate(self.leaders)
        )
        return ClusterMetadata(
            brokers={1: BrokerNode(node_id=1, host="h", port=1)},
            topics={"t": TopicInfo(name="t", topic_id=ZERO_UUID, partitions=partitions)},
        )

    def add_topic(self, name, **_): ...
    def request_update(self): ...

    async def backoff(self, attempts):
        await trio.sleep(0.1)

    async def request(self, node_id, response_class, request, *, needed):
        await trio.lowlevel.checkpoint()
        self.requests += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found(self) if callable(found) else found


def answer(*parts):
    """An answer with these partitions, error codes and offsets."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name="t",
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=index, error_code=code, offset=offset, timestamp=-1)
                    for index, code, offset in parts
                ],
            )
        ]
    )


def search(client, *partitions, failures=None):
    async def main():
        return await list_offsets(client, dict.fromkeys(partitions, -1), 1_000, failures=failures)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
@pytest.mark.parametrize("failures", [None, {}])
def test_a_partition_that_was_not_asked_for_changes_nothing(code, failures):
    client = Client(answer((0, ErrorCode.NONE, 5), (1, code, 7)))
    assert search(client, T0, failures=failures) == {T0: (5, -1)}
    assert not failures


def test_partitions_that_were_found_are_not_asked_again():
    client = Client(answer((0, ErrorCode.NONE, 5), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)), answer((1, 0, 7)))
    assert search(client, T0, T1) == {T0: (5, -1), T1: (7, -1)}
    assert client.requests == 2


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_offsets_are_all_of_one_cluster(code):
    """The client goes to another cluster between two requests of one call: the first has settled a partition."""

    def leaves(client):
        client.clusters_left += 1
        return answer((0, code, 5), (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))

    failures = {}
    client = Client(leaves, answer((0, ErrorCode.NONE, 2), (1, ErrorCode.NONE, 3)))
    assert search(client, T0, T1, failures=failures) == {T0: (2, -1), T1: (3, -1)}
    assert not failures


def test_the_reason_is_that_of_the_last_attempt():
    """A broker refused, and then there was no leader to ask."""

    def refused(client):
        client.leaders = (-1, -1)
        return answer((0, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))

    failures = {}
    assert search(Client(refused), T0, failures=failures) == {}
    assert "LEADER_NOT_AVAILABLE" in str(failures[T0])
