"""Goal: an error that the application must see reaches it once, and no refusal outlasts its cause.

Method: consumers against a small cluster on virtual time, whose brokers refuse some requests.
"""

from types import SimpleNamespace

import pytest
import trio

from moldau import KafkaError, TopicPartition
from moldau.cluster.committed import OffsetsUnknownError
from moldau.consumer.core.epoch_membership import EpochMembership
from moldau.consumer.core.membership import GroupIdentity
from moldau.consumer.core.positions import PartitionPosition
from moldau.consumer.epoch_group import EpochGroupClient
from moldau.consumer.fetcher import Fetcher
from moldau.consumer.group import CommitFailedError, OffsetsRefusedError
from moldau.consumer.poller import Poller
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau.protocol.messages.heartbeat import HeartbeatResponse
from moldau.protocol.messages.list_offsets import ListOffsetsResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup
from support.client.consumer_stories import fill, numbers, simulate, take

T0 = TopicPartition("t", 0)
IDENTITY = GroupIdentity(group_id="g", instance_id="i", session_timeout_ms=6000, rebalance_timeout_ms=60000)


async def polled(consumer, times):
    """Polls so often; returns the values, and the codes of the errors."""
    values, codes = [], []
    for _ in range(times):
        try:
            batches = await consumer.poll(200)
        except KafkaError as error:
            codes.append(error.code)
        else:
            values += [record.value for batch in batches for record in batch.records]
    return values, codes


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


def test_a_fenced_instance_is_reported():
    """It must not take the place of the newer member with its instance id, whatever the application does but leave."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)

        config = {"group_id": "g", "group_instance_id": "i", "heartbeat_interval_ms": 300}
        async with open_consumer({"on_lost": on_lost}, **config, enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            joins = [key for _, key, _ in cluster.requests].count(ApiKey.JOIN_GROUP)
            cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID)
            while (await polled(consumer, 1))[1] != [ErrorCode.FENCED_INSTANCE_ID]:
                assert trio.current_time() < 60
            assert await polled(consumer, 20) == ([], [ErrorCode.FENCED_INSTANCE_ID] * 20)
            assert (consumer.assignment, lost) == ([], [T0])
            with pytest.raises(CommitFailedError, match=r"another member uses the same group\.instance\.id"):
                await consumer.commit({T0: 3})
            consumer.subscribe(["t"])
            assert await polled(consumer, 1) == ([], [ErrorCode.FENCED_INSTANCE_ID])
            assert [key for _, key, _ in cluster.requests].count(ApiKey.JOIN_GROUP) == joins
            await consumer.unsubscribe()
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)

    simulate(scenario)


def test_a_fenced_commit_keeps_a_member_from_joining():
    """The application may take the refused commit for one that a rebalance has overtaken, and poll on."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        async with open_consumer(group_id="g", group_instance_id="i", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID)
            with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
                await consumer.commit()
            assert await polled(consumer, 2) == ([], [ErrorCode.FENCED_INSTANCE_ID] * 2)

    simulate(scenario)


def test_a_fenced_instance_is_reported_by_an_automatic_commit():
    """A commit that no call awaits finds it first."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        config = {"group_id": "g", "group_instance_id": "i", "auto_commit_interval_ms": 500}
        async with open_consumer(**config) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID)
            values, codes = await polled(consumer, 10)
            assert (values, dict.fromkeys(codes)) == ([], {ErrorCode.FENCED_INSTANCE_ID: None})

    simulate(scenario)


def test_a_heartbeat_under_way_hides_no_fenced_instance():
    """Its answer comes after that of the automatic commit, before the next poll, and counts no more."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        config = {"group_id": "g", "group_instance_id": "i", "auto_commit_interval_ms": 500}
        async with open_consumer(heartbeat_interval_ms=300, **config) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            asked = trio.Event()

            def handle(broker, request):
                async def answer():
                    asked.set()
                    await trio.sleep(2)
                    return HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)

                return answer

            await trio.sleep(1)
            cluster.handlers[ApiKey.HEARTBEAT] = handle
            await asked.wait()
            cluster.fail_next(ApiKey.OFFSET_COMMIT, ErrorCode.FENCED_INSTANCE_ID)
            await consumer.poll(0)  # begins the automatic commit
            await trio.sleep(4)
            assert await polled(consumer, 10) == ([], [ErrorCode.FENCED_INSTANCE_ID] * 10)

    simulate(scenario)


def test_a_fenced_instance_is_reported_in_the_consumer_protocol():
    """The refusal comes while no poll waits for an assignment, and reaches the next poll."""
    membership = EpochMembership(IDENTITY, "M", None)
    config = SimpleNamespace(get_int=lambda _: 1_000, get_str=lambda _: "")
    group = EpochGroupClient(SimpleNamespace(), "g", config, membership, list)
    membership.want(["t"])
    request = membership.epoch_heartbeat(())
    membership.on_epoch_heartbeat(request, ConsumerGroupHeartbeatResponse(member_epoch=3), membership.losses)
    group.check()
    request = membership.epoch_heartbeat(())
    refusal = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID)
    membership.on_epoch_heartbeat(request, refusal, membership.losses)
    with pytest.raises(KafkaError, match="FENCED_INSTANCE_ID"):
        group.check()
    group.check()
    assert membership.is_fenced
    membership.end("unsubscribed")
    assert not membership.is_fenced


def test_a_refused_coordinator_of_a_member_is_reported():
    """The member looks for its coordinator again, and may not; it is expelled meanwhile."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        lost = []

        async def on_lost(partitions):
            lost.extend(partitions)
            await trio.lowlevel.checkpoint()

        config = {"heartbeat_interval_ms": 300, "session_timeout_ms": 6000, "enable_auto_commit": False}
        async with open_consumer({"on_lost": on_lost}, group_id="g", **config) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR)
            cluster.fail_next(ApiKey.FIND_COORDINATOR, *[ErrorCode.GROUP_AUTHORIZATION_FAILED] * 1000)
            values, codes = await polled(consumer, 100)
            assert values == []
            assert set(codes) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
            assert lost == [T0], "its session has timed out"
            cluster.errors.clear()
            cluster.groups.clear()
            fill(cluster.topics["t"][0], 10, 20)
            values, codes = await polled(consumer, 20)
            assert values[-10:] == numbers(10, 20)
            assert len(codes) <= 1

    simulate(scenario)


def test_a_refusal_is_raised_once_for_each_time_it_is_true():
    """The application does not poll for a while; the right has come back when it does."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.fail_next(ApiKey.FETCH, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 1000)
            cluster.appended.notify()
            await trio.sleep(20)
            cluster.errors.clear()
            fill(cluster.topics["t"][0], 10, 20)
            await trio.sleep(5)
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.poll(1000)
            assert await take(consumer, 10) == numbers(10, 20)

    simulate(scenario)


def test_a_refused_look_up_of_offsets_is_raised_once():
    """The committed offsets are looked up again and again while the application does not poll."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        cluster.fail_next(ApiKey.OFFSET_FETCH, *[ErrorCode.GROUP_AUTHORIZATION_FAILED] * 1000)
        async with open_consumer(group_id="g") as consumer:
            consumer.assign([T0])
            await trio.sleep(20)
            cluster.errors.clear()
            await trio.sleep(5)
            with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
                await consumer.poll(1000)
            assert await take(consumer, 10) == numbers(0, 10)

    simulate(scenario)


def test_repeated_refusals_push_no_other_error_out():
    """One partition is refused all the time; the other has no offset, and stands until the application decides."""

    async def scenario(cluster, open_consumer):
        for name in ("t", "u"):
            fill(cluster.add_topic(name)[0], 0, 10)
        async with open_consumer(auto_offset_reset="none") as consumer:
            consumer.assign([("t", 0), ("u", 0)])
            consumer.seek(("t", 0), 0)
            consumer.seek(("u", 0), 99)
            await trio.sleep(1)
            cluster.fail_next(ApiKey.FETCH, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 10_000)
            cluster.appended.notify()
            await trio.sleep(60)
            assert ErrorCode.OFFSET_OUT_OF_RANGE in (await polled(consumer, 5))[1]

    simulate(scenario)


def test_a_topic_that_may_not_be_read_has_no_offsets():
    """Its refusal comes at once, and not as a timeout without a reason."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        cluster.fail_next(ApiKey.METADATA, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 1000)
        async with open_consumer() as consumer:
            began = trio.current_time()
            with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.end_offsets([T0])
            assert trio.current_time() - began < 5
            cluster.errors.clear()
            assert await consumer.end_offsets([T0]) == {T0: 0}

    simulate(scenario)


def test_an_offset_that_is_left_out_is_asked_for_with_pauses():
    """The broker answers without an error, so nothing else slows the consumer down."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        begun = trio.current_time()

        def answer(broker, request):
            is_late = trio.current_time() - begun > 2
            return cluster.on_list_offsets(broker, request) if is_late else ListOffsetsResponse(topics=[])

        cluster.handlers[ApiKey.LIST_OFFSETS] = answer
        async with open_consumer() as consumer:
            consumer.assign([T0])
            assert await take(consumer, 10) == numbers(0, 10)
        assert 2 < [key for _, key, _ in cluster.requests].count(ApiKey.LIST_OFFSETS) < 25

    simulate(scenario)


def test_a_look_up_that_is_refused_is_repeated_with_pauses():
    """The application may poll on, as after any error, and the right may be granted later."""

    def refuse(broker, request):
        (group,) = request.groups
        refused = OffsetFetchResponseGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return OffsetFetchResponse(groups=[refused])

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        cluster.handlers[ApiKey.OFFSET_FETCH] = refuse
        async with open_consumer(group_id="g", enable_auto_commit=False) as consumer:
            consumer.assign([T0])
            _, codes = await polled(consumer, 3)
            assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 3
            assert trio.current_time() > 0.15, "the polls wait for the pauses, of about 0.1 s each"
            del cluster.handlers[ApiKey.OFFSET_FETCH]
            assert (await polled(consumer, 1))[0]

    simulate(scenario)


def test_a_partition_that_was_refused_is_asked_for_after_a_pause():
    """Most refusals come at once, and only a pause keeps the consumer from asking in a loop."""
    for code in ErrorCode:
        paused, updates, position = [], [], PartitionPosition(T0)
        client = SimpleNamespace(request_update=lambda updates=updates: updates.append(1))
        fetcher = SimpleNamespace(_client=client, back_off=paused.append, report=lambda *_: None)
        Fetcher.failed(fetcher, position, code)
        assert (paused, bool(updates)) == ([position], code.refreshes_metadata), code


@pytest.mark.parametrize(("since_ms", "returned"), [(0, True), (49, True), (50, False), (10_000, False)])
def test_iteration_over_slow_records_polls_now_and_then(since_ms, returned):
    """Only a poll takes part in a rebalance and commits, and shows that the application still works."""
    client = SimpleNamespace(now_ms=1_000.0)
    nothing = {"rebalance": None, "commit_when_due": None, "decoding": None, "interceptors": ()}
    poller = Poller(client, SimpleNamespace(counters=None), SimpleNamespace(chunks_ended=0), **nothing)
    client.now_ms += since_ms
    assert poller.take_nowait(lambda: ["record"]) == (["record"] if returned else [])
    client.now_ms = 1_000.0
    taken = [poller.take_nowait(lambda: ["record"]) for _ in range(300)]
    assert taken[0] == ["record"]
    assert taken[-1] == [], "also after many records"


def test_a_long_poll_keeps_its_place_and_commits():
    """One call that waits longer than max.poll.interval.ms is no missing poll; positions are committed meanwhile."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        config = {"group_id": "g", "heartbeat_interval_ms": 300, "max_poll_interval_ms": 10_000}
        async with open_consumer(**config) as consumer:
            consumer.subscribe(["t"])
            assert await take(consumer, 10) == numbers(0, 10)
            cluster.topics["t"][0].leader = -1  # no fetch wakes the poll
            await consumer.poll(60_000)
            assert cluster.offsets["g", "t", 0][0] == 10
            assert ApiKey.LEAVE_GROUP not in [key for _, key, _ in cluster.requests]

    simulate(scenario)


def test_a_poll_that_was_cancelled_counts_as_a_poll_of_then():
    """The application gives up the wait for records, and then polls no more: its partitions go to other members."""

    async def scenario(cluster, open_consumer):
        cluster.add_topic("t")
        config = {"group_id": "g", "heartbeat_interval_ms": 300, "max_poll_interval_ms": 10_000}
        async with open_consumer(**config) as consumer:
            consumer.subscribe(["t"])
            with trio.move_on_after(5):
                await consumer.poll(60_000)
            assert consumer.assignment == [("t", 0)]
            await trio.sleep(15)
            assert cluster.groups["g"].members == {}

    simulate(scenario)


def test_a_commit_that_may_pass_hides_none_that_does_not():
    """The first partition is refused for a while, the second for good: the call ends at once, with the latter."""
    codes = {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "u": ErrorCode.TOPIC_AUTHORIZATION_FAILED}

    def answer(broker, request):
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[OffsetCommitResponsePartition(partition_index=0, error_code=codes[topic.name])],
                )
                for topic in request.topics
            ]
        )

    async def scenario(cluster, open_consumer):
        cluster.handlers[ApiKey.OFFSET_COMMIT] = answer
        async with open_consumer(group_id="g") as consumer:
            began = trio.current_time()
            with pytest.raises(OffsetsRefusedError, match="TOPIC_AUTHORIZATION_FAILED") as caught:
                await consumer.commit({("t", 0): 1, ("u", 0): 1})
            assert caught.value.refused == {TopicPartition(topic, 0): code for topic, code in codes.items()}
            assert trio.current_time() - began < 5

    simulate(scenario)


@pytest.mark.parametrize("key", [ApiKey.FETCH, ApiKey.LIST_OFFSETS])
def test_a_log_that_the_leader_cannot_read_is_reported(key):
    """The leader has found a damaged batch, and says so each time: the consumer asked again and said nothing."""

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 10)
        async with open_consumer() as consumer:
            consumer.assign([T0])
            cluster.fail_next(key, *[ErrorCode.CORRUPT_MESSAGE] * 3)
            with pytest.raises(KafkaError, match="t-0") as caught:
                await take(consumer, 10)
            assert caught.value.code is ErrorCode.CORRUPT_MESSAGE

    simulate(scenario)


def without_last(answer):
    """Returns a faulty answer: its last topic is left out, so that the last partition has no outcome."""

    def faulty(cluster, broker, request):
        response = answer(cluster, broker, request)
        holder = response.groups[0] if getattr(response, "groups", ()) else response
        holder.topics = holder.topics[:-1]
        return response

    return faulty


def test_a_commit_that_an_answer_leaves_out_has_failed():
    """The consumer took it for committed: after a restart the records came again, and no error had said so."""

    async def scenario(cluster, open_consumer):
        faulty = without_last(type(cluster).on_offset_commit)
        cluster.handlers[ApiKey.OFFSET_COMMIT] = lambda broker, request: faulty(cluster, broker, request)
        async with open_consumer(group_id="g") as consumer:
            with pytest.raises(OffsetsRefusedError, match="the broker's answer leaves partition u-0 out") as caught:
                await consumer.commit({("t", 0): 1, ("u", 0): 1})
            assert caught.value.refused == {TopicPartition("u", 0): ErrorCode.UNKNOWN_SERVER_ERROR}

    simulate(scenario)


@pytest.mark.parametrize("is_group_left_out", [False, True])
def test_an_offset_that_an_answer_leaves_out_is_unknown(is_group_left_out):
    """Without an offset the consumer would begin where ``auto.offset.reset`` says, and skip or repeat records."""

    async def scenario(cluster, open_consumer):
        faulty = without_last(type(cluster).on_offset_fetch)

        def answer(broker, request):
            response = faulty(cluster, broker, request)
            response.groups = [] if is_group_left_out else response.groups
            return response

        async with open_consumer(group_id="g") as consumer:
            await consumer.commit({("t", 0): 1, ("u", 0): 1})
            cluster.handlers[ApiKey.OFFSET_FETCH] = answer
            with pytest.raises(OffsetsUnknownError, match="leaves partition u-0 out") as caught:
                await consumer.committed([("t", 0), ("u", 0)])
            assert list(caught.value.found) == ([] if is_group_left_out else [("t", 0)])

    simulate(scenario)


def test_a_commit_for_a_missing_partition_names_it():
    """It may be new to the coordinator, so the call tries again, as Kafka's client does; then it says why."""

    def answer(broker, request):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topics = [
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=part.partition_index, error_code=code if part.partition_index == 7 else 0
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    async def scenario(cluster, open_consumer):
        fill(cluster.add_topic("t")[0], 0, 1)
        cluster.handlers[ApiKey.OFFSET_COMMIT] = answer
        async with open_consumer(group_id="g", default_api_timeout_ms=3_000) as consumer:
            count = len(await consumer.partitions_for("t"))
            with pytest.raises(trio.TooSlowError, match="t-7: UNKNOWN_TOPIC_OR_PARTITION") as caught:
                await consumer.commit({("t", 0): 1, ("t", 7): 1})
            assert f"has partitions 0 to {count - 1}" in str(caught.value)
            assert "t-0" not in str(caught.value)

    simulate(scenario)
