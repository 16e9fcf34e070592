"""Goal: brokers serve streams groups (KIP-1071) over the wire: tasks, internal topics, failovers, the feature.

Method: clusters on virtual network, disk and time, and bare clients that send the requests of Kafka Streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from moldau.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES, STREAMS_VERSION
from support.cluster.broker_cluster import run_cluster
from support.coordinator.streams_member import SETTINGS, Member, ask
from support.coordinator.streams_world import GROUP

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster


async def shared(members: list[Member], count: int) -> None:
    """Beats until the members run so many tasks, each once."""
    with trio.fail_after(60):
        while True:
            for member in members:
                await member.beat()
            running = [task for member in members for task in sorted(member.tasks.active)]
            assert len(running) == len(set(running)), running
            if len(running) == count and all(member.tasks.active for member in members):
                return
            await trio.sleep(0.5)


def run(scenario, **options) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2, replicas=min(3, len(cluster.broker_ids)))
        await scenario(cluster)

    run_cluster(main, **{**SETTINGS, **options})


def test_streams_groups_are_refused_at_level_0_of_their_feature() -> None:
    async def scenario(cluster: Cluster) -> None:
        assert INITIAL_FEATURES[STREAMS_VERSION] == 1
        update = FeatureUpdateKey(feature=STREAMS_VERSION, max_version_level=0, upgrade_type=2)
        answer = await cluster.client(1).request(UpdateFeaturesRequest(feature_updates=[update], timeout_ms=10_000))
        assert answer.error_code == ErrorCode.NONE
        await cluster.until(lambda: cluster.image().features.get(STREAMS_VERSION, 0) == 0)
        member = Member(cluster, "m")
        assert await member.beat() is ErrorCode.UNSUPPORTED_VERSION
        described = await ask(cluster, StreamsGroupDescribeRequest(group_ids=[GROUP]), 1)
        assert described.groups[0].error_code == ErrorCode.UNSUPPORTED_VERSION

    run(scenario)


def test_tasks_run_once_and_survive_dead_coordinators() -> None:
    """Internal topics are created as asked for; each coordinator that dies leaves the group to the next one."""

    async def scenario(cluster: Cluster) -> None:
        members = [Member(cluster, name) for name in ("a", "b")]
        await shared(members, 4)
        words, counts = (cluster.image().topics_by_name[name] for name in ("words", "counts"))
        assert len(words.partitions) == len(counts.partitions) == 2
        assert cluster.image().topic_config("counts")["cleanup.policy"] == "compact"
        owner = next(member for member in members if ("0", 0) in member.tasks.active)
        assert await owner.commit(0, 7) is ErrorCode.NONE
        coordinator = cluster.image().topics_by_name["__consumer_offsets"].partitions.get(0)
        assert coordinator is not None
        cluster.kill(coordinator.leader)
        await shared(members, 4)
        assert await owner.commit(0, 8) is ErrorCode.NONE
        members.pop(members.index(owner))
        await shared(members, 4)  # the session of the silent member ends
        described = (await ask(cluster, StreamsGroupDescribeRequest(group_ids=[GROUP]), 1)).groups[0]
        assert (described.group_state, len(described.members)) == ("Stable", 1)

    run(scenario, brokers=3)
