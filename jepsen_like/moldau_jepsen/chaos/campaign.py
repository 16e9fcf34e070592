"""A chaos run and its negative controls: a run that must fail belongs to every run that must pass.

The run comes first, then each control on a fresh cluster of its own, in a folder below that of the run. A cluster that
was started elsewhere is its own control where a control needs clients only, under names of its own. A control that
the checkers acquit fails the campaign, because checkers that acquit it prove nothing. A short run gets one control, in
turn by its seed; a longer one gets all of them. Real machines do not strike alike each time: a control in which nothing
went wrong is run again, twice at the most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_jepsen.chaos.clients import ClientOptions
from moldau_jepsen.chaos.controls import CONTROLS, Control
from moldau_jepsen.chaos.folder import CONTROLS as FOLDER
from moldau_jepsen.chaos.folder import ChaosResult, conclude
from moldau_jepsen.chaos.options import CONTROL_BROKERS, ChaosOptions, Network
from moldau_jepsen.chaos.run import Progress, run_chaos
from moldau_jepsen.workloads.operations import NO_KEYS
from moldau_jepsen.workloads.queue import QueueOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

ALL_FROM_S = 600.0
"""Runs of this length and longer get all controls: together they take some three minutes."""
CONTROL_SECONDS = 60.0
"""Scale of progress only: a control lasts as long as its script."""
RUNS_MAX = 3
"""Of one control, until one is convicted."""


def choose_controls(options: ChaosOptions) -> tuple[Control, ...]:
    """The controls that belong to a run; for a cluster that was started elsewhere those that need clients only."""
    known = list(CONTROLS.values())
    if options.bootstrap is not None:
        return tuple(control for control in known if control.clients_only)
    return tuple(known) if options.duration_s >= ALL_FROM_S else (known[options.seed % len(known)],)


def control_options(
    control: Control,
    directory: Path,
    seed: int,
    network: Network,
    *,
    keep_data: bool = False,
    bootstrap: str | None = None,
    brokers: int = CONTROL_BROKERS,
    connection: Mapping[str, str] = NO_KEYS,
    command_config: str = "",
) -> ChaosOptions:
    """The run of one control; ``brokers`` is the size of the cluster at ``bootstrap``, if there is one, and
    ``connection`` how it is reached.
    """
    queue = QueueOptions(producer=dict(control.producer), consumer=dict(control.consumer), crash_every_s=0)
    return ChaosOptions(
        directory=directory,
        duration_s=CONTROL_SECONDS,
        seed=seed,
        kinds=(),
        network=network,
        settings=control.settings,
        clients=ClientOptions(workload=control.workload, queue=queue, connection=connection),
        control=control,
        keep_data=keep_data,
        bootstrap=bootstrap,
        command_config=command_config,
        brokers=brokers if bootstrap is not None else CONTROL_BROKERS,
    )


def run_campaign(
    options: ChaosOptions,
    controls: Sequence[Control],
    tell: Callable[[Progress], None] = lambda progress: None,
) -> ChaosResult:
    """Runs it all; blocks for the whole time. ``tell`` hears of controls by the phase ``control NAME``.

    The run's own verdict and page are written before the first control begins.

    Raises:
        LauncherUsageError: the options contradict each other, or the directory is not empty.
        LauncherError: a node did not come up, or did not come back.
        OperationFailedError: a topic could not be created.
    """
    result = run_chaos(options, tell)
    judged = []
    for control in controls:

        def tell_control(progress: Progress, name: str = control.name) -> None:
            tell(replace(progress, phase=f"control {name}", fault="", note=""))

        for number in range(RUNS_MAX):
            # Folders are judged again in the order of their names.
            directory = options.directory / FOLDER / f"{control.name}{f'-{number + 1}' if number else ''}"
            chosen = control_options(
                control,
                directory,
                options.seed + number,
                options.network,
                keep_data=options.keep_data,
                bootstrap=options.bootstrap,
                brokers=options.brokers,
                connection=options.clients.connection,
                command_config=options.command_config,
            )
            judged.append(run_chaos(chosen, tell_control))
            last = judged[-1].control
            assert last is not None
            if last.convicted:
                break
    return conclude(options.directory, result, judged)
