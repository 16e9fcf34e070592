"""Finds records that were acknowledged before a read of whole partitions began and that the read lacks.

``check_history`` judges the final phase with everything else. This module judges an earlier read, a read of a part of
the cluster, or a read along another path, by itself: the polls of other readers do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import Anomaly, AnomalyKind
from moldau_jepsen.history import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from moldau_jepsen.history import Operation, TopicPartition


def check_read(
    before: Iterable[Operation], seen: Mapping[TopicPartition, AbstractSet[int]], reader: str
) -> list[Anomaly]:
    """Returns one anomaly for each acknowledged value that a read of whole partitions did not return.

    Args:
        before: The operations that had ended when the read began.
        seen: The values that it returned, by partition; other partitions were not read.
        reader: Name of the reader, for the text.
    """
    return [
        Anomaly(
            kind=AnomalyKind.UNSEEN,
            allowed=False,
            text=f"value {send.value} was acknowledged, and {reader} read {send.partition.topic}-"
            f"{send.partition.partition} from the beginning without it",
            partition=send.partition,
            operations=(operation.index,),
            offsets=() if send.offset is None else (send.offset,),
        )
        for operation in before
        if operation.status is Status.OK and not operation.aborted
        for send in operation.sends
        if send.partition in seen and send.value not in seen[send.partition]
    ]
