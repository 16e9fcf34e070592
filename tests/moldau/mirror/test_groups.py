"""Translated offsets of groups between simulated clusters.

Goal: a group that moves to the target reads every record that it has not read, and few of those that it has. Method: a
group commits offsets in the source; the test reads checkpoints, offset syncs and the target's committed offsets.
"""

import pytest
import trio

from moldau import TopicPartition
from moldau.mirror.core.formats import Checkpoint, OffsetSync
from support.mirror.clusters import numbers, run_clusters
from support.proof import proof_beyond

COPY = ("east.orders", 0)


async def commit(clusters, alias, group, offset, topic="orders"):
    async with clusters.admin(alias) as admin:
        await admin.alter_group_offsets(group, {(topic, 0): offset})


async def checkpoints(clusters, group):
    """Returns the checkpoints of a group, in the order in which they were written."""
    records = await clusters.read("hub", "east.checkpoints.internal")
    found = [Checkpoint.parse(record.key, record.value) for record in records]
    return [each for each in found if each.group == group]


async def wait_checkpoint(clusters, group, upstream):
    with trio.fail_after(60):
        while True:
            found = await checkpoints(clusters, group)
            if found and found[-1].upstream == upstream:
                return found[-1]
            await trio.sleep(0.5)


@pytest.mark.parametrize(
    ("mode", "location"),
    proof_beyond(2, [("disabled", "source"), ("enabled", "target"), ("disabled", "target"), ("enabled", "source")]),
)
def test_a_group_goes_on_where_it_was(mode, location):
    """Checkpoints follow the group; a position at the end is exact, one in the middle is at most a little earlier."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 40))
        keys = {"offset-syncs.topic.location": location, "offset.lag.max": 10}
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode, **keys))
        await clusters.wait_values("hub", "east.orders", numbers(0, 40))
        await trio.sleep(3)
        await commit(clusters, "east", "readers", 40)
        last = (await clusters.read("hub", "east.orders"))[-1]
        assert (await wait_checkpoint(clusters, "readers", 40)).downstream == last.offset + 1
        for first in range(40, 100, 20):
            await clusters.fill("east", "orders", numbers(first, first + 20))
            await clusters.wait_values("hub", "east.orders", numbers(first, first + 20))
        await trio.sleep(3)
        await commit(clusters, "east", "readers", 65)
        checkpoint = await wait_checkpoint(clusters, "readers", 65)
        assert checkpoint.partition == TopicPartition(*COPY)
        records = await clusters.read("hub", "east.orders")
        unread = [record.value for record in records if record.offset >= checkpoint.downstream]
        assert unread[-35:] == numbers(65, 100)
        assert len(unread) <= 60
        topic, alias = ("mm2-offset-syncs.hub.internal", "east")
        if location == "target":
            topic, alias = ("mm2-offset-syncs.east.internal", "hub")
        syncs = [OffsetSync.parse(each.key, each.value) for each in await clusters.read(alias, topic)]
        copies = {record.value: record.offset for record in records}
        assert syncs
        assert {sync.downstream for sync in syncs} == {copies[b"%06d" % sync.upstream] for sync in syncs}

    run_clusters(scenario)


def test_offsets_of_idle_groups_are_committed():
    """Only groups without members in the target get offsets, only forwards, and excluded groups get none."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", numbers(0, 50))
        keys = {"sync.group.offsets.enabled": True, "groups.exclude": ["secret"], "offset.lag.max": 0}
        clusters.start(clusters.settings(["east"], "hub", **keys))
        await clusters.wait_values("hub", "east.orders", numbers(0, 50))
        await commit(clusters, "hub", "ahead", 50, "east.orders")
        async with clusters.consumer("hub", group_id="busy", auto_offset_reset="earliest") as busy:
            busy.subscribe(["east.orders"])
            assert await busy.poll(20_000)
            for group in ("idle", "ahead", "busy", "secret"):
                await commit(clusters, "east", group, 50 if group == "idle" else 0)
            await commit(clusters, "east", "busy", 50)
            async with clusters.admin("hub") as admin:

                async def committed(group):
                    return {each: offset.offset for each, offset in (await admin.list_group_offsets(group)).items()}

                with trio.fail_after(60):
                    while not await committed("idle"):
                        await busy.poll(500)
                for _ in range(10):
                    await busy.poll(1000)
                assert await committed("idle") == {COPY: 50}
                assert await committed("ahead") == {COPY: 50}
                assert await committed("secret") == {}
                assert await checkpoints(clusters, "secret") == []
                assert await checkpoints(clusters, "busy") != []

    run_clusters(scenario)


def test_checkpoints_do_not_go_back_after_a_restart():
    """A mirror that starts again knows its checkpoints, and writes an earlier one only if the group went back."""

    async def scenario(clusters):
        settings = clusters.settings(["east"], "hub")
        await clusters.create("east", "orders")
        clusters.start(settings)
        await clusters.fill("east", "orders", numbers(0, 60))
        await clusters.wait_values("hub", "east.orders", numbers(0, 60))
        await commit(clusters, "east", "readers", 60)
        before = await wait_checkpoint(clusters, "readers", 60)
        clusters.kill()
        await clusters.fill("east", "orders", numbers(60, 70))
        clusters.start(settings)
        await clusters.wait_values("hub", "east.orders", numbers(60, 70))
        await trio.sleep(10)
        assert (await checkpoints(clusters, "readers"))[-1] == before
        await commit(clusters, "east", "readers", 0)
        assert (await wait_checkpoint(clusters, "readers", 0)).downstream <= before.downstream

    run_clusters(scenario)
