"""Goal: what a cluster says about a share group is read as it is: the times of the group, and what was given up.

Method: records of a coordinator's log, in the form that brokers write; a simulated broker that holds a lock for long.
"""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from moldau.protocol.codec import DecodeError
from moldau_broker.coordinator.share.core.batches import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch
from moldau_broker.coordinator.share.core.records import change_record
from moldau_broker.coordinator.share.core.state import SharePartitionKey, ShareState, Snapshot, Update
from moldau_jepsen.checkers.group.share import Archived
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.phases.share_evidence import archived_in

TOPIC_ID = UUID(int=7)
WHERE = TopicPartition("share", 1)


def update(*batches, group="share"):
    key = SharePartitionKey(group, TOPIC_ID, 1)
    change = Update(
        key=key, snapshot_epoch=0, leader_epoch=3, start_offset=-1, delivery_complete_count=-1, batches=batches
    )
    return record_of(change)


def record_of(change):
    record = change_record(change)
    return SimpleNamespace(key=record.key, value=record.value)


def test_archived_records_are_named_with_their_deliveries():
    records = [
        update(StateBatch(4, 5, ARCHIVED, 10), StateBatch(6, 6, AVAILABLE, 3), StateBatch(7, 7, ACKNOWLEDGED, 1))
    ]
    assert archived_in(records, "share", "share") == [Archived((WHERE, 4), 10), Archived((WHERE, 5), 10)]


def test_snapshots_name_them_too():
    state = ShareState(
        snapshot_epoch=1,
        state_epoch=0,
        leader_epoch=3,
        start_offset=4,
        delivery_complete_count=0,
        create_ms=1,
        write_ms=2,
        batches=(StateBatch(8, 8, ARCHIVED, 2),),
    )
    key = SharePartitionKey("share", TOPIC_ID, 1)
    records = [record_of(Snapshot(key=key, state=state)), record_of(Snapshot(key=key, state=None))]
    assert archived_in(records, "share", "share") == [Archived((WHERE, 8), 2)]


def test_other_groups_say_nothing():
    assert archived_in([update(StateBatch(4, 5, ARCHIVED, 10), group="other")], "share", "share") == []


def test_an_unknown_form_is_no_evidence():
    with pytest.raises(DecodeError):
        archived_in([SimpleNamespace(key=b"\0\x09", value=b"")], "share", "share")
