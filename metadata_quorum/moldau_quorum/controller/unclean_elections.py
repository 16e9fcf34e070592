"""Finds the elections in a command, and unclean ones: of a leader that may lack acknowledged records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_quorum.controller.partition_change import RECOVERING
from moldau_quorum.metadata.records import PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.metadata.records import MetadataRecord


class Elections(NamedTuple):
    """The elections of one command."""

    changes: int
    """Partitions that get another leader."""
    unclean: list[tuple[str, int, int]]
    """Topic, partition and leader of those whose leader was neither in sync nor eligible.

    Eligible leader replicas (KIP-966) have all acknowledged records. One command may add the last new replica of a
    reassignment to the ISR and make it the leader; that is no such election, and only one marks its partition as
    recovering."""


def elections(records: Iterable[MetadataRecord], image: MetadataImage) -> Elections:
    """Returns the elections that ``records`` make on top of ``image``."""
    changes, unclean = 0, []
    for record in records:
        if not isinstance(record, PartitionChangeRecord) or record.leader < 0:
            continue
        topic = image.topics_by_id.get(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or before is None or record.leader == before.leader:
            continue
        changes += 1
        recovery = (
            before.leader_recovery_state if record.leader_recovery_state is None else record.leader_recovery_state
        )
        if recovery == RECOVERING and record.leader not in (*before.isr, *before.elr):
            unclean.append((topic.name, record.partition_id, int(record.leader)))
    return Elections(changes, unclean)
