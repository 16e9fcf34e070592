"""A share-partition as the source of dead letters: its group's queue, and the records in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_broker.log.errors import LogError, LogStorageError, OffsetOutOfRangeError
from moldau_broker.server.remote_reading.values import RemoteRange, RemoteStorageError
from moldau_broker.server.share.dead_letters.letters import Found, Source, find_records
from moldau_broker.server.share.dead_letters.writer import Attempts
from moldau_broker.server.share.led_partition import READ_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.share.core.share_partition import SharePartition
    from moldau_broker.server.share.dead_letters.queue import DeadLetterQueue
    from moldau_broker.server.share.led_partition import LedPartition
    from moldau_broker.server.share.settings import ShareGroupSettings


class LedSource:
    """See ``writer.DeadLetterSource``."""

    def __init__(
        self,
        led: LedPartition,
        core: SharePartition,
        settings: Callable[[str], ShareGroupSettings],
        remote: RemoteReader | None,
    ) -> None:
        """``remote`` reads what has left this broker's disks; None without tiered storage."""
        self._led = led
        self._core = core
        self._settings = settings
        self._remote = remote
        self.attempts = Attempts()
        self.source = Source(led.key.group_id, led.partition.key.topic, led.key.partition)

    @property
    def is_over(self) -> bool:
        """Whether another leader, or another state, has replaced this one."""
        return self._core.closed

    def dead_letter_queue(self) -> DeadLetterQueue | None:
        """Returns the group's queue by the newest metadata."""
        return self._settings(self._led.key.group_id).dead_letter_queue

    async def read(self, first: int, end: int) -> Found:
        """Returns the records from ``first`` to ``end``, or the first of them; records that are gone are left out.

        Raises:
            KafkaError: KAFKA_STORAGE_ERROR, they cannot be read at present.
        """
        log = self._led.partition.log
        upper = log.log_end_offset  # members have had the records: they are committed, if this leader knows that or not
        first_there = max(first, log.log_start_offset)
        if first_there >= end:
            return Found({}, end)
        try:
            if first_there < log.local_log_start_offset and self._remote is not None:
                asked = RemoteRange(first_there, READ_BYTES_MAX, upper, reads_committed=False)
                data = (await self._remote.read(self._led.partition, asked)).records
            else:
                read = log.read(
                    max(first_there, log.local_log_start_offset),
                    max_bytes=READ_BYTES_MAX,
                    upper_bound_offset=upper,
                    min_one_batch=True,
                )
                data = b"".join(part.file.read(part.position, part.count) for part in read.ranges)
        except (LogStorageError, RemoteStorageError, OSError) as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except (OffsetOutOfRangeError, LogError):
            return Found({}, end)
        return find_records(data, first, end, READ_BYTES_MAX)
