"""Goal: a call of the admin client about a partition that does not exist says so soon, with Kafka's code.

Method: a small cluster on virtual time, whose topic has two partitions; a coordinator that refuses a partition.
"""

import pytest
import trio

from moldau.admin import LATEST, AdminError
from moldau.consumer.group import OffsetsRefusedError
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from support.client.admin_stories import simulate

ABSENT = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def refusing(code, number=9):
    """A coordinator that refuses the offsets of one partition."""

    def answer(_, request):
        topics = [
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index,
                        error_code=code if part.partition_index == number else ErrorCode.NONE,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    return {ApiKey.OFFSET_COMMIT: answer}


@pytest.mark.parametrize("more", [{}, {"retention_ms": 5_000}])
def test_offsets_of_a_missing_partition_are_refused(more):
    """It waited for the end of the call, and said that there was no answer."""

    async def scenario(cluster, admin):
        began = trio.current_time()
        with pytest.raises(AdminError) as caught:
            await admin.alter_group_offsets("g", {("t", 9): 1, ("t", 0): 1}, **more)
        assert {name: error.code for name, error in caught.value.failures.items()} == {"t-9": ABSENT}
        if not more:
            with pytest.raises(OffsetsRefusedError) as whole:
                await admin.alter_group_offsets("g", {("t", 9): 1})
            assert whole.value.code is ABSENT
        assert trio.current_time() - began < 3

    simulate(scenario, refusing(ABSENT))


def test_an_end_without_success_names_the_last_refusal():
    async def scenario(cluster, admin):
        with pytest.raises(KafkaError, match=r"REQUEST_TIMED_OUT: group g: .*NOT_ENOUGH_REPLICAS"):
            await admin.within(2_000).alter_group_offsets("g", {("t", 9): 1})

    simulate(scenario, refusing(ErrorCode.NOT_ENOUGH_REPLICAS))


def test_a_missing_partition_has_no_offsets():
    async def scenario(cluster, admin):
        began = trio.current_time()
        with pytest.raises(AdminError, match=r"t-9: .*topic t has partitions 0 to 1, not 9") as caught:
            await admin.list_offsets({("t", 9): LATEST, ("t", 0): LATEST})
        assert caught.value.failures["t-9"].code is ABSENT
        assert list(caught.value.results) == [("t", 0)]
        with pytest.raises(KafkaError, match="has partitions 0 to 1, not 9"):
            await admin.describe_producers(("t", 9))
        assert trio.current_time() - began < 3

    simulate(scenario, {})


def test_offsets_of_a_new_partition_are_awaited():
    """The broker that answers may learn of it later than the one that created it."""

    async def scenario(cluster, admin):
        found = {}

        async def ask():
            found.update(await admin.list_offsets({("n", 0): LATEST, ("n", 1): LATEST}))

        cluster.add_topic("n", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.5)
            cluster.add_topic("n", 2)
        assert sorted(found) == [("n", 0), ("n", 1)]

    simulate(scenario, {})
