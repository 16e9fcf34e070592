"""Reads and writes the folder of a chaos run: its record and its verdict.

``history`` (operations, msgpack and lz4) and ``run.json`` (settings, guarantees, faults, samples) are the record.
``judge`` makes ``verdict.json`` and ``report.html`` from it, at the end of the run or at any later time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent
from moldau_jepsen.chaos.observe import observed
from moldau_jepsen.chaos.observe.observed import Observed
from moldau_jepsen.chaos.observe.reached import Reached, reached_hint
from moldau_jepsen.checkers import CheckOptions, RegisterOperation, Verdict, check_history, check_register
from moldau_jepsen.checkers.anomalies import Bank
from moldau_jepsen.checkers.log.copies import CopiedRow, Copies, SourceRow, with_copies
from moldau_jepsen.checkers.log.topics import UNKNOWN, TopicRead, TopicsMade, TopicWrite, check_topics
from moldau_jepsen.history import HistoryFile, Operation
from moldau_jepsen.reports.chaos import ChaosReport, ClusterSample, chaos_page
from moldau_jepsen.reports.consumption import Consumption, GroupFigures
from moldau_jepsen.reports.controls import ControlRow, acquitted_text, joined
from moldau_jepsen.reports.load import Latencies, series_of
from moldau_jepsen.reports.page import Origin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from moldau_jepsen.reports.load import Series

HISTORY = "history"
RUN = "run.json"
VERDICT = "verdict.json"
REPORT = "report.html"
CONTROLS = "controls"
"""Where a campaign keeps its negative controls, each in a folder of its own."""
FORMER_FIELDS = {"struck": "took_effect"}
"""Names of fields of ``FaultEvent`` in runs that earlier releases recorded."""
FOREVER = float("inf")
TOPICS_SHOWN_MAX = 20
REGISTER_STATES_MAX = 300_000
"""A state of a long run takes some two kilobytes; where there is an order, few more states than operations are met."""


UNKNOWN_ORIGIN = Origin(date="date not recorded", version="", machine="", command="")
"""Of runs of earlier versions."""


class RunFolderError(Exception):
    """The directory is not the folder of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The record of a run besides its history."""

    duration_s: float
    settings: Mapping[str, str]
    promised: CheckOptions
    faults: tuple[FaultEvent, ...]
    samples: tuple[ClusterSample, ...]
    deaths: tuple[str, ...] = ()
    """Nodes that ended without a fault, nodes that did not come back, and a register that is stuck."""
    register: tuple[RegisterOperation, ...] = ()
    """The observations of the register's clients."""
    topics: TopicsMade = field(default_factory=TopicsMade)
    """The observations of the client that deletes topics and makes them again."""
    copies: Copies = field(default_factory=Copies)
    """The content of the topics of Spark's query at the end."""
    control: ControlFacts | None = None
    """Set for a negative control."""
    observed: Observed = field(default_factory=Observed)
    history_bytes: int | None = None
    """Length of the history when the run had ended; None where that was not recorded."""
    origin: Origin = UNKNOWN_ORIGIN
    """When, by which version and command, and where it was run."""


class ControlFacts(NamedTuple):
    """The role of a run as a negative control."""

    name: str
    text: str
    wanted: tuple[str, ...]
    """Anomalies that convict it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosResult:
    """The result of a run."""

    valid: bool
    """The history has no anomaly that is not allowed, no node has ended by itself, and each negative control that was
    run is convicted."""
    verdict: Verdict
    report: Path
    faults: tuple[FaultEvent, ...]
    """Includes faults that took no effect."""
    deaths: tuple[str, ...]
    unavailable_s: float
    document: Mapping[str, object]
    """The content of ``verdict.json``."""
    content: ChaosReport
    """The content of ``report.html``."""
    control: ControlRow | None = None
    """Set for a negative control: its verdict, beside which ``valid`` means nothing."""
    controls: tuple[ControlRow, ...] = ()
    """The negative controls of this run."""


def write_facts(directory: Path, facts: RunFacts) -> None:
    """Writes ``run.json``."""
    document = {
        "duration_s": facts.duration_s,
        "settings": dict(facts.settings),
        "promised": asdict(facts.promised),
        "faults": [asdict(fault) for fault in facts.faults],
        "samples": [asdict(sample) for sample in facts.samples],
        "deaths": list(facts.deaths),
        "register": [
            [one.write, one.value, one.begun_ms, None if one.ended_ms == FOREVER else one.ended_ms]
            for one in facts.register
        ],
        "topic_writes": facts.topics.writes,
        "topic_reads": facts.topics.reads,
        "copies": facts.copies,
        "control": facts.control,
        "observed": observed.to_json(facts.observed),
        "history_bytes": facts.history_bytes,
        "origin": facts.origin.to_json(),
    }
    (directory / RUN).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_facts(directory: Path) -> RunFacts:
    """Reads ``run.json``.

    Raises:
        RunFolderError: The file is missing or damaged.
    """
    path = directory / RUN
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return RunFacts(
            duration_s=float(document["duration_s"]),
            settings=dict(document["settings"]),
            promised=_promised(document["promised"]),
            faults=tuple(map(_fault, document["faults"])),
            samples=tuple(ClusterSample(**sample) for sample in document["samples"]),
            deaths=tuple(document.get("deaths", ())),
            register=tuple(
                RegisterOperation(write=write, value=value, begun_ms=begun, ended_ms=FOREVER if end is None else end)
                for write, value, begun, end in document.get("register", ())
            ),
            topics=_topics_made(document),
            copies=_copies(document.get("copies")),
            control=_control(document.get("control")),
            observed=observed.from_json(document.get("observed")),
            history_bytes=document.get("history_bytes"),
            origin=Origin(**document["origin"]) if "origin" in document else UNKNOWN_ORIGIN,
        )
    except FileNotFoundError:
        raise RunFolderError(f"no chaos run in {directory} ({RUN} is missing)") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged: {type(error).__name__} {error}") from error


def _fault(document: Mapping[str, Any]) -> FaultEvent:
    named = {FORMER_FIELDS.get(name, name): value for name, value in document.items()}
    return FaultEvent(**{**named, "nodes": tuple(named["nodes"])})


def _promised(document: Mapping[str, Any]) -> CheckOptions:
    """JSON knows no tuples."""
    pipes = tuple((source, target) for source, target in document.get("pipes", ()))
    banks = tuple(Bank(tuple(topics), *rest) for topics, *rest in document.get("banks", ()))
    return CheckOptions(**{**document, "pipes": pipes, "banks": banks})


def _topics_made(document: Mapping[str, Any]) -> TopicsMade:
    writes = tuple(TopicWrite(*write) for write in document.get("topic_writes", ()))
    reads = tuple(
        TopicRead(topic_id, partition, tuple((offset, value) for offset, value in records), end, count)
        for topic_id, partition, records, end, count in document.get("topic_reads", ())
    )
    return TopicsMade(writes, reads)


def _copies(document: Sequence[Any] | None) -> Copies:
    if document is None:
        return Copies()
    source, target, rows, copies, *later = document  # runs of earlier versions end here
    return Copies(
        source, target, tuple(SourceRow(*row) for row in rows), tuple(CopiedRow(*row) for row in copies), *later
    )


def _control(document: Sequence[Any] | None) -> ControlFacts | None:
    if document is None:
        return None
    name, text, wanted = document
    return ControlFacts(name, text, tuple(wanted))


Check = Callable[[HistoryFile, CheckOptions], Verdict]
"""``check_history``, or another way to the same verdict."""


def judge(directory: Path, check: Check = check_history, judged: Origin | None = None) -> ChaosResult:
    """Judges the recorded history and the negative controls of the run, and returns the verdict.

    It writes ``verdict.json`` and ``report.html`` of each. ``judged`` is set where the judgement comes later than the
    run.

    Raises:
        RunFolderError: ``run.json`` is missing or damaged, or the history is shorter than recorded.
        HistoryError: The history has no valid beginning or is damaged.
        OSError: A file cannot be read or written.
    """
    facts = read_facts(directory)
    history = HistoryFile(directory / HISTORY)
    _refuse_another_length(history.path, facts.history_bytes)
    verdict = with_copies(check(history, facts.promised), facts.copies, facts.promised)
    deaths = list(facts.deaths)
    register = check_register(facts.register, states_max=REGISTER_STATES_MAX)
    if register.linearizable is None:
        deaths.append(f"whether the metadata is linearizable was not found out: {register.text}")
    elif not register.linearizable:
        deaths.append(f"the metadata is not linearizable: {register.text}")
    wrong = check_topics(*facts.topics)
    deaths += [f"topic made again: {text}" for text in wrong[:TOPICS_SHOWN_MAX]]
    reached, lag = Reached(), Latencies()
    consumption = Consumption(lag)
    series = series_of(consumption.passing(reached.passing(history)), facts.duration_s)
    reads = GroupFigures(lag_ms=lag.summary(), lags=lag.total, groups=consumption.groups(), unread=consumption.unread())
    seen = facts.observed
    messages = seen.message_rows()
    machines = reached.machines(seen.partitions, has_looked=bool(seen.partitions))
    named = {index for anomaly in verdict.anomalies for index in anomaly.operations}
    operations: dict[int, Operation] = {}
    if named:
        operations = {operation.index: operation for operation in history if operation.index in named}
    report = ChaosReport(
        title="Moldau chaos run",
        origin=facts.origin,
        judged=judged,
        verdict=verdict,
        series=series,
        faults=facts.faults,
        samples=facts.samples,
        duration_s=facts.duration_s,
        settings=facts.settings,
        reads=reads,
        operations=operations,
        deaths=deaths,
        partitions=seen.partitions,
        active=reached.active,
        messages=messages,
        messages_hint=seen.hint,
        messages_missing=seen.messages_missing,
        machines=machines,
        machines_hint=reached_hint(has_looked=bool(seen.partitions)),
    )
    control = None
    if facts.control is not None:
        found = tuple(sorted((kind.value, count) for kind, count in verdict.counts.items()))
        control = ControlRow(*facts.control, found)
    document = {
        **verdict_document(verdict, facts, deaths, series, reads),
        "coverage": {
            "messages": [asdict(row) for row in messages if row.requests],
            "messages_missing": seen.messages_missing,
            "transitions": [asdict(machine) for machine in machines],
        },
    }
    result = ChaosResult(
        valid=verdict.valid and not deaths,
        verdict=verdict,
        report=directory / REPORT,
        faults=facts.faults,
        deaths=tuple(deaths),
        unavailable_s=series.unavailable_s,
        document=document,
        content=replace(report, control=control),
        control=control,
    )
    run = sorted(path.parent for path in (directory / CONTROLS).glob(f"*/{RUN}"))
    return conclude(directory, result, [judge(path, check, judged) for path in run])


def _refuse_another_length(path: Path, wanted: int | None) -> None:
    """A truncated history would pass: a checker finds nothing wrong with a cluster without operations."""
    size = path.stat().st_size
    if wanted is not None and size != wanted:
        raise RunFolderError(f"{path} has {size:,} bytes, and had {wanted:,} when the run had ended: it is damaged")


def conclude(directory: Path, result: ChaosResult, controls: Sequence[ChaosResult]) -> ChaosResult:
    """Writes ``verdict.json`` and ``report.html`` of a judged run, with the verdicts of its negative controls.

    The controls are judged already; their folders are in ``controls``. The last of several runs of one control counts,
    because a control is run again only if it was acquitted.

    Raises:
        OSError: A file cannot be written.
    """
    rows = joined(
        [
            one.control._replace(report=one.report.relative_to(directory).as_posix())
            for one in controls
            if one.control is not None
        ]
    )
    valid = result.valid and not acquitted_text(rows)
    document = {
        **result.document,
        "valid": valid,
        "control": None if result.control is None else _row_document(result.control),
        "controls": [_row_document(row) for row in rows],
    }
    content = replace(result.content, controls=rows)
    (directory / REPORT).write_text(chaos_page(content), encoding="utf-8")
    (directory / VERDICT).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return replace(result, valid=valid, document=document, content=content, controls=rows)


def _row_document(row: ControlRow) -> dict[str, object]:
    return {
        "name": row.name,
        "convicted": row.convicted,
        "convicted_by": list(row.convicted_by),
        "found": dict(row.found),
        "runs": row.runs,
        "report": row.report,
    }


def verdict_document(
    verdict: Verdict, facts: RunFacts, deaths: Sequence[str], series: Series, reads: GroupFigures
) -> dict[str, object]:
    """Returns the verdict in the form that programs read."""
    return {
        "valid": verdict.valid and not deaths,
        "deaths": list(deaths),
        "counts": {kind.value: count for kind, count in verdict.counts.items()},
        "anomalies": [
            {
                "kind": anomaly.kind.value,
                "allowed": anomaly.allowed,
                "text": anomaly.text,
                "partition": str(anomaly.partition) if anomaly.partition is not None else None,
                "operations": list(anomaly.operations),
            }
            for anomaly in verdict.anomalies
        ],
        "figures": {
            **asdict(verdict.figures),
            "duration_s": facts.duration_s,
            "faults": sum(fault.took_effect for fault in facts.faults),
            "faults_planned": len(facts.faults),
            "register_operations": len(facts.register),
            "topics_made": len({write.topic_id for write in facts.topics.writes}),
            "topic_writes": sum(write.offset != UNKNOWN for write in facts.topics.writes),
            "topic_reads": len(facts.topics.reads),
            "rows_copied": len(facts.copies.copies),
            "unavailable_s": round(series.unavailable_s, 3),
            "latency_ms": {name: round(value, 3) for name, value in series.latency_ms.items()},
            "realtime_lag_ms": {name: round(value, 3) for name, value in reads.lag_ms.items()},
            "realtime_lag_records": reads.lags,
            "consumed": [asdict(group) for group in reads.groups],
            "acknowledged_unread_by_groups": reads.unread,
        },
    }
