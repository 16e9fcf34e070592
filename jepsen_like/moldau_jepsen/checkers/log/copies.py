"""Checks that one topic holds each row of another exactly once, as a pipeline with that promise copies them.

The copies name the partition and the offset of the row that they were made from, so that the checker needs no order
between partitions. Both topics are read from their beginnings to their ends by readers of committed data, after the
pipeline has come to the end of its source; where either did not happen, no row counts as missing. Rows of one partition
of the source with equal keys stay in order within each partition of the target; for other rows a sink promises no
order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.reach import Reaches
from moldau_jepsen.history import TopicPartition

if TYPE_CHECKING:
    from moldau_jepsen.checkers.anomalies import CheckOptions, Verdict


class SourceRow(NamedTuple):
    """A row of the source."""

    partition: int
    offset: int
    key: str
    """The key, in any form that copies have too; the pipeline must not change it."""
    value: str
    """Likewise."""


class CopiedRow(NamedTuple):
    """A row of the target."""

    partition: int
    offset: int
    source_partition: int
    """-1 for a row that names no row of the source."""
    source_offset: int
    key: str
    value: str


class Copies(NamedTuple):
    """The content of the two topics at the end; an empty ``target`` means that no pipeline ran."""

    source: str = ""
    target: str = ""
    rows: tuple[SourceRow, ...] = ()
    copies: tuple[CopiedRow, ...] = ()
    """In the order in which each partition was read."""
    is_whole: bool = True
    """Whether the pipeline had come to the end of its source, and both topics were read to their ends."""


def with_copies(verdict: Verdict, copies: Copies, options: CheckOptions) -> Verdict:
    """Returns the verdict of a history, with the findings of ``check_copies`` added.

    A row without a copy is a finding only if the run came to its end (``CheckOptions.final_phase``) and ``copies`` are
    whole, and a copy of an absent row only if they are whole.
    """
    if not copies.target:
        return verdict
    findings = Findings(options)
    check_copies(copies, findings)
    counts = dict(verdict.counts)
    for kind, count in findings.counts.items():
        counts[kind] = counts.get(kind, 0) + count
    return replace(
        verdict,
        valid=verdict.valid and not findings.forbidden,
        counts=counts,
        anomalies=(*verdict.anomalies, *findings.kept),
    )


def check_copies(copies: Copies, findings: Findings) -> None:
    """Adds a finding for each row without a copy, with several, with another content, out of order, or unknown."""
    kept_rows, kept_copies = _without_impossible(copies, findings)
    rows = {(row.partition, row.offset): (row.key, row.value) for row in kept_rows}
    places: dict[tuple[int, int], list[str]] = {}
    last: dict[tuple[int, int, str], int] = {}
    for copy in kept_copies:
        partition = TopicPartition(copies.target, copy.partition)
        place = f"{copies.target}-{copy.partition} offset {copy.offset}"
        name = (copy.source_partition, copy.source_offset)
        made_from = f"{copies.source}-{name[0]} offset {name[1]}"
        content = (copy.key, copy.value)
        if name not in rows and name[0] >= 0 and not copies.is_whole:
            continue  # The source may not have been read so far.
        if name not in rows or rows[name] != content:
            there = f"holds {rows[name]}" if name in rows else "holds no row"
            findings.add(
                AnomalyKind.PIPE_UNKNOWN,
                f"{place} holds {content} made from {made_from}, which {there}",
                partition=partition,
                offsets=(copy.offset,),
            )
            continue
        stream = (copy.source_partition, copy.partition, copy.key)
        if copy.source_offset < last.get(stream, -1):
            findings.add(
                AnomalyKind.PIPE_DISORDER,
                f"{place} was made from {made_from}, and follows a copy of offset {last[stream]}",
                partition=partition,
                offsets=(copy.offset,),
            )
        last[stream] = max(copy.source_offset, last.get(stream, -1))
        places.setdefault(name, []).append(place)
    for (number, offset), content in rows.items():
        found = places.get((number, offset), [])
        if len(found) == 1 or (not found and not (findings.options.final_phase and copies.is_whole)):
            continue
        kind = AnomalyKind.PIPE_DUPLICATE if found else AnomalyKind.PIPE_LOST
        where = f"has {len(found)} copies, at {', '.join(found)}" if found else "has no copy"
        findings.add(
            kind,
            f"{copies.source}-{number} offset {offset} {content} {where}",
            partition=TopicPartition(copies.source, number),
            offsets=(offset,),
        )


def _without_impossible(copies: Copies, findings: Findings) -> tuple[list[SourceRow], list[CopiedRow]]:
    """Adds a finding for each row at an offset that no log has; returns the other rows."""
    reaches: Reaches[TopicPartition] = Reaches(findings.options.offset_gap_max)

    def is_possible(topic: str, partition: int, offset: int) -> bool:
        place = TopicPartition(topic, partition)
        if why := reaches.refusal(place, offset):
            findings.add(
                AnomalyKind.IMPOSSIBLE_OFFSET,
                f"{topic}-{partition} was read with a row at offset {offset}, {why}",
                partition=place,
                offsets=(offset,),
            )
        return not why

    rows = [row for row in copies.rows if is_possible(copies.source, row.partition, row.offset)]
    return rows, [row for row in copies.copies if is_possible(copies.target, row.partition, row.offset)]
