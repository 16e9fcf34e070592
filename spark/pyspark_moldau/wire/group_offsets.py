"""Publishes the offsets of a query to a consumer group, so that lag tools see it.

Nothing reads these offsets back: the position of a query is in its checkpoint. So a failure is a warning, and the next
micro-batch tries again.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pyspark_moldau.client_options import OptionError
from pyspark_moldau.errors import ReadTimeoutError
from pyspark_moldau.wire.cluster import Address, Cluster, raise_for

if TYPE_CHECKING:
    from pyspark_moldau.client_options import ClientOptions
    from pyspark_moldau.source.core.offsets import Offsets

logger = logging.getLogger(__name__)

FIND_COORDINATOR_VERSION: Final = 3
OFFSET_COMMIT_VERSION: Final = 8
PUBLISH_TIMEOUT_MS: Final = 5_000
"""The query waits for the publication, so the wait is short."""
AGAIN_S: Final = 3600.0
"""After how long all offsets are published again. Those of a partition without records would expire otherwise: brokers
keep the offsets of a group without members for ``offsets.retention.minutes`` since their last commit."""
METADATA_TEXT: Final = "Spark"
IN_USE: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)


class GroupOffsets:
    """Commits offsets as a consumer without membership does; for one thread."""

    def __init__(self, client: ClientOptions, group: str) -> None:
        self._cluster = Cluster(replace(client, api_timeout_ms=PUBLISH_TIMEOUT_MS))
        self._group = group
        self._coordinator: Address | None = None
        self._published: Offsets = {}
        self._again_s = 0.0

    def publish(self, offsets: Offsets) -> bool:
        """Publishes offsets unless they were published within the last hour; returns whether the group has them now."""
        now_s = time.monotonic()
        if now_s >= self._again_s:
            self._published = {}
        changed = {partition: at for partition, at in offsets.items() if self._published.get(partition) != at}
        if not changed:
            return True
        try:
            self._cluster.retry(f"publish offsets to group {self._group}", lambda: self._commit(changed))
        except (ReadTimeoutError, KafkaError, OptionError) as error:
            hint = "; choose a group that no consumer uses" if getattr(error, "code", None) in IN_USE else ""
            logger.warning("publish-offsets-failed group=%s error=%s%s", self._group, error, hint)
            return False
        if not self._published:
            self._again_s = now_s + AGAIN_S
        self._published |= changed
        return True

    def _commit(self, offsets: Offsets) -> None:
        try:
            self._attempt(offsets)
        except (OSError, KafkaError):
            self._coordinator = None  # it may be another broker now
            raise

    def _attempt(self, offsets: Offsets) -> None:
        if self._coordinator is None:
            request = FindCoordinatorRequest(key=self._group, key_type=0)
            found = self._cluster.ask_any(request, FIND_COORDINATOR_VERSION, FindCoordinatorResponse)
            raise_for(found.error_code, f"coordinator of group {self._group}")
            self._coordinator = (found.host, found.port)
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, number), offset in sorted(offsets.items()):
            by_topic.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=offset, committed_metadata=METADATA_TEXT
                )
            )
        commit = OffsetCommitRequest(
            group_id=self._group,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=parts) for topic, parts in by_topic.items()],
        )
        answer = self._cluster.ask(self._coordinator, commit, OFFSET_COMMIT_VERSION, OffsetCommitResponse)
        for entry in answer.topics:
            for part in entry.partitions:
                raise_for(part.error_code, f"{entry.name}-{part.partition_index} of group {self._group}")
