"""Reads and writes the decision, markers and notes of a query, for the tasks and the driver of the sink.

All three are offsets of consumer groups, see ``core.protocol``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import trio

from moldau import Admin, KafkaError
from moldau.consumer import CommittedOffset
from moldau.producer import PreparedTransaction
from moldau.protocol.errors import ErrorCode
from moldau.runtime.config import ConfigError
from pyspark_moldau.client_options import PREFIX
from pyspark_moldau.errors import SinkError
from pyspark_moldau.sink.core.decision_codec import decode_decision, parts_of
from pyspark_moldau.sink.core.effects import EndDecided, Ended, NoteBegun, Notes, ReadDecision, ReadMarker, ReadNotes
from pyspark_moldau.sink.explanations import (
    MARKER_TOPIC,
    MAX_BLOCK,
    denied,
    mixed_decision,
    still_open,
    unreachable,
)
from pyspark_moldau.wire.reach import REACH_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pyspark_moldau.sink.core.effects import Decision, Entry
    from pyspark_moldau.sink.core.sink_options import SinkOptions
    from pyspark_moldau.sink.names import Names

SharedEffect: TypeAlias = ReadDecision | ReadMarker | ReadNotes | NoteBegun | EndDecided
"""The effects of a task that are the driver's too."""

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARKER_PARTITION: Final = (MARKER_TOPIC, 0)
"""Decisions and markers are offsets of this partition, which always exists; a commit needs one that does."""

NOTE_RETENTION_MS: Final = 365 * 86_400_000
"""How long the notes of a query last that is not started again."""

WAIT_MS_MIN: Final = 60_000
"""How long a request may take at least: a commit that gives up early may leave a part of a batch visible."""

_DEAD = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
)

ONGOING: Final = "Ongoing"
"""The state of a transaction that is open."""
_ADMIN_KEYS = ("bootstrap.servers", "client.id", "request.timeout.ms", "security.protocol")


def wall_ms() -> int:
    """Returns the wall clock: decisions are read by other processes, on other machines."""
    return time.time_ns() // 1_000_000


def wait_ms(options: SinkOptions) -> int:
    """Returns how long one request may take with all its repetitions."""
    return max(int(options.producer.get(MAX_BLOCK, 0)), WAIT_MS_MIN)


def job_topic(options: SinkOptions) -> str | None:
    """Returns the topic of a job with a name, empty if its rows name theirs; None for other writes."""
    return None if options.app_id is None else options.topic or ""


def run_explained(options: SinkOptions, main: Callable[[], Awaitable[T]]) -> T:
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


def admin_of(options: SinkOptions) -> Admin:
    """Returns an admin client with the login of the sink, whose calls may each take ``wait_ms``."""
    given = options.producer
    keys = {key: given[key] for key in given if key in _ADMIN_KEYS or key.startswith(("ssl.", "sasl."))}
    return Admin(keys | {"default.api.timeout.ms": str(wait_ms(options))})


async def wait_reachable(admin: Admin, options: SinkOptions) -> None:
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


async def read_offset(admin: Admin, group: str, *, owner: str | None = None) -> CommittedOffset | None:
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
        first = await read_offset(admin, names.decision_group(0), owner=owner)
        if first is None:
            return None
        parts = [first.metadata]
        for number in range(1, parts_of(first.metadata)):
            more = await read_offset(admin, names.decision_group(number), owner=owner)
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


async def write_note(admin: Admin, group: str, batch: int) -> None:
    """Notes a batch in a group, so that it is known for a year."""
    offsets = {MARKER_PARTITION: CommittedOffset(offset=batch)}
    await admin.alter_group_offsets(group, offsets, retention_ms=NOTE_RETENTION_MS)


async def _read_notes(admin: Admin, names: Names) -> Notes:
    begun = await read_offset(admin, names.begun_group)
    done = await read_offset(admin, names.done_group)
    return Notes(
        begun=-1 if begun is None else begun.offset,
        done=-1 if done is None else done.offset,
        begun_group=names.begun_group,
    )


async def perform_shared(admin: Admin, options: SinkOptions, names: Names, effect: SharedEffect) -> object:
    """Carries out what both a task and the driver do."""
    match effect:
        case ReadNotes():
            return await _read_notes(admin, names)
        case NoteBegun(batch):
            await write_note(admin, names.begun_group, batch)
            return None
        case ReadDecision(is_final):
            return await read_decision(admin, names, is_final=is_final, limit_ms=wait_ms(options))
        case ReadMarker(transactional_id):
            # The group has the name of the id, so only a transaction of this id can make the reader wait.
            found = await read_offset(admin, transactional_id, owner=transactional_id)
            return -1 if found is None else found.offset
        case EndDecided(entry):
            return await _end(admin, entry)
