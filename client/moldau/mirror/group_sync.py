"""Translates the committed offsets of a source's groups, and commits them in the target if that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin import LATEST, AdminError
from moldau.cluster.metadata import TopicPartition
from moldau.consumer import CommitFailedError
from moldau.mirror.core.checkpoints import IDLE_STATES, CheckpointBook, offsets_to_sync
from moldau.mirror.core.formats import Checkpoint, OffsetSync
from moldau.mirror.core.offset_syncs import SyncStore
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.admin import Admin, GroupListing
    from moldau.mirror.core.settings import SourceSettings
    from moldau.mirror.internal import TopicReader
    from moldau.mirror.statistics import SourceStatistics
    from moldau.producer import Producer
    from moldau.records import Record
    from moldau.runtime.telemetry.log import EventLogger

ENDS_MS = 10_000
"""For the leaders of copies to tell where these end."""
_PROTOCOLS = ("consumer", "")
"""Protocol types of groups that commit offsets as consumers do; the empty one is of groups without members."""


class GroupSync:
    """The groups of one source."""

    def __init__(
        self,
        settings: SourceSettings,
        source: Admin,
        target: Admin,
        producer: Producer,
        statistics: SourceStatistics,
        logger: EventLogger,
    ) -> None:
        """``producer`` writes checkpoints to the target."""
        self._settings = settings
        self._source = source
        self._target = target
        self._producer = producer
        self._statistics = statistics
        self._logger = logger
        self._rules = settings.topic_rules
        self._groups = settings.group_filter
        self._policy = settings.policy
        self._topic = settings.policy.checkpoints_topic(settings.alias)
        self._syncs = SyncStore()
        self._present: dict[str, None] = {}  # the groups of the last round; the book may know others of earlier files
        self.book = CheckpointBook()

    async def load(self, checkpoints: TopicReader) -> None:
        """Reads the checkpoints that were written earlier, because new ones must not go back behind them."""

        def take(record: Record) -> None:
            if record.value is not None:
                self.book.add(Checkpoint.parse(record.key, record.value))

        await checkpoints.begin()
        await checkpoints.read_to_end(take)

    async def write_checkpoints(self, syncs: TopicReader) -> int:
        """Reads new offset syncs and writes the checkpoints that are due; returns how many.

        A group whose offsets the source refuses is logged and left out, as MirrorMaker does: the mirror may list more
        groups than it may describe, and a group may be deleted between both.

        Raises:
            KafkaError: the groups cannot be listed, or a checkpoint cannot be written.
        """

        def take(record: Record) -> None:
            if record.value is None:
                return
            sync = OffsetSync.parse(record.key, record.value)
            if self._syncs.add(sync):
                copy = TopicPartition(self._local(sync.partition.topic), sync.partition.partition)
                self.book.went_back(copy, sync.downstream + 1)

        await syncs.read_to_end(take)
        listed = [each.group_id for each in await self._listed() if each.protocol_type in _PROTOCOLS]
        self._present = dict.fromkeys(group for group in listed if self._groups.accepts(group))
        written = 0
        for group in self._present:
            written += await self._write_group(group)
        self._statistics.checkpoints += written
        return written

    async def _listed(self) -> list[GroupListing]:
        """Returns the groups of the source; without those of brokers that do not answer, which are logged."""
        try:
            return await self._source.list_groups()
        except AdminError as error:
            self._statistics.failures += 1
            self._statistics.last_error = f"groups are missing: {error}"
            self._logger.warning("groups-not-listed", error=error)
            return error.results if isinstance(error.results, list) else []

    async def _write_group(self, group: str) -> int:
        try:
            offsets = await self._source.list_group_offsets(group)
        except KafkaError as error:
            if error.code is ErrorCode.NETWORK_EXCEPTION:
                raise  # the source cannot be reached: the other groups would wait as long
            self._statistics.failures += 1
            self._statistics.last_error = f"group {group}: {error}"
            self._logger.warning("group-not-read", group=group, error=error)
            return 0
        committed = {
            partition: offset
            for partition, offset in offsets.items()
            if self._rules.names.accepts(partition.topic) and not self._policy.is_internal_topic(partition.topic)
        }
        due = self.book.due(group, committed, self._syncs.translate, self._local)
        deliveries = [await self._producer.send(self._topic, each.value(), key=each.key(), partition=0) for each in due]
        for checkpoint, delivery in zip(due, deliveries, strict=True):
            await delivery
            self.book.add(checkpoint)
        return len(due)

    def _local(self, topic: str) -> str:
        return self._policy.local_topic(topic, self._settings.alias, self._settings.target_alias)

    async def sync_offsets(self) -> int:
        """Commits translated offsets in the target for groups without members there; returns for how many groups.

        As in MirrorMaker, a group that the source no longer has, or that the settings leave out, is left alone: an
        operator may have moved it, and set its offsets in the target. Copies that are gone, or that end before the
        translated offset, are left out: the target would refuse the offset after a long wait, or keep a wrong one.
        """
        wanted = [group for group in self.book.groups() if group in self._present]
        if not wanted:
            return 0
        try:
            ends = await self._ends(partition for group in wanted for partition in self.book.of_group(group))
        except KafkaError as error:
            self._statistics.failures += 1
            self._logger.warning("groups-not-synced", error=error)
            return 0
        synced = 0
        for group in wanted:
            try:
                synced += await self._sync_group(group, ends)
            except CommitFailedError:
                self._logger.info("group-not-synced", group=group, reason="it has members in the target")
            except KafkaError as error:
                self._statistics.failures += 1
                self._logger.warning("group-not-synced", group=group, error=error)
        return synced

    async def _ends(self, copies: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the ends of copies, without those that are gone and those whose leaders do not answer in time.

        Raises:
            KafkaError: the target cannot be asked.
        """
        present = {each.name: each.partition_count for each in await self._target.list_topics(include_internal=True)}
        asked: dict[tuple[str, int], int] = {
            copy: LATEST for copy in copies if copy.partition < present.get(copy.topic, 0)
        }
        if not asked:
            return {}
        try:
            found = await self._target.within(ENDS_MS).list_offsets(asked)
        except AdminError as error:
            found = error.results if isinstance(error.results, dict) else {}
        return {copy: end for copy, (end, _) in found.items()}

    async def _sync_group(self, group: str, ends: Mapping[TopicPartition, int]) -> bool:
        described = (await self._target.describe_groups([group]))[group]
        if described.state not in IDLE_STATES or described.members:
            return False
        # Behind its end a copy has no record: the checkpoint is of one that was deleted, or cut.
        checkpoints = {
            copy: each
            for copy, each in self.book.of_group(group).items()
            if copy in ends and each.downstream <= ends[copy]
        }
        offsets = offsets_to_sync(checkpoints, await self._target.list_group_offsets(group))
        if not offsets:
            return False
        await self._target.alter_group_offsets(group, offsets)
        self._logger.info("group-synced", group=group, partitions=len(offsets))
        return True
