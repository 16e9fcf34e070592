"""Finds unclean elections: those of a leader that may lack acknowledged records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.metadata.records import PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.metadata.records import MetadataRecord


def unclean_elections(records: Iterable[MetadataRecord], image: MetadataImage) -> list[tuple[str, int, int]]:
    """Returns topic, partition and leader of the changes whose leader was neither in sync nor eligible in ``image``.

    Eligible leader replicas (KIP-966) have all acknowledged records. A reassignment adds its new replicas to the ISR
    before one of them leads, so it is not listed.
    """
    found = []
    for record in records:
        if not isinstance(record, PartitionChangeRecord) or record.leader < 0:
            continue
        topic = image.topics_by_id.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic and before and record.leader not in (before.leader, *before.isr, *before.elr):
            found.append((topic.name, record.partition_id, int(record.leader)))
    return found
