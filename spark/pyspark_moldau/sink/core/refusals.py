"""The errors with which the sink's protocol ends, their texts, and the checks that say nothing else. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark_moldau.sink.core.effects import Decision, Entry, Notes, Report


class ProtocolRefusedError(RuntimeError):
    """The protocol cannot continue without breaking its promise; the text says what to do."""


class TryAgainError(RuntimeError):
    """This attempt cannot continue; a replay of the batch can."""


def check_topic(topic: str | None, decision: Decision) -> None:
    """Checks that a batch which is decided already was decided for the topic of this write.

    Raises:
        ProtocolRefusedError: two jobs with the same name and version write to different topics.
    """
    if topic is not None and decision.topic is not None and topic != decision.topic:
        here, there = (f"topic {name}" if name else "the column topic" for name in (topic, decision.topic))
        raise ProtocolRefusedError(
            f"batch {decision.batch}: this txnAppId has written this txnVersion to {there} already, so nothing would "
            f"be written to {here}; give each of these writes a txnAppId of its own (an export: a name)"
        )


def is_done(batch: int, notes: Notes) -> bool:
    """Returns whether all rows of a batch are written, from what does not expire.

    Raises:
        ProtocolRefusedError: a later batch was begun.
    """
    last = max(notes.begun, notes.done)
    if last > batch:
        raise outdated(batch, last, "")
    return notes.done == batch


def expired(batch: int, notes: Notes) -> ProtocolRefusedError:
    """Returns the error of a batch whose commits were begun, and nothing says any more which of them are done."""
    return ProtocolRefusedError(
        f"batch {batch}: the query stopped while it committed this batch, and rested until the brokers had forgotten "
        "how far it was (offsets.retention.minutes): some of its rows may be in the topic, and would come twice. "
        "Compare the topic with the batch, and start with a new checkpoint behind it (a job: with the next "
        f"txnVersion); or delete the consumer group {notes.begun_group} to have the whole batch written again"
    )


def ended_early(decision: Decision, entry: Entry) -> str:
    """Returns why a batch is not decided one of whose transactions is not open any more."""
    return (
        f"batch {decision.batch}: the transaction of partition {decision.entries.index(entry)} was aborted before all "
        "tasks had written their rows, so none of the batch is visible. If writing takes longer than "
        "kafka.transaction.timeout.ms, raise it, and transaction.max.timeout.ms of the brokers, or write fewer rows at "
        "a time; or another run of the query has aborted it"
    )


def not_the_same(
    batch: int, number: int, dead: Entry, again: Entry | None, partitions: int, reports: Sequence[Report]
) -> str:
    """Returns why a replayed batch cannot replace rows that are lost."""
    rows = 0 if again is None else again.rows
    return (
        f"batch {batch}: {dead.rows} rows of partition {number} of {partitions} are missing, because their transaction "
        f"was aborted after the batch was decided, and the replay has {rows} other rows there, in {len(reports)} "
        "partitions; restart the query with the plan and the options it had, so that the replay has the same rows"
    )


def stale(batch: int, decision: Decision) -> ProtocolRefusedError:
    """Returns the error of a batch that is older than the last decision."""
    return outdated(batch, decision.batch, f" (by run {decision.run})")


def planned_again(batch: int, decision: Decision) -> ProtocolRefusedError:
    """Returns the error of a batch that is decided, but with other offsets."""
    rows = sum(entry.rows for entry in decision.entries if entry is not None)
    return ProtocolRefusedError(
        f"batch {batch} of this query is written already, with {rows} rows and other offsets: its checkpoint was set "
        "back, and what the batch has in addition now would be lost; start the query with a new checkpoint behind the "
        "rows that are written (startingOffsets)"
    )


def outdated(batch: int, last: int, run: str) -> ProtocolRefusedError:
    """Returns the error of a batch that is older than the last one that is known."""
    return ProtocolRefusedError(
        f"batch {batch}: batch {last} of this query is decided already{run}; another driver has taken over the query, "
        f"or its checkpoint was set back: start it with a new checkpoint. A job needs a txnVersion above {last}"
    )
