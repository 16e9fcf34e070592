"""A cluster in the simulation whose share group works while brokers die, and the judgement of what its members saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from moldau_jepsen.checkers.group.share import ShareVerdict, check_share_group
from moldau_jepsen.workloads.share import ShareOptions, ShareWorkload
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

LIMIT = 10
OPTIONS = ShareOptions(slots=4, dawdle_share=0.4)
"""Two members for each partition, which hold many records for long: what two of them hold at once is certain then."""
SETTINGS: dict[str, Any] = {
    "share_coordinator_state_topic_num_partitions": "2",
    "share_coordinator_state_topic_replication_factor": "3",
    "share_coordinator_state_topic_min_isr": "2",
    "min_insync_replicas": "2",
    "group_share_min_heartbeat_interval_ms": "1",
    "group_share_heartbeat_interval_ms": "500",
    "group_share_min_session_timeout_ms": "1",
    "group_share_session_timeout_ms": "6000",
}


@dataclass(frozen=True)
class Story:
    """The observations of a run."""

    verdict: ShareVerdict
    kills: int
    digest: str


async def set_group(client: Any, group: str, **settings: str) -> None:
    """Sets dynamic configuration of a group."""
    configs = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=value) for key, value in settings.items()
    ]
    resource = AlterConfigsResource(resource_type=32, resource_name=group, configs=configs)
    answer = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE, answer


def tell(seed: int, *, work_s: float = 60.0, kill_every_s: float = 15.0) -> Story:
    """Runs the workload while brokers die and come back, then lets one member take what is left."""
    kills = 0
    workload: ShareWorkload | None = None

    async def scenario(cluster: Cluster) -> None:
        nonlocal kills, workload
        options = OPTIONS
        client = cluster.client(1)
        await client.create_topic(options.topic, partitions=options.partitions, replicas=3)
        await set_group(
            client,
            options.group,
            share_auto_offset_reset="earliest",
            share_record_lock_duration_ms=str(options.lock_ms),
            share_delivery_count_limit=str(LIMIT),
        )
        world = cluster.world
        bootstrap = ",".join(f"b{number}:9092" for number in cluster.broker_ids)
        workload = ShareWorkload(bootstrap, options, cluster.client_environment)
        draw = world.random("story")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workload.feed, cluster.client_environment)
            for slot in range(options.slots):
                nursery.start_soon(workload.live, world.node(f"member-{slot}").environment)
            until = trio.current_time() + work_s
            while trio.current_time() < until:
                await trio.sleep(draw.uniform(0.5, 1.5) * kill_every_s)
                victim = draw.choice(sorted(cluster.running))
                cluster.kill(victim)
                kills += 1
                await trio.sleep(draw.uniform(1.0, 5.0))
                cluster.start_broker(victim)
                await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
                await cluster.until(
                    lambda: all(
                        len(cluster.partition_image(options.topic, number).isr) == 3
                        for number in range(options.partitions)
                    )
                )
            workload.stop()
            nursery.cancel_scope.deadline = trio.current_time() + 30
        await workload.drain(world.node("last").environment, timeout_s=300)

    _, digest = run_cluster(scenario, seed=seed, brokers=3, **SETTINGS)
    assert workload is not None
    return Story(check_share_group(workload.events, delivery_count_max=LIMIT, lock_ms=OPTIONS.lock_ms), kills, digest)
