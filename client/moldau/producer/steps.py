"""Transactions as a block, and one step of consume, transform and produce; trio and asyncio share the code."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from moldau.producer.core.transaction_values import AbortableTransactionError, FatalTransactionError
from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    from moldau.aio import Consumer as AioConsumer
    from moldau.aio import Producer as AioProducer
    from moldau.blocking import Consumer as BlockingConsumer
    from moldau.consumer import ConsumedBatch, ConsumedRecord, Consumer
    from moldau.producer.producer import Producer
    from moldau.values import Buffer

Shield = Callable[[], "AbstractContextManager[object]"]
"""Makes the block in which an abort runs although the task is cancelled."""


class OutputRecord(NamedTuple):
    """A record that ``transform`` sends; the fields are the parameters of ``send``."""

    topic: str
    value: Buffer | None
    key: Buffer | None = None
    headers: Iterable[tuple[str, Buffer | None]] = ()
    partition: int | None = None
    timestamp: int | None = None


Transform = Callable[["ConsumedRecord"], "Iterable[OutputRecord] | Awaitable[Iterable[OutputRecord]]"]
"""Returns the output of an input record; it may be a coroutine function."""


def note_abort_failure(error: BaseException, failure: Exception) -> None:
    """Adds to an error that the abort after it has failed; the coordinator aborts after its timeout."""
    error.add_note(f"the transaction could not be aborted either: {failure}")


async def _abort_after(producer: Producer | AioProducer, error: BaseException, shield: Shield) -> None:
    if isinstance(error, FatalTransactionError):
        return
    with shield():
        try:
            await producer.abort_transaction()
        except (KafkaError, RuntimeError) as failure:
            note_abort_failure(error, failure)


async def _begin(producer: Producer | AioProducer) -> None:
    begun = producer.begin_transaction()
    if begun is not None:
        await begun


@asynccontextmanager
async def transaction(producer: Producer | AioProducer, shield: Shield) -> AsyncIterator[None]:
    """Begins a transaction, commits it at the end of the block, and aborts it after an exception."""
    await _begin(producer)
    try:
        yield
    except BaseException as error:
        await _abort_after(producer, error, shield)
        raise
    try:
        await producer.commit_transaction()
    except AbortableTransactionError as error:
        await _abort_after(producer, error, shield)
        raise


class Steps:
    """Whether the steps of a producer may go on: not after a commit without a known outcome."""

    __slots__ = ("is_undecided",)

    def __init__(self) -> None:
        self.is_undecided = False

    def check(self, consumer: Consumer | AioConsumer | BlockingConsumer) -> None:
        """Refuses a step whose offsets would not be exactly those of its records.

        Raises:
            RuntimeError: an earlier step ended without a known outcome.
            ConfigError: the consumer commits by itself.
        """
        if self.is_undecided:
            raise RuntimeError(
                "an earlier transform ended without a known outcome; close producer and consumer and open them again"
            )
        if consumer.commits_automatically:
            raise ConfigError(["enable.auto.commit: must be false for transform, which commits in its transactions"])

    async def run(
        self,
        producer: Producer | AioProducer,
        consumer: Consumer | AioConsumer,
        function: Transform,
        timeout_ms: float,
        max_records: int | None,
        shield: Shield,
    ) -> int:
        """Carries one step out and returns the number of input records."""
        self.check(consumer)
        batches = await consumer.poll(timeout_ms, max_records)
        if not batches:
            return 0
        try:
            await _begin(producer)
            for batch in batches:
                for record in batch.with_partition():
                    answer = function(record)
                    outputs = await answer if inspect.isawaitable(answer) else answer
                    for topic, value, key, headers, partition, timestamp in outputs:
                        await producer.send(
                            topic, value, key, headers=headers, partition=partition, timestamp=timestamp
                        )
            await producer.send_offsets_to_transaction(consumer.offsets_to_commit(), consumer.group_metadata())
        except BaseException as error:
            rewind(consumer, batches)
            await _abort_after(producer, error, shield)
            raise
        try:
            await producer.commit_transaction()
        except AbortableTransactionError as error:
            rewind(consumer, batches)
            await _abort_after(producer, error, shield)
            raise
        except BaseException:
            self.is_undecided = True
            raise
        return sum(len(batch.records) for batch in batches)


def rewind(consumer: Consumer | AioConsumer | BlockingConsumer, batches: Iterable[ConsumedBatch]) -> None:
    """Sets positions back before records whose transaction did not commit."""
    for batch in batches:
        with contextlib.suppress(LookupError):  # a partition that is no longer assigned has no position to set back
            consumer.seek(batch.topic_partition, batch.records[0].offset, leader_epoch=batch.leader_epoch)
