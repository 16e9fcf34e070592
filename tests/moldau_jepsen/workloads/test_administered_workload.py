"""Goal: the clients of an administered group do all that they are to do, see what there is, and notice a loss.

Method: the clients against one broker in virtual time, with both protocols; then an offset that was never committed.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from moldau_jepsen.checkers.group.administered import OPEN, Act, GroupOperation
from moldau_jepsen.coverage.situations import ADMINISTERED, Situation
from moldau_jepsen.workloads.administered import PARTITIONS, AdministeredOptions, AdministeredWorkload
from support.cluster.broker_cluster import BROKER_PORT, run_cluster
from support.proof import proof_beyond


class Nodes:
    broker_ids = (1,)
    controller_ids = ()

    def address(self, node_id: int) -> tuple[str, int]:
        return f"b{node_id}", BROKER_PORT


@pytest.mark.parametrize("protocol", proof_beyond(1, ["consumer", "classic"]))
def test_an_administered_group_is_used_and_judged(protocol: str) -> None:
    async def scenario(cluster: Any) -> None:
        for partition in PARTITIONS:
            await cluster.client(1).create_topic(partition.topic)
        options = AdministeredOptions(protocol=protocol, administrations_per_second=10.0)
        client = AdministeredWorkload(Nodes(), f"b1:{BROKER_PORT}", cluster.client_environment, options)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await trio.sleep(40)
            client.stop()
        await client.final_read(10)
        assert client.stuck is None
        assert client.verdict() == []
        happened = {ADMINISTERED[name] for name in client.counts if name in ADMINISTERED}
        wanted = {*ADMINISTERED.values()}
        assert happened >= wanted - {Situation.REPLACED_MEMBER}, client.counts
        assert any(read.is_final for read in client.reads)
        done = [operation for operation in client.operations if operation.ended_ms != OPEN]
        assert {operation.act for operation in done} == {*Act}
        now_ms = client._now_ms()
        lost = GroupOperation(
            act=Act.COMMIT, begun_ms=now_ms - 2, ended_ms=now_ms - 1, values=((PARTITIONS[0], 777_777),)
        )
        client.operations.append(lost)
        await trio.sleep(1)
        await client.final_read(10)
        assert any("had replaced by 777777" in line for line in client.verdict())

    settings: dict[str, Any] = {
        "group_min_session_timeout_ms": "500",
        "group_initial_rebalance_delay_ms": "0",
        "group_consumer_min_session_timeout_ms": "500",
        "group_consumer_session_timeout_ms": "2000",
        "group_consumer_min_heartbeat_interval_ms": "100",
        "group_consumer_heartbeat_interval_ms": "500",
    }
    # An unanswered write of the last value would excuse the made-up one; in the run of this seed there is none.
    run_cluster(scenario, seed=2, brokers=1, **settings)
