"""Goal: what members acknowledge survives leaders and share coordinators, through the real share coordinator.

Method: three brokers on virtual time; the state is in ``__share_group_state``, which the first fetch creates.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import initialize_share_group_state as initializing
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_broker.server.share.persister import ShareKey
from support.cluster.broker_cluster import batch, run_cluster
from support.share.member import Member, acquired, codes

OK = ErrorCode.NONE
SETTINGS = {
    "share_coordinator_state_topic_num_partitions": "2",
    "share_coordinator_state_topic_replication_factor": "3",
    "share_coordinator_state_topic_min_isr": "2",
}


def run(scenario, **settings):
    async def prepared(cluster):
        client = cluster.client(1)
        await client.create_topic("t", replicas=3)
        earliest = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
        answer = await client.request(
            IncrementalAlterConfigsRequest(
                resources=[AlterConfigsResource(resource_type=32, resource_name="g", configs=[earliest])]
            )
        )
        assert answer.responses[0].error_code == OK
        await cluster.until(lambda: all(b.metadata.image.config(32, "g") for b in cluster.running.values()))
        await begin_state(cluster)
        await scenario(cluster)

    run_cluster(prepared, brokers=3, **SETTINGS, **settings)


async def begin_state(cluster):
    """Begins the state of the share-partition, as the group coordinator does for a new member."""
    topic_id = cluster.image().topics_by_name["t"].topic_id
    key = ShareKey("g", topic_id, 0).coordinator_key
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    for _ in range(20):
        found = await cluster.client(1).request(find, 6)
        coordinator = found.coordinators[0].node_id
        if coordinator > 0:
            break
        await trio.sleep(0.2)
    partition = initializing.PartitionData(partition=0, state_epoch=0, start_offset=-1)
    topic = initializing.InitializeStateData(topic_id=topic_id, partitions=[partition])
    request = initializing.InitializeShareGroupStateRequest(group_id="g", topics=[topic])
    for _ in range(20):
        answer = await cluster.client(coordinator).request(request)
        if answer.results[0].partitions[0].error_code == OK:
            return
        await trio.sleep(0.2)
    raise AssertionError(answer)


async def fetched(cluster, member, leader, **fields):
    """Fetches from the leader until something is acquired."""
    for _ in range(20):
        found = acquired(await member.fetch(*(() if member.epoch else (0,)), max_wait_ms=2000, **fields))
        if found:
            return found
    raise AssertionError("nothing was acquired")


def test_acknowledgements_survive_two_leaders():
    """Accepted and rejected records stay so, released ones keep their count, acquired ones are free again."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        await cluster.client(leader).produce("t", *(batch(b"%d" % n) for n in range(8)))
        a = Member(cluster, leader, "a")
        await fetched(cluster, a, leader, max_records=6, share_acquire_mode=1)
        assert codes(await a.acknowledge({0: [(0, 1, (1,)), (3, 3, (3,)), (4, 4, (2,))]})) == {0: OK}
        cluster.kill(leader)
        second = await cluster.leader("t", other_than=leader)
        b = Member(cluster, second, "b")
        assert await fetched(cluster, b, second) == {0: [(2, 2, 1), (4, 4, 2), (5, 7, 1)]}
        assert codes(await b.acknowledge({0: [(2, 2, (1,)), (4, 4, (1,))]})) == {0: OK}
        cluster.start_broker(leader)
        await cluster.until(lambda: leader in cluster.running)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 3)
        cluster.kill(second)
        third = await cluster.leader("t", other_than=second)
        c = Member(cluster, third, "c")
        assert await fetched(cluster, c, third) == {0: [(5, 7, 1)]}
        assert codes(await c.acknowledge({0: [(5, 7, (1,))]})) == {0: OK}
        led = cluster.running[third].context.share_partitions.find("g", (c.topic_id, 0))
        assert (led.core.start_offset, led.core.end_offset) == (8, 8)

    run(scenario)


def test_deposed_leader_is_fenced():
    """A leader that does not know yet that it was replaced cannot store acknowledgements."""

    async def scenario(cluster):
        leader = await cluster.leader("t")
        await cluster.client(leader).produce("t", batch(b"0"), batch(b"1"))
        a = Member(cluster, leader, "a")
        await fetched(cluster, a, leader)
        led = cluster.running[leader].context.share_partitions.find("g", (a.topic_id, 0))
        persister = cluster.running[leader].context.share_partitions.persister
        await persister.read(led.key, led.leader_epoch + 1)  # as a new leader does
        assert codes(await a.acknowledge({0: [(0, 0, (1,))]})) == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert led.core.closed

    run(scenario)
