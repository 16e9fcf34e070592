"""Goal: a call of the admin client ends when its time is over, names the silent server, and asks others meanwhile.

Method: brokers on virtual time, one or all of which hang: they accept connections and answer nothing.
"""

import pytest
import trio

from moldau.admin import Admin, AdminError, NewTopic
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_raft_voter import AddRaftVoterResponse
from moldau.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from moldau.protocol.messages.update_features import UpdateFeaturesResponse
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

LIMIT_S = 25.0
CALLS = {
    "list topics": lambda admin: admin.list_topics(),
    "create topics": lambda admin: admin.create_topics([NewTopic(name="n")]),
    "list groups": lambda admin: admin.list_groups(),
    "describe groups": lambda admin: admin.describe_groups(["g"]),
    "delete records": lambda admin: admin.delete_records({("t", 0): -1}),
    "commit": lambda admin: admin.alter_group_offsets("g", {("t", 0): 0}),
}


def with_servers(scenario, seed=1, **config):
    """Runs ``scenario(world, cluster, admin)`` with a client that starts at both brokers."""

    async def main(world):
        cluster = FakeCluster(world, 2)
        cluster.add_topic("t", 2)
        cluster.start()
        given = {"bootstrap.servers": cluster.bootstrap, "request.timeout.ms": "60000", **config}
        async with Admin(given, environment=world.node("client").environment) as admin:
            return await scenario(world, cluster, admin)

    return run_world(main, seed)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_at_its_limit_and_names_servers(name):
    """An attempt that began before the end took its whole time: 69 s instead of 60."""

    async def scenario(world, cluster, admin):
        for broker in (1, 2):
            world.node(f"broker{broker}").pause()
        began = trio.current_time()
        with pytest.raises(KafkaError) as caught:
            await CALLS[name](admin)
        assert trio.current_time() - began == pytest.approx(LIMIT_S, abs=0.1)
        return str(caught.value)

    text = with_servers(scenario, **{"default.api.timeout.ms": str(int(LIMIT_S * 1000))})
    assert "broker1:9092, broker2:9092" in text or name == "commit"


@pytest.mark.parametrize("seed", range(4))
def test_a_change_does_not_wait_for_a_silent_server(seed):
    """It goes to one broker only, and waited for the connection to it: 10 s with some seeds."""

    def created(broker, request):
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=each.name) for each in request.topics])

    async def scenario(world, cluster, admin):
        cluster.handlers[ApiKey.CREATE_TOPICS] = created
        world.node("broker1").pause()
        began = trio.current_time()
        await admin.create_topics([NewTopic(name="n")])
        assert trio.current_time() - began < 1.5

    with_servers(scenario, seed)


def test_a_silent_coordinator_is_named():
    async def scenario(world, cluster, admin):
        await admin.list_topics()
        cluster.handlers[ApiKey.DESCRIBE_GROUPS] = lambda *_: trio.sleep_forever
        with pytest.raises(AdminError) as caught:
            await admin.within(3_000).describe_groups(["g"])
        error = caught.value.failures["g"]
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        assert error.message == "DescribeGroups: broker 1 (broker1:9092) does not answer in time"

    with_servers(scenario)


def test_a_voter_that_catches_up_slowly_is_named():
    """The controller waits for it longer than the client waited for the controller.

    The client asked again and was refused, because another change of voters was under way: its own, which
    then took effect.
    """
    slow = "node 7 did not catch up"

    async def scenario(world, cluster, admin):
        under_way = []

        def add(broker, request):
            async def answer():
                if under_way:
                    return AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="under way")
                under_way.append(request)
                await trio.sleep(0.8 * request.timeout_ms / 1000)
                return AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=slow)

            return answer

        cluster.handlers = {ApiKey.ADD_RAFT_VOTER: add}
        with pytest.raises(KafkaError, match=slow):
            await admin.add_voter(7, "h", 9093)

    with_servers(scenario, **{"request.timeout.ms": "30000"})


def test_levels_that_no_controller_takes_have_the_brokers_reason():
    """The broker waits for a controller no longer than the client waits for the broker."""
    away = "no active controller answered in time"

    async def scenario(world, cluster, admin):
        def update(broker, request):
            async def answer():
                await trio.sleep(0.8 * request.timeout_ms / 1000)
                return UpdateFeaturesResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=away)

            return answer

        cluster.handlers = {ApiKey.UPDATE_FEATURES: update}
        with pytest.raises(KafkaError, match=away):
            await admin.update_features({"metadata.version": 4})

    with_servers(scenario, **{"request.timeout.ms": "30000"})
