"""Goal: a client that asks for metadata because its leader died learns the new leader from the first answer.

Method: simulated clusters; the leader is killed, and a survivor that suspects the death is asked before
the controller has decided.
"""

from __future__ import annotations

import trio

from broker_cluster import run_cluster
from moldau.protocol.errors import ErrorCode


def test_the_first_answer_after_a_leaders_death_names_its_successor() -> None:
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


def test_a_suspicion_that_nobody_shares_delays_an_answer_by_no_more_than_its_bound() -> None:
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
        assert answer.topics[0].partitions[0].leader_id == leader, "what is committed is told"
        began = trio.current_time()
        answer = await client.metadata("other")
        led_by = answer.topics[0].partitions[0].leader_id
        assert led_by == leader or trio.current_time() - began < 0.1, "others do not wait"

    run_cluster(scenario, brokers=3)
