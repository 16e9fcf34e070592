"""Goal: the admin client repeats what failed and nothing else, ends in its time, and names the cause.

Method: canned answers of a small cluster on virtual time.
"""

import pytest
import trio

from moldau import KafkaError, TopicPartition
from moldau.admin import LATEST, AdminError, NewTopic
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import create_partitions as cp
from moldau.protocol.messages import create_topics as ct
from moldau.protocol.messages import delete_topics as dt
from moldau.protocol.messages import describe_groups as desc
from moldau.protocol.messages import find_coordinator as fc
from moldau.protocol.messages import unregister_broker as ub
from support.client.admin_stories import simulate

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class Quota:
    """Changes one topic in each request, and refuses a change that was made already with ``repeated``."""

    def __init__(self, repeated):
        self.repeated = repeated
        self.done = []

    def codes(self, names):
        codes = {}
        for name in names:
            if name in self.done:
                codes[name] = self.repeated
            else:
                codes[name] = THROTTLED if ErrorCode.NONE in codes.values() else ErrorCode.NONE
        self.done += [name for name, code in codes.items() if code is ErrorCode.NONE]
        return codes


def test_only_topics_that_were_refused_are_created_again():
    """The quota of changes allows one topic at a time; the second attempt must not find the first topic."""
    quota = Quota(ErrorCode.TOPIC_ALREADY_EXISTS)

    def create(broker, request):
        codes = quota.codes([each.name for each in request.topics])
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=name, error_code=code) for name, code in codes.items()]
        )

    async def scenario(cluster, admin):
        created = await admin.create_topics([NewTopic(name=name) for name in "abc"])
        assert [each.name for each in created] == ["a", "b", "c"]

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


def test_only_topics_that_were_refused_get_partitions_again():
    quota = Quota(ErrorCode.INVALID_PARTITIONS)

    def create(broker, request):
        codes = quota.codes([each.name for each in request.topics])
        return cp.CreatePartitionsResponse(
            results=[cp.CreatePartitionsTopicResult(name=name, error_code=code) for name, code in codes.items()]
        )

    async def scenario(cluster, admin):
        await admin.create_partitions(dict.fromkeys("abc", 5))
        assert quota.done == ["a", "b", "c"]

    simulate(scenario, {ApiKey.CREATE_PARTITIONS: create})


def test_only_topics_that_were_refused_are_deleted_again():
    quota = Quota(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def delete(broker, request):
        codes = quota.codes([each.name for each in request.topics])
        return dt.DeleteTopicsResponse(
            responses=[dt.DeletableTopicResult(name=name, error_code=code) for name, code in codes.items()]
        )

    async def scenario(cluster, admin):
        await admin.delete_topics(["a", "b", "c"])
        assert quota.done == ["a", "b", "c"]

    simulate(scenario, {ApiKey.DELETE_TOPICS: delete})


def test_a_topic_that_stays_refused_keeps_the_others():
    """One is created, one is refused for good, and one is refused until the time is over."""
    fixed = {"a": ErrorCode.NONE, "b": ErrorCode.INVALID_CONFIG, "c": THROTTLED}
    asked = []

    def create(broker, request):
        asked.append([each.name for each in request.topics])
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=each.name, error_code=fixed[each.name]) for each in request.topics]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.within(2_000).create_topics([NewTopic(name=name) for name in "abc"])
        assert {name: error.code for name, error in caught.value.failures.items()} == {
            "b": ErrorCode.INVALID_CONFIG,
            "c": ErrorCode.REQUEST_TIMED_OUT,
        }
        assert [each.name for each in caught.value.results] == ["a"]
        assert asked[0] == ["a", "b", "c"]
        assert {*map(tuple, asked[1:])} == {("c",)}

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


def test_a_silence_after_a_refusal_names_the_refusal():
    """The broker reads no request of a client that has used up its quota, until it may change topics again."""
    asked = []

    def create(broker, request):
        asked.append([each.name for each in request.topics])
        if len(asked) > 2:
            return None
        codes = Quota(None).codes([each.name for each in request.topics])
        return ct.CreateTopicsResponse(
            topics=[
                ct.CreatableTopicResult(
                    name=name, error_code=code, error_message="the quota is used up" if code else None
                )
                for name, code in codes.items()
            ]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.within(2_000).create_topics([NewTopic(name=name) for name in "abc"])
        (error,) = caught.value.failures.values()
        assert error.code is TIMED_OUT
        assert "the quota is used up" in str(error)
        assert asked == [["a", "b", "c"], ["b", "c"], ["c"]]

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


def test_a_refusal_outlives_the_success_of_another_topic():
    """The quota lets the second topic through with the second attempt, which does not mention the first one."""
    asked = []

    def create(broker, request):
        asked.append([each.name for each in request.topics])
        codes = {"a": ErrorCode.INVALID_CONFIG, "b": THROTTLED if len(asked) == 1 else ErrorCode.NONE}
        return ct.CreateTopicsResponse(
            topics=[ct.CreatableTopicResult(name=each.name, error_code=codes[each.name]) for each in request.topics]
        )

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.create_topics([NewTopic(name=name) for name in "ab"])
        assert {name: error.code for name, error in caught.value.failures.items()} == {"a": ErrorCode.INVALID_CONFIG}
        assert [each.name for each in caught.value.results] == ["b"]
        assert asked == [["a", "b"], ["b"]]

    simulate(scenario, {ApiKey.CREATE_TOPICS: create})


TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT


def test_a_change_that_may_still_happen_is_not_repeated():
    """The second attempt would refuse what the first one did, as if another client had done it."""
    asked = []

    def create(broker, request):
        asked.append(request.topics[0].name)
        return ct.CreateTopicsResponse(topics=[ct.CreatableTopicResult(name="a", error_code=TIMED_OUT)])

    def extend(broker, request):
        asked.append(request.topics[0].count)
        return cp.CreatePartitionsResponse(results=[cp.CreatePartitionsTopicResult(name="a", error_code=TIMED_OUT)])

    def unregister(broker, request):
        asked.append(request.broker_id)
        return ub.UnregisterBrokerResponse(error_code=TIMED_OUT)

    async def scenario(cluster, admin):
        for change in (
            admin.create_topics([NewTopic(name="a")]),
            admin.create_partitions({"a": 5}),
            admin.unregister_broker(2),
        ):
            with pytest.raises(KafkaError) as caught:
                await change
            assert caught.value.code is TIMED_OUT
        assert asked == ["a", 5, 2]

    handlers = {ApiKey.CREATE_TOPICS: create, ApiKey.CREATE_PARTITIONS: extend, ApiKey.UNREGISTER_BROKER: unregister}
    simulate(scenario, handlers)


@pytest.mark.parametrize("answer", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None])
def test_offsets_of_a_group_are_set_in_the_time_of_the_call(answer):
    """Both where the coordinator answers with an error that may pass, and where it does not answer at all."""

    async def scenario(cluster, admin):
        if answer is None:
            cluster.handlers[ApiKey.OFFSET_COMMIT] = lambda broker, request: None
        else:
            cluster.fail_next(ApiKey.OFFSET_COMMIT, *[answer] * 1000)
        began = trio.current_time()
        with pytest.raises(KafkaError) as caught:
            await admin.within(1_500).alter_group_offsets("g", {("t", 0): 5})
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert trio.current_time() - began < 2.6

    simulate(scenario, {})


@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_offsets_are_looked_up_in_the_time_of_the_call(fault):
    """A topic that may not be read is refused at once; a leader that does not answer costs the time of the call."""

    async def scenario(cluster, admin):
        if fault == "refused":
            cluster.fail_next(ApiKey.METADATA, *[ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 1000)
        else:
            cluster.handlers[ApiKey.LIST_OFFSETS] = lambda broker, request: None
        began = trio.current_time()
        with pytest.raises(KafkaError) as caught:
            await admin.within(2_000).list_offsets({TopicPartition("t", 0): LATEST})
        is_refused = fault == "refused"
        assert caught.value.code is (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED if is_refused else ErrorCode.REQUEST_TIMED_OUT
        )
        assert trio.current_time() - began < 2.6

    simulate(scenario, {})


def test_a_silent_coordinator_costs_no_other_group():
    """Each of two groups has its own coordinator, and the first one does not answer."""

    def find(broker, request):
        number = 1 if "a" in request.coordinator_keys else 2
        coordinator = fc.Coordinator(key=request.coordinator_keys[0], node_id=number, host=f"broker{number}", port=9092)
        return fc.FindCoordinatorResponse(coordinators=[coordinator])

    def describe(broker, request):
        if broker == 1:
            return None
        return desc.DescribeGroupsResponse(groups=[desc.DescribedGroup(group_id="b", group_state="Empty")])

    async def scenario(cluster, admin):
        with pytest.raises(AdminError) as caught:
            await admin.within(3_000).describe_groups(["a", "b"])
        assert {name: error.code for name, error in caught.value.failures.items()} == {"a": ErrorCode.REQUEST_TIMED_OUT}
        assert [(group.group_id, group.coordinator) for group in caught.value.results.values()] == [("b", 2)]

    simulate(scenario, {ApiKey.FIND_COORDINATOR: find, ApiKey.DESCRIBE_GROUPS: describe})
