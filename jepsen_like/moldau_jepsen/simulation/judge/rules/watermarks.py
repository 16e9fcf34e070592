"""Compares the two high watermarks of a replica: that of replication, and that of its log.

The replica's state machine computes one, which acknowledgements and the answers of Fetch name. The log keeps a copy,
which bounds the last stable offset that ``read_committed`` consumers reach, retention and DeleteRecords. A broker
writes the copy to the checkpoint and begins with it after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from moldau_broker.server.replicas.partition import Partition


class WatermarkRules:
    """Judges the high watermarks of logs, and those that followers believe.

    ``log-watermark``: between two turns of the event loop the log's high watermark equals the replica's, limited to the
    log (from its start to its end). No difference is allowed, however short: each place that moves one of the two, or
    changes the log, moves the other before its task lets others run, so that no request can see a difference. The limit
    is part of the rule, because a replica whose log start was raised by its leader may know of no high watermark yet.
    It implies that the copy is never above the replica's, and falls only with it (``watermark-monotone``). Logs whose
    directory has failed are left out: their replicas are about to end.

    ``watermark-known``: no follower, and no replica that has just been opened with its checkpoint, has a high watermark
    above the highest that any leader of the partition has had. What a follower believes came from a leader, what a
    checkpoint holds from the copy. A leader may die, or become a follower, in the turn in which it advances, so the
    last state of all that led is read before a replica is convicted (``last_known``).
    """

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated

    def compare(self, key: Hashable, broker: int, partition: Partition) -> None:
        """A turn has ended in which the broker's tasks ran."""
        log = partition.log
        if log.failed:
            return
        replicated, copied = partition.replica.high_watermark, log.watermarks.high_watermark
        if copied != min(max(replicated, log.log_start_offset), log.log_end_offset):
            self._violated(
                "log-watermark",
                f"{key}: the replica of broker {broker} has high watermark {replicated}, its log from "
                f"{log.log_start_offset} to {log.log_end_offset} has {copied}",
            )

    def believed(self, key: Hashable, broker: int, watermark: int, known: int, last_known: Callable[[], int]) -> None:
        """A replica that does not lead has another state; ``known`` is the highest high watermark of all leaders.

        ``last_known`` returns ``known`` with the last states of leaders that are gone.
        """
        if watermark > known and watermark > last_known():
            self._violated(
                "watermark-known",
                f"{key}: broker {broker} does not lead and has high watermark {watermark}, "
                f"no leader had more than {known}",
            )
