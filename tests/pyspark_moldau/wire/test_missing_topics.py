"""Goal: a topic is missing only if no broker knows it, whichever brokers lag behind or do not answer.

Method: all small clusters whose brokers are down, or have no topic of a name, the former or the present one.
"""

import itertools
import uuid

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from pyspark_moldau.client_options import ClientOptions
from pyspark_moldau.wire.cluster import Cluster, NoAnswerError, UnknownTopicError

ADDRESSES = {1: ("one", 1), 2: ("two", 2), 3: ("three", 3)}
FORMER, PRESENT = uuid.UUID(int=7), uuid.UUID(int=8)
DOWN, LACKS = "down", "no topic"


class BrokersInMemory(Cluster):
    """Each address has the topic ``t`` with an id, or lacks it, or is down."""

    def __init__(self, states):
        super().__init__(ClientOptions(bootstrap=tuple(ADDRESSES.values())))
        self.states = dict(zip(ADDRESSES.values(), states, strict=True))

    def ask(self, address, request, version, response_class):
        state = self.states[address]
        if state is DOWN:
            raise ConnectionError(address)
        named = [MetadataResponseBroker(node_id=node, host=host, port=port) for node, (host, port) in ADDRESSES.items()]
        topic = MetadataResponseTopic(name="t", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if state is not LACKS:
            topic = MetadataResponseTopic(name="t", topic_id=state)
        return MetadataResponse(brokers=named, topics=[topic])


@pytest.mark.parametrize("first", [DOWN, LACKS, FORMER, PRESENT], ids=["down", "no topic", "former", "present"])
def test_a_topic_is_that_of_any_broker_that_answers(first):
    """One that is down must not keep the brokers behind it from being asked."""
    for rest in itertools.product([DOWN, LACKS, FORMER, PRESENT], repeat=2):
        cluster = BrokersInMemory((first, *rest))
        states = list(cluster.states.values())
        if states == [DOWN] * 3:
            with pytest.raises(NoAnswerError):
                cluster.refresh(["t"], expected={"t": PRESENT})
            continue
        known = next((each for each in (PRESENT, FORMER) if each in states), None)
        cluster.refresh(["t"], missing_ok=True, expected={"t": PRESENT})
        assert cluster.topic_ids.get("t") == known, states
        missing = {} if known else {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert cluster.topic_errors(["t"]) == missing, states
        if missing:
            with pytest.raises(UnknownTopicError):
                cluster.refresh(["t"])
