"""Defines negative controls: configurations that promise less, under faults that exploit it.

A kit that acquits these controls would acquit any run. So every campaign runs them beside its seeds, and fails unless
the history of the clients convicts each one; the rules that are judged after each step do not count here. The settings
are those of well-known losses: acknowledgement by the leader alone, election of replicas that are not in sync (2013),
retries without idempotence, readers that do not ask for committed data, a pipe that commits its offsets outside of the
transaction. Controls whose harness is no part of the distribution are plugged in (``outside_controls``), with rules of
their own; where such a harness is not at hand, its verdict says why.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.cluster.simulated import ClusterShape
from moldau_jepsen.faults.kinds import FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.options import Result, RunOptions
from moldau_jepsen.simulation.campaign.outside_controls import OUTSIDE_CONTROLS, OutsideControl
from moldau_jepsen.simulation.campaign.seed import kit_failed, run_seed
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.mutants.mutants import finder_of
from moldau_jepsen.workers import workers
from moldau_jepsen.workloads.members import MembersOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau_jepsen.workloads.pipe import PipeOptions

SEEDS_MAX = 12
FAULT_SECONDS = 9.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One negative control."""

    name: str
    text: str
    options: RunOptions
    convicted_by: tuple[str, ...]
    """Checkers of histories that may convict it; anything else is a defect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict:
    """The verdict of the kit on a control."""

    name: str
    text: str
    convicted: bool
    seeds: int
    """How many were run, the convicting one included."""
    convicted_by: str
    """The checker; empty if the control was acquitted."""
    detail: str
    """The finding that convicted it and its seed, or the failure of the kit."""
    skipped: str = ""
    """Why it was not run; empty if it was. Only an outside control may be skipped, and it is not convicted then."""

    def to_json(self) -> dict[str, object]:
        """Returns the verdict as JSON values."""
        return dataclasses.asdict(self)


def _plan(*faults: tuple[FaultKind, float, float]) -> tuple[PlannedFault, ...]:
    return tuple(
        PlannedFault(kind=kind, begin=begin, end=end, number=number)
        for number, (kind, begin, end) in enumerate(sorted(faults, key=lambda fault: fault[1]))
    )


_SOON_FENCED = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "300"}


def _options(
    faults: tuple[PlannedFault, ...],
    *,
    producer: Mapping[str, object] | None = None,
    consumer: Mapping[str, object] | None = None,
    settings: Mapping[str, str] | None = None,
    transactions: bool = False,
    pipe: PipeOptions | None = None,
) -> RunOptions:
    plain = RunOptions()
    workload = replace(
        plain.workload,
        producer=producer or {},
        consumer={**plain.workload.consumer, **(consumer or {})},
        crash_every_s=0.0,
    )
    return replace(
        plain,
        shape=ClusterShape(settings={**_SOON_FENCED, **(settings or {})}),
        workload=workload,
        faults=faults,
        fault_seconds=FAULT_SECONDS,
        fault_scope=FaultScope.BROKERS,
        transactions=transactions,
        pipe=pipe is not None,
        pipe_options=pipe if pipe is not None else plain.pipe_options,
        by_history=True,
    )


_LEADERS_DIE = _plan(
    *((FaultKind.SLOW, begin, 8.5) for begin in (0.3, 0.4, 0.5, 0.6)),
    *((FaultKind.KILL_LEADER, begin, begin + 0.9) for begin in (1.0, 2.5, 4.0, 5.5, 7.0)),
)

_LAST_IN_SYNC_DIES = _plan(
    *((FaultKind.KILL, begin, 3.4) for begin in (0.5, 0.6, 0.7)),
    (FaultKind.KILL_LEADER, 3.3, 5.0),
    *((FaultKind.KILL, begin, 8.0) for begin in (5.2, 5.3, 5.4)),
    (FaultKind.KILL_LEADER, 7.9, 8.9),
)
"""Brokers fall out of the in-sync set, the last leader dies, and they are back before it is."""

_CONNECTIONS_DIE = _plan(*((FaultKind.RESET, begin, 8.5) for begin in (0.5, 0.7, 0.9)), (FaultKind.SLOW, 1.0, 8.0))

CONTROLS: dict[str, Control] = {
    control.name: control
    for control in (
        Control(
            name="acks-1",
            text="records acknowledged by the leader alone are lost with it",
            options=_options(_LEADERS_DIE, producer={"acks": "1", "enable.idempotence": False}),
            convicted_by=("lost-write", "unseen", "inconsistent-offsets"),
        ),
        Control(
            name="unclean-election",
            text="a replica that is not in sync leads, and what it lacks is lost",
            options=_options(
                _LAST_IN_SYNC_DIES,
                settings={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
            ),
            convicted_by=("lost-write", "unseen", "inconsistent-offsets"),
        ),
        Control(
            name="no-idempotence",
            text="retries write records twice",
            options=_options(
                _CONNECTIONS_DIE, producer={"enable.idempotence": False, "max.in.flight.requests.per.connection": 5}
            ),
            convicted_by=("duplicate", "nonmonotonic-send", "int-nonmonotonic-send"),
        ),
        Control(
            name="read-uncommitted",
            text="readers see records of transactions that were aborted",
            options=_options((), consumer={"isolation.level": "read_uncommitted"}, transactions=True),
            convicted_by=("G1a", "torn-transaction"),
        ),
        Control(
            name="pipe-offsets-outside",
            text="a pipe commits its offsets outside of its transactions, and repeats records",
            options=_options(
                (),
                pipe=replace(RunOptions().pipe_options, offsets_in_transaction=False, crash_every_s=3.0),
            ),
            convicted_by=("pipe-duplicate", "pipe-disorder"),
        ),
        Control(
            name="members-begin-at-the-end",
            text="members of a group skip what was sent before they joined",
            options=replace(
                _options(()),
                members=True,
                members_options=MembersOptions(reset="latest", crash_every_s=2.0, sends_per_second=40.0),
            ),
            convicted_by=("group-skip",),
        ),
    )
}


def control_names() -> tuple[str, ...]:
    """Returns the names of all controls of a campaign, outside controls last."""
    return (*CONTROLS, *OUTSIDE_CONTROLS)


def run_control(control: Control, seeds: Iterable[int]) -> tuple[Result | None, int]:
    """Runs seeds until one convicts; returns its result (None if none does) and how many were run.

    An exception out of a run is a defect of the kit: it ends the trial with a result that has no verdict.
    """
    count = 0
    for seed in seeds:
        count += 1
        try:
            result = run_seed(seed, control.options)
        except Exception as error:  # noqa: BLE001 - the campaign reports it; the other controls are judged
            return kit_failed(seed, error), count
        if _convicting(control, result) is not None:
            return result, count
    return None, count


def _convicting(control: Control, result: Result) -> str | None:
    found = (violation for violation in result.violations if finder_of(violation) in control.convicted_by)
    return next(found, None)


def judge_control(name: str, *, seeds_max: int | None = None) -> ControlVerdict:
    """Runs seeds of one control until one convicts; ``seeds_max`` defaults to what the control is given.

    Raises:
        KeyError: A name is unknown.
    """
    if name in OUTSIDE_CONTROLS:
        outside = OUTSIDE_CONTROLS[name]
        return _judge_outside(outside, range(1, 1 + (seeds_max or outside.seeds_max)))
    control = CONTROLS[name]
    result, count = run_control(control, range(1, 1 + (seeds_max or SEEDS_MAX)))
    violation = _convicting(control, result) if result is not None else None
    shown = violation if violation is not None or result is None else result.violations[0]
    return ControlVerdict(
        name=control.name,
        text=control.text,
        convicted=violation is not None,
        seeds=count,
        convicted_by=finder_of(violation) if violation is not None else "",
        detail=f"seed {result.seed}: {shown}" if result is not None else "",
    )


def _judge_outside(control: OutsideControl, seeds: Iterable[int]) -> ControlVerdict:
    verdict = ControlVerdict(
        name=control.name,
        text=control.text,
        convicted=False,
        seeds=0,
        convicted_by="",
        detail="",
        skipped=control.missing(),
    )
    if verdict.skipped:
        return verdict
    count = 0
    try:
        convict = control.harness()
        for seed in seeds:
            count += 1
            found = convict(seed)
            if found is not None and found[0] in control.convicted_by:
                return replace(
                    verdict, convicted=True, seeds=count, convicted_by=found[0], detail=f"seed {seed}: {found[1]}"
                )
    except Exception as error:  # noqa: BLE001 - the campaign reports it; the other controls are judged
        return replace(verdict, seeds=count, detail=kit_failed(count, error).violations[0])
    return replace(verdict, seeds=count)


def run_controls(
    names: Iterable[str] | None = None,
    *,
    seeds_max: int | None = None,
    processes: int | None = None,
) -> Iterator[ControlVerdict]:
    """Judges controls over the cores, one per task; yields verdicts as they come.

    A campaign fails unless all that were not skipped convict.

    Raises:
        KeyError: A name is unknown.
    """
    known = control_names()
    chosen = list(known if names is None else names)
    for name in chosen:
        if name not in known:
            raise KeyError(name)
    with workers(processes, tasks=len(chosen)) as pool:
        running = {pool.submit(judge_control, name, seeds_max=seeds_max): name for name in chosen}
        for future in concurrent.futures.as_completed(running):
            try:
                verdict = future.result()
            except concurrent.futures.BrokenExecutor as error:
                verdict = _not_judged(running[future], error)
            yield verdict


def _not_judged(name: str, error: Exception) -> ControlVerdict:
    """Returns the verdict of a trial whose worker process died: nothing was found."""
    control = OUTSIDE_CONTROLS.get(name) or CONTROLS[name]
    detail = kit_failed(0, error).violations[0]
    return ControlVerdict(name=name, text=control.text, convicted=False, seeds=0, convicted_by="", detail=detail)
