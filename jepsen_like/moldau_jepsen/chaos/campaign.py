"""Runs a chaos run and its negative controls, which the checkers must convict.

The run comes first, then each control on its own fresh cluster, in a folder below that of the run. Controls that need
only clients also run on a cluster that was started elsewhere, with their own names. A control that the checkers acquit
fails the campaign, because such checkers prove nothing. A short run gets one control, which its seed chooses; a longer
run gets all of them. Faults on real machines do not always have the same effect: a control that is acquitted is run
again, at most twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_jepsen.chaos.clients import ClientOptions, Workload
from moldau_jepsen.chaos.controls import CONTROLS, Control
from moldau_jepsen.chaos.folder import CONTROLS as FOLDER
from moldau_jepsen.chaos.folder import ChaosResult, conclude
from moldau_jepsen.chaos.options import CONTROL_BROKERS, ChaosOptions, Network
from moldau_jepsen.chaos.run import Progress, run_chaos
from moldau_jepsen.chaos.spark.workload import SparkOptions
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
    """Returns the controls of a run; on a cluster that was started elsewhere only those that need only clients.

    The workload of Spark has a control of its own, and other workloads do without it, because it needs a Java.
    """
    is_spark = options.clients.workload is Workload.SPARK
    known = [control for control in CONTROLS.values() if (control.workload is Workload.SPARK) == is_spark]
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
    """Returns the options of a control's run.

    ``brokers`` is the size of the cluster at ``bootstrap``, if given, and ``connection`` has its connection keys.
    """
    queue = QueueOptions(producer=dict(control.producer), consumer=dict(control.consumer), crash_every_s=0)
    spark = SparkOptions(delivery_guarantee=control.delivery_guarantee)
    return ChaosOptions(
        directory=directory,
        duration_s=CONTROL_SECONDS,
        seed=seed,
        kinds=(),
        network=network,
        settings=control.settings,
        clients=ClientOptions(workload=control.workload, queue=queue, spark=spark, connection=connection),
        control=control,
        keep_data=keep_data,
        bootstrap=bootstrap,
        command_config=command_config,
        brokers=brokers if bootstrap is not None else CONTROL_BROKERS,
    )


def run_campaign(
    options: ChaosOptions,
    controls: Sequence[Control],
    report: Callable[[Progress], None] = lambda progress: None,
) -> ChaosResult:
    """Runs it all; blocks for the whole time. ``tell`` hears of controls by the phase ``control NAME``.

    The run's own verdict and page are written before the first control begins.

    Raises:
        LauncherUsageError: The options contradict each other, or the directory is not empty.
        LauncherError: A node did not start or restart.
        OperationFailedError: A topic could not be created.
    """
    result = run_chaos(options, report)
    judged = []
    for control in controls:

        def report_control(progress: Progress, name: str = control.name) -> None:
            report(replace(progress, phase=f"control {name}", fault="", note=""))

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
            judged.append(run_chaos(chosen, report_control))
            last = judged[-1].control
            assert last is not None
            if last.convicted:
                break
    return conclude(options.directory, result, judged)
