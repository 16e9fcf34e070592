"""Goal: an error that the application must see reaches it once, and no refusal outlasts its cause.

Method: consumers against a small cluster on virtual time, whose brokers refuse some requests.
"""

import pytest

from moldau import KafkaError, TopicPartition
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from support.client.consumer_stories import fill, numbers, simulate, take

T0 = TopicPartition("t", 0)


def test_a_member_joins_once_it_may_look_up_its_coordinator():
    """The look-up was refused between the decision to join and JoinGroup."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        cluster.fail_next(ApiKey.FIND_COORDINATOR, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
                await consumer.poll(2000)
            assert await take(consumer, 10) == numbers(0, 10)

    simulate(scenario)
