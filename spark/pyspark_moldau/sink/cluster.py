"""Carries out the effects of the sink's protocol on a cluster: a task's writing, and the driver's commit.

Each call is one ``trio.run`` in the thread that Spark gives it. Another thread fetches blocks of rows from Spark, so
that batches go out meanwhile.
"""

from __future__ import annotations

import logging
import time
import uuid
import zlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import trio

from moldau import Admin, KafkaError, Producer
from moldau.admin import AdminError
from moldau.consumer import CommittedOffset
from moldau.producer import PreparedTransaction, TransactionError
from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import ConfigError
from pyspark_moldau.client_options import PREFIX
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.core.decision_codec import decode_decision, encode_decision, parts_of
from pyspark_moldau.sink.core.protocol import (
    AbortOrphans,
    Decision,
    DriverCore,
    EndDecided,
    Ended,
    Entry,
    Fence,
    FenceDriver,
    FindEnded,
    HandOver,
    NoteBegun,
    NoteDone,
    Notes,
    ReadDecision,
    ReadMarker,
    ReadNotes,
    Report,
    SkipRows,
    StageMarker,
    TaskCore,
    WriteDecision,
    WriteRows,
)
from pyspark_moldau.sink.explanations import (
    MARKER_TOPIC,
    MAX_BLOCK,
    denied,
    explained,
    mixed_decision,
    still_open,
    unreachable,
)
from pyspark_moldau.sink.rows import split_topics, to_columns
from pyspark_moldau.wire.reach import REACH_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    import pyarrow as pa

    from moldau.producer import Delivery
    from pyspark_moldau.sink.core.protocol import Effect
    from pyspark_moldau.sink.core.sink_options import SinkOptions

SharedEffect: TypeAlias = ReadDecision | ReadMarker | ReadNotes | NoteBegun | EndDecided

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARKER_PARTITION: Final = (MARKER_TOPIC, 0)
"""Decisions and markers are offsets of this partition, which always exists; a commit needs one that does."""

NOTE_RETENTION_MS: Final = 365 * 86_400_000
"""How long the notes of a query last that is not started again."""

WAIT_MS_MIN: Final = 60_000
"""How long a request may take at least: a commit that gives up early may leave a part of a batch visible."""

UNDELIVERED_MAX: Final = 4096
"""Batches whose outcome a task has not looked at yet."""

_DEAD = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)

ONGOING: Final = "Ongoing"
_TASK = "-task-"
_ADMIN_KEYS = ("bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one query or batch job on the cluster.

    ``has_notes`` is False for a job without ``txnAppId``: nothing repeats it, so nothing reads its notes.
    """

    app_id: str
    has_notes: bool = True

    @property
    def prefix(self) -> str:
        return f"moldau-spark-{self.app_id}"

    @property
    def driver(self) -> str:
        """The driver's transactional id."""
        return f"{self.prefix}-driver"

    def task(self, run: str, partition: int, attempt: int) -> str:
        """Returns the transactional id of one attempt; the next batch uses it again."""
        return f"{self.prefix}{_TASK}{run}-{partition}-{attempt}"

    def is_task(self, transactional_id: str) -> bool:
        """Returns whether an id is of a task of this query, not of one whose ``txnAppId`` merely begins alike."""
        return transactional_id.rpartition(_TASK)[0] == self.prefix

    def decision_group(self, part: int) -> str:
        """Returns the group whose offset holds a part of the last decision."""
        return f"{self.prefix}-decision-{part}"

    @property
    def begun_group(self) -> str:
        """The group whose offset is the last batch whose commits were begun."""
        return f"{self.prefix}-begun"

    @property
    def done_group(self) -> str:
        """The group whose offset is the last batch whose commits are done."""
        return f"{self.prefix}-done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a task of an exactly-once write."""

    names: Names
    batch: int
    run: str
    partition: int
    attempt: int


def wall_ms() -> int:
    """Returns the wall clock: decisions are read by other processes, on other machines."""
    return time.time_ns() // 1_000_000


def wait_ms(options: SinkOptions) -> int:
    """Returns how long one request may take with all its repetitions."""
    return max(int(options.producer.get(MAX_BLOCK, 0)), WAIT_MS_MIN)


def job_topic(options: SinkOptions) -> str | None:
    """Returns the topic of a job with a name, empty if its rows name theirs; None for other writes."""
    return None if options.app_id is None else options.topic or ""


def _admin(options: SinkOptions) -> Admin:
    given = options.producer
    keys = {key: given[key] for key in given if key in _ADMIN_KEYS or key.startswith(("ssl.", "sasl."))}
    return Admin(keys | {"default.api.timeout.ms": str(wait_ms(options))})


async def _reach(admin: Admin, options: SinkOptions) -> None:
    """Waits until a broker answers, so that no other call waits for an address at which there is none.

    Raises:
        SinkError: none answers in time.
    """
    limit_ms = max(int(options.producer.get(MAX_BLOCK, REACH_MS)), 1)
    try:
        await admin.within(limit_ms).describe_cluster()
    except KafkaError as error:
        if error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        raise unreachable(options, limit_ms, error.message) from error


async def _read_offset(admin: Admin, group: str, *, owner: str | None = None) -> CommittedOffset | None:
    """Returns the offset of a group; waits until no transaction of the id ``owner``, if it is given, holds it.

    Raises:
        SinkError: such a transaction stays open.
    """
    try:
        found = await admin.list_group_offsets(group, require_stable=owner is not None)
    except KafkaError as error:
        if owner is None or error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        raise still_open(owner, error.message) from error
    return found.get(MARKER_PARTITION)  # type: ignore[call-overload, no-any-return]


async def read_decision(admin: Admin, names: Names, *, is_final: bool, limit_ms: int) -> Decision | None:
    """Returns the last decision. ``is_final`` waits for one that is being committed; without it, it is overlooked.

    A task must not wait: if the driver died while it committed a decision, only the next driver ends that transaction,
    and the next driver waits for the tasks.

    Raises:
        SinkError: for ``limit_ms`` the parts of the decision do not fit together, or its transaction stays open.
    """
    owner = names.driver if is_final else None
    deadline_s = trio.current_time() + limit_ms / 1000
    while True:
        first = await _read_offset(admin, names.decision_group(0), owner=owner)
        if first is None:
            return None
        parts = [first.metadata]
        for number in range(1, parts_of(first.metadata)):
            more = await _read_offset(admin, names.decision_group(number), owner=owner)
            if more is not None:
                parts.append(more.metadata)
        decision = decode_decision(parts)
        if decision is not None:
            return decision
        if trio.current_time() >= deadline_s:
            raise mixed_decision(names.driver, names.decision_group(0), limit_ms)
        await trio.sleep(0.05)  # its parts become visible one after the other


async def _end(admin: Admin, entry: Entry) -> Ended:
    prepared = PreparedTransaction(
        transactional_id=entry.transactional_id,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
    )
    try:
        await admin.end_transaction(prepared, commit=True)
    except KafkaError as error:
        if error.code not in _DEAD:
            raise
        logger.warning("decided-transaction-dead id=%s code=%s", entry.transactional_id, error.code.name)
        return Ended.DEAD
    return Ended.COMMITTED


async def _find_ended(admin: Admin, decision: Decision) -> tuple[Entry, ...]:
    entries = {entry.transactional_id: entry for entry in decision.entries if entry is not None}
    try:
        found = await admin.describe_transactions(entries)
    except AdminError as error:
        gone = [name for name, each in error.failures.items() if each.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
        if not gone:
            raise
        return tuple(entries[name] for name in gone)
    return tuple(
        entry
        for name, entry in entries.items()
        if (found[name].state, found[name].producer_id, found[name].producer_epoch)
        != (ONGOING, entry.producer_id, entry.producer_epoch)
    )


async def _note(admin: Admin, group: str, batch: int) -> None:
    offsets = {MARKER_PARTITION: CommittedOffset(offset=batch)}
    await admin.alter_group_offsets(group, offsets, retention_ms=NOTE_RETENTION_MS)


async def _read_notes(admin: Admin, names: Names) -> Notes:
    begun = await _read_offset(admin, names.begun_group)
    done = await _read_offset(admin, names.done_group)
    return Notes(
        begun=-1 if begun is None else begun.offset,
        done=-1 if done is None else done.offset,
        begun_group=names.begun_group,
    )


async def _shared(admin: Admin, options: SinkOptions, names: Names, effect: SharedEffect) -> object:
    """Carries out what both a task and the driver do."""
    match effect:
        case ReadNotes():
            return await _read_notes(admin, names)
        case NoteBegun(batch):
            await _note(admin, names.begun_group, batch)
            return None
        case ReadDecision(is_final):
            return await read_decision(admin, names, is_final=is_final, limit_ms=wait_ms(options))
        case ReadMarker(transactional_id):
            # The group has the name of the id, so only a transaction of this id can make the reader wait.
            found = await _read_offset(admin, transactional_id, owner=transactional_id)
            return -1 if found is None else found.offset
        case EndDecided(entry):
            return await _end(admin, entry)


# --- rows


class RowWriter:
    """Writes a task's blocks of rows with one producer, and counts them."""

    def __init__(self, options: SinkOptions, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._undelivered: list[Delivery] = []
        self.rows = 0
        self.fingerprint = 0

    async def write(self, batch: pa.RecordBatch, *, fingerprints: bool) -> None:
        """Writes one block.

        Raises:
            SinkError: the topic does not exist, or a row is too large.
            RowError: a row names no topic, or a partition that cannot be.
        """
        for topic, part in split_topics(batch, self._options.topic):
            columns, partitions = to_columns(part)
            try:
                deliveries = await self._producer.send_columns(topic, columns, partitions=partitions)
            except (KafkaError, ValueError) as error:
                raise explained(error, topic, self._options) from error
            self.rows += columns.length
            if fingerprints:
                factor = 2 * zlib.crc32(topic.encode()) + 1
                self.fingerprint = (self.fingerprint + columns.fingerprint() * factor) & 0xFFFFFFFFFFFFFFFF
            self._undelivered += deliveries
            if len(self._undelivered) > UNDELIVERED_MAX:
                self._look(wants_all=False)

    def _look(self, *, wants_all: bool) -> None:
        pending = []
        for delivery in self._undelivered:
            if wants_all or delivery.is_done:
                try:
                    delivery.result()
                except KafkaError as error:
                    raise explained(error, delivery.topic, self._options) from error
            else:
                pending.append(delivery)
        self._undelivered = pending

    async def finish(self) -> None:
        """Waits until all rows are delivered.

        Raises:
            SinkError: a row was not delivered.
        """
        await self._producer.flush()
        self._look(wants_all=True)


def _run(options: SinkOptions, main: Callable[[], Awaitable[T]]) -> T:
    """Runs ``main``, and reports by option what keeps the client from the brokers or from the topic."""
    try:
        return trio.run(main)
    except ConfigError as error:
        raise SinkError(f"{PREFIX}{error.problems[0]}") from error
    except KafkaError as error:
        unentitled = denied(error, options)
        if unentitled is None:
            raise
        raise unentitled from error


async def _blocks(batches: Iterator[pa.RecordBatch], writer: RowWriter, *, fingerprints: bool) -> None:
    while True:
        batch = await trio.to_thread.run_sync(next, batches, None, abandon_on_cancel=True)
        if batch is None:
            return
        if batch.num_rows:
            await writer.write(batch, fingerprints=fingerprints)


# --- at least once


def write_at_least_once(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes a task's rows and returns their number once all are delivered."""

    async def main() -> int:
        async with Producer(dict(options.producer)) as producer:
            writer = RowWriter(options, producer)
            await _blocks(batches, writer, fingerprints=False)
            await writer.finish()
            return writer.rows

    return _run(options, main)


# --- exactly once: the task


class _Task:
    """Carries out the effects of one attempt."""

    def __init__(self, options: SinkOptions, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> None:
        self._options = options
        self._attempt = attempt
        self._batches = batches

    async def run(self) -> Report:
        core = TaskCore(
            batch=self._attempt.batch,
            partition=self._attempt.partition,
            has_notes=self._attempt.names.has_notes,
            topic=job_topic(self._options),
            now_ms=wall_ms(),
        )
        async with AsyncExitStack() as stack:
            self._stack = stack
            self._admin = await stack.enter_async_context(_admin(self._options))
            await _reach(self._admin, self._options)
            while core.effect is not None:
                core = core.on(await self._perform(core.effect))
        assert core.report is not None, "a task without an effect has a report"
        return core.report

    async def _perform(self, effect: Effect) -> object:
        attempt = self._attempt
        match effect:
            case ReadDecision() | ReadMarker() | ReadNotes() | NoteBegun() | EndDecided():
                return await _shared(self._admin, self._options, attempt.names, effect)
            case SkipRows():
                while await trio.to_thread.run_sync(next, self._batches, None, abandon_on_cancel=True) is not None:
                    pass
                return None
            case Fence():
                self._id = await self._free_id()
                given = dict(self._options.producer) | {"transactional.id": self._id}
                self._producer = await self._stack.enter_async_context(Producer(given))
                await self._producer.init_transactions()
                return None
            case WriteRows():
                self._producer.begin_transaction()
                writer = RowWriter(self._options, self._producer)
                await _blocks(self._batches, writer, fingerprints=True)
                return writer.rows, writer.fingerprint
            case StageMarker(batch):
                await self._producer.send_offsets_to_transaction(
                    {MARKER_PARTITION: CommittedOffset(offset=batch)}, self._id
                )
                return None
            case HandOver(rows, fingerprint):
                prepared = await self._producer.prepare_transaction()
                return Entry(
                    transactional_id=prepared.transactional_id,
                    producer_id=prepared.producer_id,
                    producer_epoch=prepared.producer_epoch,
                    rows=rows,
                    fingerprint=fingerprint,
                )
        raise AssertionError(f"{effect} is not a task's")

    async def _free_id(self) -> str:
        """Returns a transactional id for this attempt that has no open transaction.

        If Spark runs a stage again because an executor was lost, it counts attempts from 0 again. A task of the first
        run may have handed its transaction over by then, and taking over its id would abort that.
        """
        attempt = self._attempt
        name = attempt.names.task(attempt.run, attempt.partition, attempt.attempt)
        try:
            found = await self._admin.describe_transactions([name])
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return name
        return f"{name}-{uuid.uuid4().hex[:8]}" if found[name].state == ONGOING else name


def write_exactly_once(options: SinkOptions, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Report:
    """Writes a task's rows in a transaction that stays open for the driver."""
    try:
        return _run(options, _Task(options, attempt, batches).run)
    except TransactionError as error:
        raise explained(error, options.topic or "(of column topic)", options) from error


# --- exactly once: the driver


class _Driver:
    """Carries out the effects of one commit."""

    def __init__(self, options: SinkOptions, names: Names, core: DriverCore) -> None:
        self._options = options
        self._names = names
        self._core = core

    async def run(self) -> None:
        core = self._core
        async with AsyncExitStack() as stack:
            self._stack = stack
            self._admin = await stack.enter_async_context(_admin(self._options))
            await _reach(self._admin, self._options)
            while core.effect is not None:
                core = core.on(await self._perform(core.effect))

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case ReadDecision() | ReadMarker() | ReadNotes() | NoteBegun() | EndDecided():
                return await _shared(self._admin, self._options, self._names, effect)
            case NoteDone(batch):
                await _note(self._admin, self._names.done_group, batch)
                return None
            case FenceDriver():
                given = dict(self._options.producer) | {"transactional.id": self._names.driver}
                self._producer = await self._stack.enter_async_context(Producer(given))
                await self._producer.init_transactions()
                return None
            case FindEnded(decision):
                return await _find_ended(self._admin, decision)
            case WriteDecision(decision):
                self._producer.begin_transaction()
                for number, part in enumerate(encode_decision(decision)):
                    await self._producer.send_offsets_to_transaction(
                        {MARKER_PARTITION: CommittedOffset(offset=decision.batch, metadata=part)},
                        self._names.decision_group(number),
                    )
                await self._producer.commit_transaction()
                return None
            case AbortOrphans(kept):
                await _abort_orphans(self._admin, self._names, self._core.batch, kept)
                return None
        raise AssertionError(f"{effect} is not the driver's")


async def _abort_orphans(admin: Admin, names: Names, batch: int, kept: frozenset[str]) -> None:
    """Aborts what readers would wait for until its time-out. A failure delays readers, and nothing else.

    If a later batch than ``batch`` is decided, another driver has gone on, and is about to commit what is open.
    """
    try:
        for listed in await admin.list_transactions(states=[ONGOING]):
            name = listed.transactional_id
            if not names.is_task(name) or name in kept:
                continue
            decided = await _read_offset(admin, names.decision_group(0), owner=names.driver)
            if decided is not None and decided.offset > batch:
                logger.warning("orphans-stay prefix=%s decided=%d batch=%d", names.prefix, decided.offset, batch)
                return
            logger.info("orphan-aborted id=%s", name)
            await admin.terminate_transaction(name)
    except (KafkaError, OSError, SinkError) as error:
        logger.warning("orphans-stay prefix=%s error=%s", names.prefix, error)


def commit_batch(
    options: SinkOptions, names: Names, batch: int, run: str, reports: Sequence[Report], plan: str = ""
) -> None:
    """Decides a batch and commits the transactions of its tasks; a repetition finishes what was begun."""
    core = DriverCore(
        batch=batch,
        run=run,
        reports=tuple(reports),
        has_notes=names.has_notes,
        topic=job_topic(options),
        plan=plan,
        now_ms=wall_ms(),
    )
    _run(options, _Driver(options, names, core).run)


def written_rows(options: SinkOptions, names: Names, version: int) -> int | None:
    """Returns how many rows of a job's version are in the topic; None if no decision says so, or none any more."""

    async def main() -> int | None:
        async with _admin(options) as admin:
            found = await read_decision(admin, names, is_final=True, limit_ms=wait_ms(options))
        if found is None or found.batch != version:
            return None
        return sum(entry.rows for entry in found.entries if entry is not None)

    return _run(options, main)


def abort_batch(options: SinkOptions, names: Names, batch: int) -> None:
    """Aborts the open transactions of a batch that failed, unless it or a later one is decided."""

    async def main() -> None:
        # A commit that failed may still be writing its decision: its transaction is ended first.
        given = dict(options.producer) | {"transactional.id": names.driver}
        async with _admin(options) as admin, Producer(given) as producer:
            await _reach(admin, options)
            await producer.init_transactions()
            decision = await read_decision(admin, names, is_final=True, limit_ms=wait_ms(options))
            entries = () if decision is None or decision.batch != batch else decision.entries
            kept = frozenset(entry.transactional_id for entry in entries if entry is not None)
            await _abort_orphans(admin, names, batch, kept)

    _run(options, main)
