"""Sends records for ``moldau produce``: reads files or standard input, and reports what was acknowledged."""

from __future__ import annotations

import sys
from collections import Counter, deque
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import trio

from moldau.cluster.arguments import ArgumentError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records.errors import InvalidRecordError
from moldau.serialization import RegistryError, SerializationError
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.records.core.lines import LINE_BYTES_MAX, LineRules, Splitter
from moldau_cli.records.core.values import Content, NewRecord, Row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from moldau import Producer
    from moldau.producer import Delivery, RecordMetadata

    Parser = Callable[[bytes, LineRules, str], NewRecord]

READ_BYTES: Final = 64 * 1024
UNDELIVERED_MAX: Final = 100_000
"""Records that may wait for their acknowledgement; ``buffer.memory`` bounds their bytes."""
FAREWELL_S: Final = 10.0
_OF_ONE_RECORD: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors of the call that takes a record: it is too large, or names a partition that the topic lacks."""


@dataclass(slots=True, kw_only=True)
class Job:
    """The settings of sending.

    ``parse`` is None if each file is one record. ``transaction_records`` is None without transactions, and 0 for one
    transaction with all records. ``report`` receives each acknowledged record. ``check_partition`` refuses a partition
    that no broker knows: the producer would wait ``max.block.ms`` for it.
    """

    topic: str
    sources: Sequence[Path]
    rules: LineRules
    parse: Parser | None
    delimiter: bytes = b"\n"
    count: int | None = None
    transaction_records: int | None = None
    report: Callable[[Row], None] | None = None
    check_partition: Callable[[int], Awaitable[None]] | None = None
    sent: int = 0
    partitions_known: int = 0
    acknowledged: Counter[int] = field(default_factory=Counter)
    """Records by partition, without those of transactions that are not committed."""

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to transactions."""
        return self.transaction_records is not None


async def send_all(producer: Producer[Any, Any], job: Job, reading: trio.CancelScope) -> None:
    """Sends the records of a job and waits until each is acknowledged, and each transaction committed.

    Cancelling ``reading`` ends the input, and so does an error in it. The records read before are then delivered within
    ``FAREWELL_S``, or its transaction aborted.

    Raises:
        UsageError: an input cannot be read or has another form.
        KeyboardInterrupt: ``reading`` was cancelled.
        KafkaError: a record was not acknowledged.
    """
    acknowledgements = _Acknowledgements(producer, job)
    await acknowledgements.begin()
    try:
        await _send_all(producer, job, reading, acknowledgements)
    finally:
        acknowledgements.count_done()


async def _send_all(
    producer: Producer[Any, Any], job: Job, reading: trio.CancelScope, acknowledgements: _Acknowledgements
) -> None:
    try:
        with reading:
            async with aclosing(_batches(job)) as batches:
                async for batch in batches:
                    for record in batch:
                        if job.transaction_records and job.sent and job.sent % job.transaction_records == 0:
                            await acknowledgements.commit()
                            producer.begin_transaction()
                        acknowledgements.waiting.append((await _send(producer, job, record), record))
                        job.sent += 1
                    await acknowledgements.settle(UNDELIVERED_MAX)
        if reading.cancelled_caught:
            raise KeyboardInterrupt
    except (UsageError, KeyboardInterrupt):
        if not job.is_transactional:
            with trio.move_on_after(FAREWELL_S):
                await acknowledgements.settle(0)
        raise
    await acknowledgements.commit()


class _Acknowledgements:
    """The records of a job that wait for their acknowledgement, or for the commit of their transaction."""

    def __init__(self, producer: Producer[Any, Any], job: Job) -> None:
        self._producer = producer
        self._job = job
        self._uncommitted: Counter[int] = Counter()
        self.waiting: deque[tuple[Delivery, NewRecord]] = deque()

    async def begin(self) -> None:
        if self._job.is_transactional:
            await self._producer.init_transactions()
            self._producer.begin_transaction()

    async def settle(self, most: int) -> None:
        """Waits until at most ``most`` records are not acknowledged, and reports those that are."""
        while len(self.waiting) > most or (self.waiting and self.waiting[0][0].is_done):
            delivery, record = self.waiting.popleft()
            self._count(await delivery, record)

    def count_done(self) -> None:
        """Reports the acknowledged ones among the records behind one that failed; another partition may hold them."""
        for delivery, record in () if self._job.is_transactional else self.waiting:
            if delivery.is_done:
                with suppress(KafkaError):
                    self._count(delivery.result(), record)
        self.waiting.clear()

    def _count(self, placed: RecordMetadata, record: NewRecord) -> None:
        job = self._job
        (self._uncommitted if job.is_transactional else job.acknowledged)[placed.partition] += 1
        if job.report is not None:
            key, value = map(_content, (record.key, record.value))
            place = (placed.topic, placed.partition, placed.offset, placed.timestamp)
            job.report(Row(*place, key, value, record.headers))

    async def commit(self) -> None:
        """Waits for all records, and commits the transaction."""
        await self._producer.flush()
        await self.settle(0)
        if self._job.is_transactional:
            await self._producer.commit_transaction()
            self._job.acknowledged.update(self._uncommitted)
            self._uncommitted.clear()


def _content(given: object) -> Content:
    return Content(given if isinstance(given, bytes) else None, given, is_json=isinstance(given, str))


async def _send(producer: Producer[Any, Any], job: Job, record: NewRecord) -> Delivery:
    try:
        if record.partition is not None and record.partition >= job.partitions_known:
            await _check_partition(producer, job, record.partition, record.origin)
        return await producer.send(
            job.topic,
            record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
            timestamp=record.timestamp,
        )
    except (SerializationError, InvalidRecordError) as error:
        raise UsageError(f"{record.origin}: {error}") from error
    except ArgumentError as error:
        is_json = not all(isinstance(each, bytes | None) for each in (record.key, record.value))
        advice = "; --value-format json and --key-format json send JSON" if is_json else ""
        raise UsageError(f"{record.origin}: {error.reason}{advice}") from error
    except KafkaError as error:
        if error.code not in _OF_ONE_RECORD:
            raise
        raise UsageError(f"{record.origin}: {error}") from error
    except RegistryError as error:
        raise CommandError(str(error)) from error


async def _check_partition(producer: Producer[Any, Any], job: Job, partition: int, origin: str) -> None:
    if job.check_partition is None:
        return
    job.partitions_known = len(await producer.partitions_for(job.topic))
    if partition >= job.partitions_known:
        try:
            await job.check_partition(partition)
        except UsageError as error:
            raise UsageError(f"{origin}: {error}") from error


async def _batches(job: Job) -> AsyncGenerator[list[NewRecord]]:
    """Yields the records of all sources, as many at once as a read returned."""
    left = job.count
    sources: Sequence[Path | None] = job.sources or [None]
    for source in sources:
        name = "stdin" if source is None else str(source)
        with opened(source) as stream:
            async with aclosing(_batches_of(job, stream, name)) as batches:
                async for batch in batches:
                    yield batch if left is None else batch[:left]
                    if left is not None:
                        left -= min(left, len(batch))
                        if not left:
                            return


async def _batches_of(job: Job, stream: BinaryIO, name: str) -> AsyncGenerator[list[NewRecord]]:
    rules = job.rules
    if job.parse is None:
        content = bytearray()
        while data := await _read(stream, name):
            content += data
            if len(content) > LINE_BYTES_MAX:
                raise UsageError(f"{name} has more than {LINE_BYTES_MAX} bytes")
        value = None if rules.tombstones and not content else bytes(content)
        yield [NewRecord(rules.key, value, rules.headers, rules.partition, rules.timestamp, name)]
        return
    splitter, number = Splitter(job.delimiter), 0
    while True:
        data = await _read(stream, name)
        batch: list[NewRecord] = []
        for line in splitter.feed(data) if data else splitter.end():
            number += 1
            try:
                batch.append(job.parse(line, rules, f"{name}:{number}"))
            except UsageError:
                yield batch  # the lines before the wrong one
                raise
        if batch:
            yield batch
        if not data:
            return


async def _read(stream: BinaryIO, name: str) -> bytes:
    """Reads in a thread, because standard input may be a terminal or a pipe that stays silent.

    The raw stream is read: an abandoned read holds no lock of a buffer that the interpreter needs when it exits.
    """
    raw: Any = getattr(stream, "raw", stream)
    try:
        data = await trio.to_thread.run_sync(raw.read, READ_BYTES, abandon_on_cancel=True)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    return bytes(data or b"")


@contextmanager
def opened(source: Path | None) -> Iterator[BinaryIO]:
    """Opens a file, or standard input for None, which stays open.

    Raises:
        UsageError: the file cannot be opened.
    """
    if source is None:
        yield sys.stdin.buffer
        return
    try:
        stream = source.open("rb", buffering=0)
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    with stream:
        yield stream
