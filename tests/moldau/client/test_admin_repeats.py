"""Goal: the admin client repeats what failed and nothing else, ends in its time, and names the cause.

Method: canned answers of a small cluster on virtual time.
"""

import pytest

from moldau.admin import Admin, AdminError, NewTopic
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import create_partitions as cp
from moldau.protocol.messages import create_topics as ct
from moldau.protocol.messages import delete_topics as dt
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

THROTTLED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def simulate(scenario, handlers, **config):
    """Runs ``scenario(cluster, admin)`` with brokers that also answer what ``handlers`` say."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.handlers = handlers
        cluster.add_topic("t", 2)
        cluster.start()
        given = {"bootstrap.servers": cluster.bootstrap} | config
        async with Admin(given, environment=world.node("client").environment) as admin:
            return await scenario(cluster, admin)

    return run_world(main, 1)


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
