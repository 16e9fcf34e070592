"""Topics, partitions and bootstrap servers that a consumer cannot use: it logs them at once, and poll raises.

Consumers run against a small cluster on virtual time. A topic that brokers may still create causes only a warning.
"""

import logging

import pytest
import trio

from moldau import ErrorCode, KafkaError, TopicPartition
from moldau.cluster.troubles import REMIND_MS, Troubles
from moldau.consumer import InvalidTopicError
from moldau.protocol.api import ApiKey
from moldau.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from support.client.consumer_stories import fill, numbers, simulate, take

T0 = TopicPartition("t", 0)
FIXED = {"allow_auto_create_topics": False}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def begin(consumer, how):
    if how == "assign":
        consumer.assign([("missing", 0)])
    else:
        consumer.subscribe(["missing"])


async def polled(consumer, seconds):
    end = trio.current_time() + seconds
    while trio.current_time() < end:
        assert await consumer.poll(500) == []


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_unknown_topic_is_raised_where_none_is_created(how, caplog):
    """The error names the topic. It comes at once, and again only after a minute; records come when the topic does."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(group_id="g", metadata_max_age_ms=5000, **FIXED) as consumer:
            begin(consumer, how)
            begun = trio.current_time()
            with pytest.raises(KafkaError, match=r"UNKNOWN_TOPIC_OR_PARTITION: topic missing") as caught:
                await consumer.poll(30_000)
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert trio.current_time() - begun < 5
            await polled(consumer, 50)
            with pytest.raises(KafkaError, match="topic missing"):
                await polled(consumer, 20)
            fill(cluster.add_topic("missing")[0], 0, 5)
            assert await take(consumer, 5) == numbers(0, 5)
        (line, again) = [line for line in warnings(caplog) if line.startswith("topic-unavailable")]
        assert "subject=missing" in line
        assert "UNKNOWN_TOPIC_OR_PARTITION" in line
        assert line == again

    simulate(scenario)


@pytest.mark.parametrize("how", ["assign", "subscribe"])
def test_unknown_topic_is_a_warning_where_one_is_created(how, caplog):
    async def scenario(cluster, open_consumer):
        async with open_consumer(group_id="g") as consumer:
            begin(consumer, how)
            await polled(consumer, 20)
        assert len([line for line in warnings(caplog) if "subject=missing" in line]) == 1

    simulate(scenario)


def test_topic_that_is_created_at_once_is_no_trouble(caplog):
    async def scenario(cluster, open_consumer):
        cluster.auto_create = True
        async with open_consumer(group_id="g") as consumer:
            consumer.subscribe(["new"])
            await polled(consumer, 5)
            assert consumer.assignment == [("new", 0)]
        assert warnings(caplog) == []

    simulate(scenario)


@pytest.mark.parametrize("number", [2, 7])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_missing_partition_is_reported(is_fixed, number, caplog):
    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t", 2)[0], 0, 5)
        async with open_consumer(**(FIXED if is_fixed else {})) as consumer:
            consumer.assign([T0, ("t", number)])
            if is_fixed:
                with pytest.raises(KafkaError, match=f"partition t-{number}: topic t has 2 partitions"):
                    await consumer.poll(30_000)
            assert await take(consumer, 5) == numbers(0, 5), "the others are read"
            await polled(consumer, 5)
        (line,) = warnings(caplog)
        assert f"subject=t-{number}" in line

    simulate(scenario)


INVALID = [".", "..", "a/b", "a b", "ü", "x" * 250, "x" * 40_000, "\ud800"]
"""The last two fit into no request: one is too long for its field, the other cannot be encoded."""


@pytest.mark.parametrize("name", INVALID)
def test_invalid_names_are_refused_at_the_door(name):
    async def scenario(cluster, open_consumer):
        async with open_consumer(group_id="g") as consumer:
            for call in (lambda: consumer.subscribe(["t", name]), lambda: consumer.assign([T0, (name, 0)])):
                with pytest.raises(InvalidTopicError, match="invalid topic name") as caught:
                    call()
                assert (caught.value.code, caught.value.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
            assert consumer.subscription == consumer.assignment == []

    simulate(scenario)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_name_spoils_no_other_request(name):
    """A name among those that the client asks for would make every later request for metadata fail."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 5)
        wrong = (name, 0)
        async with open_consumer(group_id="g") as consumer:
            for call in (
                lambda: consumer.partitions_for(name),
                lambda: consumer.end_offsets([wrong]),
                lambda: consumer.offsets_for_times({wrong: 0}),
                lambda: consumer.committed([wrong]),
                lambda: consumer.commit({wrong: 1}),
            ):
                with pytest.raises(InvalidTopicError, match="invalid topic name"):
                    await call()
            assert await consumer.end_offsets([T0]) == {T0: 5}
            assert trio.current_time() < 5

    simulate(scenario)


def test_offsets_without_metadata_blame_no_leader():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 2)
        async with open_consumer(default_api_timeout_ms=2_000, request_timeout_ms=1_000) as consumer:
            cluster.handlers[ApiKey.METADATA] = lambda *_: trio.sleep_forever
            with pytest.raises(trio.TooSlowError, match=r"no offsets of t-1 .*\(no metadata of topic t arrived\)"):
                await consumer.end_offsets([("t", 1)])

    simulate(scenario)


def test_offsets_of_a_missing_partition_name_those_that_exist():
    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 2)
        async with open_consumer(default_api_timeout_ms=2_000, request_timeout_ms=1_000) as consumer:
            with pytest.raises(trio.TooSlowError, match=r"no offsets of t-2 .*topic t has partitions 0 to 1"):
                await consumer.end_offsets([("t", 2)])

    simulate(scenario)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.INVALID_TOPIC_EXCEPTION, InvalidTopicError),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, KafkaError),
    ],
)
def test_refusals_of_the_brokers_are_raised(code, expected):
    async def scenario(cluster, open_consumer):
        known = cluster.on_metadata

        def metadata(broker, request):
            answer = known(broker, request)
            return MetadataResponse(brokers=answer.brokers, topics=[MetadataResponseTopic(name="t", error_code=code)])

        cluster.handlers[ApiKey.METADATA] = metadata
        async with open_consumer() as consumer:
            consumer.assign([T0])
            with pytest.raises(expected, match=code.name):
                await consumer.poll(30_000)

    simulate(scenario)


def test_wrong_bootstrap_servers_are_logged(caplog):
    """At the first failure, with the servers and the cause, and again after a minute."""

    async def scenario(cluster, open_consumer):
        async with open_consumer(**{"bootstrap.servers": "broker1:1,broker2:2"}) as consumer:
            consumer.assign([T0])
            await polled(consumer, 5)
            (line,) = warnings(caplog)
            assert line.startswith("metadata-failed")
            assert "broker1:1" in line
            assert "broker2:2" in line
            assert "refused" in line
            await polled(consumer, 70)
            assert len(warnings(caplog)) == 2

    simulate(scenario)


def test_troubles_are_logged_once_until_they_change():
    troubles = Troubles()
    assert troubles.due(0.0, ("a", 1), ("b", 1)) == ["a", "b"]
    assert troubles.due(10.0, ("a", 1), ("b", 2)) == ["b"]
    assert troubles.due(REMIND_MS - 1, ("a", 1)) == []
    assert troubles.due(REMIND_MS, ("a", 1), ("b", 2)) == ["a", "b"], "the trouble of b was over in between"
    assert troubles.due(REMIND_MS + 1) == []
    assert troubles.due(REMIND_MS + 2, ("a", 1), grace_ms=5) == []
    assert troubles.due(REMIND_MS + 6, ("a", 1), grace_ms=5) == []
    assert troubles.due(REMIND_MS + 7, ("a", 1), grace_ms=5) == ["a"]


def test_partitions_are_asked_for_again_after_a_refusal():
    """A right may be granted meanwhile; what the client remembers is up to ``metadata.max.age.ms`` old."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t", 2)
        cluster.add_topic("other")
        async with open_consumer() as consumer:
            await consumer.partitions_for("other")
            cluster.fail_next(ApiKey.METADATA, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.partitions_for("t")
            assert len(await consumer.partitions_for("t")) == 2

    simulate(scenario)
