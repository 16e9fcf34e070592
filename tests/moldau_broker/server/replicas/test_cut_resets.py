"""Goal: a follower that must start over does so even if it does not get the offset at once.

Method: two brokers in virtual time; the connection is closed between the fetch that demands the reset and ListOffsets,
or the answer lacks one of two partitions.
"""

from __future__ import annotations

from collections import Counter

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from moldau_broker.log.values import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from moldau_broker.replication.follower import FollowerFetcher
from moldau_broker.server.replicas import replica_fetcher
from support.cluster.broker_cluster import batch, run_cluster


@pytest.mark.parametrize("question", [EARLIEST_TIMESTAMP, LATEST_TIMESTAMP])
def test_a_follower_is_reset_though_the_connection_breaks(question: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower is reset even if the connection breaks before it knows the offset.

    It was left out of all fetches until the next leader epoch, though the leader could be reached again.
    """
    asked: Counter[int] = Counter()
    original = replica_fetcher.leader_offsets

    async def cut(connection, broker_id, wanted, *, timestamp, timeout_ms):
        asked[timestamp] += 1
        if timestamp == question and asked[timestamp] <= 2:
            connection.close()
        return await original(connection, broker_id, wanted, timestamp=timestamp, timeout_ms=timeout_ms)

    monkeypatch.setattr(replica_fetcher, "leader_offsets", cut)

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", replicas=2, min_insync_replicas="1")
        leader = await cluster.leader("t")
        follower = 3 - leader
        await cluster.stop(follower)
        await cluster.until(lambda: cluster.partition_image("t").isr == (leader,))
        writing = cluster.client(leader)
        for number in range(6):
            assert (await writing.produce("t", batch(b"%d" % number))).error_code == ErrorCode.NONE
        partitions = [DeleteRecordsPartition(partition_index=0, offset=4)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5_000)
        assert (await writing.request(request)).topics[0].partitions[0].error_code == ErrorCode.NONE
        epoch = cluster.partition_image("t").leader_epoch
        cluster.start_broker(follower)
        await cluster.until(lambda: len(cluster.partition_image("t").isr) == 2)
        assert cluster.partition_image("t").leader_epoch == epoch
        log = cluster.replica(follower, "t").log
        assert (log.log_start_offset, log.log_end_offset) == (4, 6)
        assert asked[question] == 3
        client.close()
        writing.close()

    run_cluster(scenario, brokers=2)


def test_a_partition_without_offsets_holds_up_no_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's answer lacks the offset of the first partition once. The second one is reset all the same."""
    asked: list[int] = []
    leader_offsets, next_request = replica_fetcher.leader_offsets, FollowerFetcher.next_request

    async def first_is_missing(connection, broker_id, wanted, **settings):
        offsets = await leader_offsets(connection, broker_id, wanted, **settings)
        if not asked:
            del offsets[wanted[0].key]
        asked.append(len(wanted))
        return offsets

    def of_both(self, now_ms):
        return next_request(self, now_ms) if len(self) == 2 else None

    monkeypatch.setattr(replica_fetcher, "leader_offsets", first_is_missing)

    async def scenario(cluster) -> None:
        client = cluster.client(1)
        await client.create_topic("t", partitions=2, replicas=2, min_insync_replicas="1")
        leader = await cluster.leader("t")
        follower = 3 - leader
        await cluster.stop(follower)
        await cluster.until(lambda: all(cluster.partition_image("t", each).isr == (leader,) for each in range(2)))
        writing = cluster.client(leader)
        for number in range(6):
            for partition in range(2):
                answer = await writing.produce("t", batch(b"%d" % number), partition=partition)
                assert answer.error_code == ErrorCode.NONE
        partitions = [DeleteRecordsPartition(partition_index=each, offset=4) for each in range(2)]
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=partitions)], timeout_ms=5_000)
        deleted = (await writing.request(request)).topics[0].partitions
        assert [each.error_code for each in deleted] == [ErrorCode.NONE] * 2
        monkeypatch.setattr(FollowerFetcher, "next_request", of_both)
        cluster.start_broker(follower)
        await cluster.until(lambda: all(len(cluster.partition_image("t", each).isr) == 2 for each in range(2)))
        assert asked == [2, 2, 1, 1]
        client.close()
        writing.close()

    run_cluster(scenario, brokers=2)
