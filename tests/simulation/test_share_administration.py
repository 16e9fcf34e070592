"""Goal: the start offset of a share-partition is the last one that was set, however coordinators come and go.

Method: an administrator sets and deletes the offsets of a share group without members, and deletes the group, while
brokers are killed, stopped and started at drawn moments, in virtual time. Each offset is a number of its own, so a read
shows which request it saw. A request without a certain outcome may take effect at any time, or never. The checker is
that of the administered group.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import alter_share_group_offsets as alter
from moldau.protocol.messages import delete_share_group_offsets as delete
from moldau.protocol.messages import describe_share_group_offsets as describe
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from moldau_jepsen.checkers.group.administered import OPEN, Act, GroupOperation, OffsetRead, check_administered
from moldau_jepsen.history import TopicPartition
from support.cluster.broker_cluster import run_cluster
from support.cluster.group_asker import GroupAsker, fail_brokers
from support.proof import proof_beyond

GROUP = "s"
PARTITIONS = tuple(TopicPartition("t", index) for index in range(4))
LEAVES = -1
"""The epoch of a member's last heartbeat."""
RETRY_S = 0.1
SECONDS = 40.0


class Administrator(GroupAsker):
    """The client; ``operations`` and ``reads`` are what it saw."""

    def __init__(self, cluster, draw) -> None:
        super().__init__(cluster, draw)
        self.clock = cluster.client_environment.clock
        self.number = 0
        self.operations: list[GroupOperation] = []
        self.reads: list[OffsetRead] = []

    async def make(self) -> None:
        """Makes the group: a member joins it, and leaves. It reads another topic, so it begins no state."""
        topics = ["other"]
        while True:
            join = ShareGroupHeartbeatRequest(
                group_id=GROUP, member_id="m", member_epoch=0, subscribed_topic_names=topics
            )
            joined = await self.ask_coordinator(GROUP, ShareGroupHeartbeatResponse, join)
            if joined is not None and not joined.error_code:
                break
            await trio.sleep(RETRY_S)
        while True:
            leave = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=LEAVES)
            left = await self.ask_coordinator(GROUP, ShareGroupHeartbeatResponse, leave)
            if left is not None and left.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
                return
            await trio.sleep(RETRY_S)

    def note(self, act, begun_ms, outcomes) -> None:
        """Notes what happened to each partition: its value, and the code of the answer, None without one."""
        now_ms = self.clock.monotonic_ms()
        for partition, (value, code) in outcomes.items():
            ended_ms = now_ms if code == ErrorCode.NONE else OPEN
            values = ((partition, value),)
            self.operations.append(GroupOperation(act=act, begun_ms=begun_ms, ended_ms=ended_ms, values=values))

    async def set_offsets(self) -> None:
        begun_ms = self.clock.monotonic_ms()
        values = {}
        for partition in self.draw.sample(PARTITIONS, self.draw.randint(1, len(PARTITIONS))):
            self.number += 1
            values[partition] = self.number
        parts = [
            alter.AlterShareGroupOffsetsRequestPartition(partition_index=partition.partition, start_offset=value)
            for partition, value in values.items()
        ]
        topics = [alter.AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=parts)]
        request = alter.AlterShareGroupOffsetsRequest(group_id=GROUP, topics=topics)
        answer = await self.ask_coordinator(GROUP, alter.AlterShareGroupOffsetsResponse, request)
        codes = {}
        if answer is not None and not answer.error_code:
            codes = {part.partition_index: part.error_code for one in answer.responses for part in one.partitions}
        outcomes = {each: (value, codes.get(each.partition)) for each, value in values.items()}
        self.note(Act.RESET, begun_ms, outcomes)

    async def delete_offsets(self) -> None:
        begun_ms = self.clock.monotonic_ms()
        request = delete.DeleteShareGroupOffsetsRequest(
            group_id=GROUP, topics=[delete.DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
        )
        answer = await self.ask_coordinator(GROUP, delete.DeleteShareGroupOffsetsResponse, request)
        code = None
        if answer is not None:
            code = answer.error_code or answer.responses[0].error_code
        self.note(Act.DELETE_OFFSETS, begun_ms, dict.fromkeys(PARTITIONS, (None, code)))

    async def delete_group(self) -> None:
        begun_ms = self.clock.monotonic_ms()
        answer = await self.ask_coordinator(GROUP, DeleteGroupsResponse, DeleteGroupsRequest(groups_names=[GROUP]))
        code = None if answer is None else answer.results[0].error_code
        self.note(Act.DELETE_GROUP, begun_ms, dict.fromkeys(PARTITIONS, (None, code)))
        await self.make()

    async def read(self, *, is_final: bool = False) -> bool:
        """Reads all offsets; returns whether each had an answer."""
        begun_ms = self.clock.monotonic_ms()
        topics = [describe.DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=range(len(PARTITIONS)))]
        request = describe.DescribeShareGroupOffsetsRequest(
            groups=[describe.DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=topics)]
        )
        answer = await self.ask_coordinator(GROUP, describe.DescribeShareGroupOffsetsResponse, request)
        if answer is None or answer.groups[0].error_code:
            return False
        found = {
            PARTITIONS[part.partition_index]: part.start_offset if part.start_offset >= 0 else None
            for one in answer.groups[0].topics
            for part in one.partitions
            if not part.error_code
        }
        offsets = tuple(found.items())
        self.reads.append(OffsetRead(begun_ms, self.clock.monotonic_ms(), offsets, is_final=is_final))
        return len(offsets) == len(PARTITIONS)

    async def run(self) -> None:
        calls = [self.set_offsets, self.delete_offsets, self.delete_group, self.read]
        until_ms = self.clock.monotonic_ms() + SECONDS * 1000
        while self.clock.monotonic_ms() < until_ms:
            (call,) = self.draw.choices(calls, [4, 2, 0.5, 6])
            await call()
            await trio.sleep(self.draw.uniform(0, 0.2))


@pytest.mark.parametrize("seed", proof_beyond(0, range(40)))
def test_offsets_are_the_last_ones_that_were_set(seed) -> None:
    async def scenario(cluster) -> None:
        for name in ("t", "other"):
            await cluster.client(1).create_topic(name, partitions=len(PARTITIONS), replicas=3)
        client = Administrator(cluster, random.Random(seed))
        await client.make()
        ending = trio.Event()
        async with trio.open_nursery() as nursery:
            faults = partial(fail_brokers, pause_s=2, absence_s=3, stop_share=0.3)
            nursery.start_soon(faults, cluster, random.Random(seed + 1000), ending)
            await client.run()
            ending.set()
        await cluster.until(lambda: len(cluster.running) == len(cluster.broker_ids))
        with trio.fail_after(60):
            await client.make()
            while not await client.read(is_final=True):  # noqa: ASYNC110 - other nodes change, not a value here
                await trio.sleep(RETRY_S)
        certain = [each for each in client.operations if each.ended_ms < OPEN]
        assert {each.act for each in certain} >= {Act.RESET, Act.DELETE_OFFSETS}
        assert check_administered(client.operations, client.reads, [], stale_ms=0) == []

    run_cluster(scenario, seed=seed, brokers=3, share_coordinator_state_topic_num_partitions="4")
