"""Goal: on the wire, a regular expression gives no topic that the principal may not describe, now or later.

Method: a broker with authorizer in the simulation, and the heartbeats of one principal while its ACLs change.
"""

from __future__ import annotations

import trio

from moldau.protocol.access import AclOperation, AclResource
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest

from .test_cluster_with_acls import acl, allow, connected, make_topic, run_secured


def heartbeat(epoch):
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[],
        subscribed_topic_regex="t-.*",
        topic_partitions=[],
    )


async def regex_follows_acls(cluster):
    async with connected(cluster, "root") as root, connected(cluster, "alice") as alice:
        ids = {}
        for name in ("t-1", "t-2"):
            await make_topic(root, cluster, name)
            (broker,) = cluster.running.values()
            ids[broker.metadata.image.topics_by_name[name].topic_id] = name
        await root.request(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4, timeout_ms=10_000)
        await allow(
            root,
            cluster,
            acl("alice", AclOperation.READ, AclResource.GROUP, "g"),
            acl("alice", AclOperation.DESCRIBE, AclResource.TOPIC, "t-1"),
        )

        async def given(epoch):
            while True:
                response = await alice.request(heartbeat(epoch), 1, timeout_ms=10_000)
                if response.error_code == 0:
                    found = {ids[topic.topic_id] for topic in response.assignment.topic_partitions}
                    return response.member_epoch, found
                assert response.error_code in (14, 15, 16), response  # the coordinator is about to begin

        epoch, found = await given(0)
        assert found == {"t-1"}
        await allow(root, cluster, acl("alice", AclOperation.READ, AclResource.TOPIC, "t-2"))
        with trio.fail_after(5):  # a new assignment may wait for the assignment interval
            while found != {"t-1", "t-2"}:
                await trio.sleep(0.5)
                epoch, found = await given(epoch)


def test_regex_gives_permitted_topics_only():
    run_secured(regex_follows_acls)
