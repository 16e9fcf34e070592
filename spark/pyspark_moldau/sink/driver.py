"""Ends a batch of an exactly-once write on the driver: decides and commits it, or aborts what its tasks left open."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from moldau import Admin, KafkaError, Producer
from moldau.admin import AdminError
from moldau.consumer import CommittedOffset
from moldau.protocol.errors import ErrorCode
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.cluster import (
    MARKER_PARTITION,
    ONGOING,
    admin_of,
    job_topic,
    perform_shared,
    read_decision,
    read_offset,
    run_explained,
    wait_ms,
    wait_reachable,
    wall_ms,
    write_note,
)
from pyspark_moldau.sink.core.decision_codec import encode_decision
from pyspark_moldau.sink.core.effects import (
    AbortOrphans,
    EndDecided,
    FenceDriver,
    FindEnded,
    NoteBegun,
    NoteDone,
    ReadDecision,
    ReadMarker,
    ReadNotes,
    WriteDecision,
)
from pyspark_moldau.sink.core.protocol import DriverCore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark_moldau.sink.core.effects import Decision, Effect, Entry, Report
    from pyspark_moldau.sink.core.sink_options import SinkOptions
    from pyspark_moldau.sink.names import Names

logger = logging.getLogger(__name__)


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
            self._admin = await stack.enter_async_context(admin_of(self._options))
            await wait_reachable(self._admin, self._options)
            while core.effect is not None:
                core = core.on(await self._perform(core.effect))

    async def _perform(self, effect: Effect) -> object:
        match effect:
            case ReadDecision() | ReadMarker() | ReadNotes() | NoteBegun() | EndDecided():
                return await perform_shared(self._admin, self._options, self._names, effect)
            case NoteDone(batch):
                await write_note(self._admin, self._names.done_group, batch)
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


async def _abort_orphans(admin: Admin, names: Names, batch: int, kept: frozenset[str]) -> None:
    """Aborts what readers would wait for until its time-out. A failure delays readers, and nothing else.

    If a later batch than ``batch`` is decided, another driver has gone on, and is about to commit what is open.
    """
    try:
        for listed in await admin.list_transactions(states=[ONGOING]):
            name = listed.transactional_id
            if not names.is_task(name) or name in kept:
                continue
            decided = await read_offset(admin, names.decision_group(0), owner=names.driver)
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
    run_explained(options, _Driver(options, names, core).run)


def written_rows(options: SinkOptions, names: Names, version: int) -> int | None:
    """Returns how many rows of a job's version are in the topic; None if no decision says so, or none any more."""

    async def main() -> int | None:
        async with admin_of(options) as admin:
            found = await read_decision(admin, names, is_final=True, limit_ms=wait_ms(options))
        if found is None or found.batch != version:
            return None
        return sum(entry.rows for entry in found.entries if entry is not None)

    return run_explained(options, main)


def abort_batch(options: SinkOptions, names: Names, batch: int) -> None:
    """Aborts the open transactions of a batch that failed, unless it or a later one is decided."""

    async def main() -> None:
        # A commit that failed may still be writing its decision: its transaction is ended first.
        given = dict(options.producer) | {"transactional.id": names.driver}
        async with admin_of(options) as admin, Producer(given) as producer:
            await wait_reachable(admin, options)
            await producer.init_transactions()
            decision = await read_decision(admin, names, is_final=True, limit_ms=wait_ms(options))
            entries = () if decision is None or decision.batch != batch else decision.entries
            kept = frozenset(entry.transactional_id for entry in entries if entry is not None)
            await _abort_orphans(admin, names, batch, kept)

    run_explained(options, main)
