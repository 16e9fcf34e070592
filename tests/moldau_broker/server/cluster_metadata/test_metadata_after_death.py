"""Goal: a client that requests metadata because its leader died learns the new leader from the first answer.

Method: simulated clusters; the leader is killed, and a survivor that suspects the death gets the request before the
controller has decided.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from support.cluster.broker_cluster import run_cluster


def test_the_first_answer_names_the_successor_of_a_dead_leader() -> None:
    """The first metadata answer after the death of a leader names its successor."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        dead = await cluster.leader("t")
        survivor = next(broker_id for broker_id in cluster.broker_ids if broker_id != dead)
        client = cluster.client(survivor)
        await client.metadata("t")
        cluster.kill(dead)
        killed = trio.current_time()
        cluster.running[survivor].metadata.is_suspect = lambda broker_id: broker_id == dead
        answer = await client.metadata("t")
        partition = answer.topics[0].partitions[0]
        assert partition.error_code == ErrorCode.NONE
        assert partition.leader_id in set(cluster.broker_ids) - {dead}
        assert partition.leader_epoch == 1
        assert dead not in [broker.node_id for broker in answer.brokers]
        assert trio.current_time() - killed < 0.3

    run_cluster(scenario, brokers=3, controllers=3)


def test_a_wrong_suspicion_delays_an_answer_within_its_bound() -> None:
    """If only this broker suspects the leader, it delays an answer by no more than the bound."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        await cluster.client(1).create_topic("other", replicas=1)
        leader = await cluster.leader("t")
        survivor = next(broker_id for broker_id in cluster.broker_ids if broker_id != leader)
        client = cluster.client(survivor)
        await client.metadata("t")
        cluster.running[survivor].metadata.is_suspect = lambda broker_id: broker_id == leader
        began = trio.current_time()
        answer = await client.metadata("t")
        assert 0.29 < trio.current_time() - began < 0.4
        assert answer.topics[0].partitions[0].leader_id == leader, "the answer has the committed leader"
        began = trio.current_time()
        answer = await client.metadata("other")
        led_by = answer.topics[0].partitions[0].leader_id
        assert led_by == leader or trio.current_time() - began < 0.1, "others do not wait"

    run_cluster(scenario, brokers=3)
