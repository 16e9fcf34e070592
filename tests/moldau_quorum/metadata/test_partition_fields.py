"""Goal: a field of a partition is stated in its records and its image, and nowhere else.

Method: the classes are compared by name, and a partition with a distinct value in each field goes through a record.
"""

from __future__ import annotations

import uuid
from dataclasses import fields

from moldau_quorum.metadata.image_parts import (
    PartitionImage,
    changed_partition,
    changes_anything,
    partition_image,
    partition_record,
)
from moldau_quorum.metadata.records import PartitionChangeRecord, PartitionRecord

TOPIC = uuid.UUID(int=7)
IMAGE = PartitionImage(
    replicas=(1, 2, 3),
    isr=(1,),
    leader=1,
    leader_epoch=4,
    partition_epoch=9,
    adding_replicas=(3,),
    removing_replicas=(2,),
    elr=(2,),
    last_known_elr=(3,),
    leader_recovery_state=1,
    directories=tuple(uuid.UUID(int=number) for number in (101, 102, 103)),
)
KEY = {"topic_id", "partition_id"}


def names(cls: type) -> set[str]:
    return {field.name for field in fields(cls)}


def test_image_and_records_have_the_same_fields() -> None:
    """Only the leader epoch is not changed by name: it follows from a new leader."""
    assert names(PartitionRecord) == KEY | names(PartitionImage)
    assert names(PartitionChangeRecord) == KEY | names(PartitionImage) - {"leader_epoch"}


def test_a_record_restores_each_field_of_the_image() -> None:
    assert partition_image(partition_record(TOPIC, 0, IMAGE)) == IMAGE


def test_a_change_replaces_each_field_that_it_names() -> None:
    """A field that is None stays; each field alone counts as a change."""
    untouched = PartitionChangeRecord(topic_id=TOPIC, partition_id=0, partition_epoch=10)
    assert not changes_anything(untouched)
    for name in names(PartitionChangeRecord) - KEY - {"partition_epoch", "leader"}:
        value = 0 if name == "leader_recovery_state" else ()
        record = PartitionChangeRecord(topic_id=TOPIC, partition_id=0, partition_epoch=10, **{name: value})
        after = changed_partition(IMAGE, record)
        assert changes_anything(record), name
        changed = {other for other in names(PartitionImage) if getattr(after, other) != getattr(IMAGE, other)}
        assert changed == {name, "partition_epoch"}
