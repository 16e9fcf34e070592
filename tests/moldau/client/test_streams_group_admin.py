"""Goal: the admin client describes, resets and deletes streams groups, and leaves groups of other types alone.

Method: a cluster on virtual network, disk and time; the group's members send bare requests.
"""

from __future__ import annotations

import pytest
import trio

from moldau.admin import Admin, AdminError
from moldau.protocol.errors import ErrorCode, KafkaError
from support.cluster.broker_cluster import BROKER_PORT, run_cluster
from support.coordinator.streams_member import SETTINGS, Member
from support.coordinator.streams_world import GROUP


def codes(raised):
    return {name: failure.code for name, failure in raised.value.failures.items()}


async def settled(member, count):
    with trio.fail_after(60):
        while len(member.tasks.active) < count:
            await member.beat()
            await trio.sleep(0.5)


def run(scenario):
    async def main(cluster):
        await cluster.client(1).create_topic("t", partitions=2)
        config = {"bootstrap.servers": f"b1:{BROKER_PORT}"}
        async with Admin(config, environment=cluster.client_environment) as admin:
            await scenario(cluster, admin)

    run_cluster(main, **SETTINGS)


def test_a_group_is_described_with_topology_and_tasks() -> None:
    async def scenario(cluster, admin) -> None:
        member = Member(cluster, "m")
        await settled(member, 4)
        found = (await admin.describe_streams_groups([GROUP]))[GROUP]
        assert (found.state, found.coordinator, found.topology_epoch) == ("Stable", 1, 0)
        assert found.epoch == found.assignment_epoch > 0
        assert found.subtopologies == {"0": ("t",), "1": ("words",)}
        assert found.internal_topics == ("counts", "words")
        (only,) = found.members
        assert (only.member_id, only.process_id, only.epoch, only.is_settled) == ("m", "m", member.epoch, True)
        assert (only.active, only.standby, only.warmup) == (("0_0", "0_1", "1_0", "1_1"), (), ())
        (listed,) = await admin.list_groups(types=["streams"])
        assert (listed.group_id, listed.state) == (GROUP, "Stable")

    run(scenario)


def test_offsets_are_listed_altered_and_deleted() -> None:
    async def scenario(cluster, admin) -> None:
        member = Member(cluster, "m")
        await settled(member, 4)
        assert await member.commit(0, 7) is ErrorCode.NONE
        offsets = await admin.list_streams_group_offsets(GROUP)
        assert {key: held.offset for key, held in offsets.items()} == {("t", 0): 7}
        for change in (
            admin.alter_streams_group_offsets(GROUP, {("t", 0): 0}),
            admin.delete_streams_group_offsets(GROUP, [("t", 0)]),
        ):
            with pytest.raises(KafkaError):
                await change  # the member reads the topic
        await member.leave()
        await admin.alter_streams_group_offsets(GROUP, {("t", 0): 3, ("t", 1): 5})
        offsets = await admin.list_streams_group_offsets(GROUP, require_stable=True)
        assert {key: held.offset for key, held in offsets.items()} == {("t", 0): 3, ("t", 1): 5}
        await admin.delete_streams_group_offsets(GROUP, [("t", 0)])
        assert set(await admin.list_streams_group_offsets(GROUP)) == {("t", 1)}

    run(scenario)


def test_only_empty_streams_groups_are_deleted() -> None:
    async def scenario(cluster, admin) -> None:
        with pytest.raises(AdminError) as raised:
            await admin.describe_streams_groups(["nowhere"])
        assert codes(raised) == {"nowhere": ErrorCode.GROUP_ID_NOT_FOUND}
        await admin.alter_group_offsets("plain", {("t", 0): 1})
        member = Member(cluster, "m")
        await settled(member, 4)
        with pytest.raises(AdminError) as raised:
            await admin.delete_streams_groups([GROUP])
        assert codes(raised) == {GROUP: ErrorCode.NON_EMPTY_GROUP}
        await member.leave()
        with pytest.raises(AdminError) as raised:
            await admin.delete_streams_groups(["plain", GROUP])
        assert codes(raised) == {"plain": ErrorCode.GROUP_ID_NOT_FOUND}
        assert {group.group_id for group in await admin.list_groups()} == {"plain", GROUP}
        await admin.delete_streams_groups([GROUP])
        assert {group.group_id for group in await admin.list_groups()} == {"plain"}
        names = {topic.name for topic in await admin.list_topics()}
        assert {"counts", "words"} <= names, "internal topics stay"

    run(scenario)
