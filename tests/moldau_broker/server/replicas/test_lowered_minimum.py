"""Goal: a broker that applies several changes at once never combines an older and a newer state.

The old in-sync set must not meet the new, lower ``min.insync.replicas``, and no change may hide another. Method: the
changes, as records, are applied as one to the replicas of a leader, and every use of the minimum is noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from moldau.values import Offset
from moldau_broker.replication.replica import Replica
from moldau_quorum.metadata.records import BrokerRegistrationChangeRecord, ConfigRecord, PartitionChangeRecord
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    import pytest

MINIMUM = "min.insync.replicas"


def test_a_lowered_minimum_does_not_meet_an_older_in_sync_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of at least three replicas are in sync and a third is eligible; one leaves, then the minimum becomes two.

    A record that the former two acknowledge would be lost with the remaining one when the third becomes leader.
    """
    looked: list[tuple[int, tuple[int, ...]]] = []
    reconsider = Replica.reconsider

    def noted(self, *arguments):
        looked.append((self.effective_min_isr, self.state.isr))
        return reconsider(self, *arguments)

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3, min_insync_replicas="3")
        leader = await cluster.leader("t")
        broker = cluster.running[leader]
        await cluster.until(lambda: cluster.replica(leader, "t").replica.state.isr == cluster.partition_image("t").isr)
        other, third = (broker_id for broker_id in (1, 2, 3) if broker_id != leader)
        image = broker.metadata.image
        topic, partition = image.topics_by_name["t"], cluster.partition_image("t")

        def change(number: int, *isr: int) -> PartitionChangeRecord:
            eligible = tuple(broker_id for broker_id in (1, 2, 3) if broker_id not in isr)
            epoch = partition.partition_epoch + number
            return PartitionChangeRecord(
                topic_id=topic.topic_id, partition_id=0, partition_epoch=epoch, isr=isr, elr=eligible
            )

        def take_over(*records) -> None:
            before = broker.context.replicas.image
            for _ in broker.context.replicas.apply(before.apply(records, offset=before.offset + 1, epoch=before.epoch)):
                pass

        take_over(change(1, leader, other))
        monkeypatch.setattr(Replica, "reconsider", noted)
        lowered = ConfigRecord(resource_type=2, resource_name="t", name=MINIMUM, value="2")
        take_over(change(2, leader), lowered)
        monkeypatch.undo()
        assert looked[-1] == (2, (leader,)), "in the end it is as both left it"
        assert (2, (leader, other)) not in looked
        assert cluster.replica(leader, "t").replica.min_insync_replicas == 2
        assert third not in cluster.replica(leader, "t").replica.state.isr

    run_cluster(scenario, brokers=3)


def test_a_failed_directory_is_seen_beside_another_change() -> None:
    """DeleteRecords would wait for the replica in it, though its broker reports in the same step as another one."""

    async def scenario(cluster) -> None:
        await cluster.client(1).create_topic("t", replicas=3)
        leader = await cluster.leader("t")
        replicas = cluster.running[leader].context.replicas
        failing, stopping = (broker_id for broker_id in (1, 2, 3) if broker_id != leader)
        before = replicas.image
        epochs = {broker_id: before.brokers[broker_id].broker_epoch for broker_id in (failing, stopping)}
        records = [
            BrokerRegistrationChangeRecord(
                broker_id=failing, broker_epoch=epochs[failing], log_dirs=(UUID(int=9_999),)
            ),
            BrokerRegistrationChangeRecord(
                broker_id=stopping, broker_epoch=epochs[stopping], in_controlled_shutdown=True
            ),
        ]
        for _ in replicas.apply(before.apply(records, offset=before.offset + 1, epoch=before.epoch)):
            pass
        assert cluster.replica(leader, "t").replica.low_watermark(Offset(3), replicas.eligible) == 3

    run_cluster(scenario, brokers=3)
