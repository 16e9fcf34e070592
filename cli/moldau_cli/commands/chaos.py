"""``moldau chaos``: injects faults into real processes and judges what clients saw."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from moldau_cli import output
from moldau_cli.client.settings import command_config_file, connection_config, own_config
from moldau_cli.errors import AnsweredError, CommandError, UsageError
from moldau_cli.operations.local import launcher_errors
from moldau_cli.signals import interrupted_by_sigterm
from moldau_cli.words import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_jepsen.chaos.folder import ChaosResult
    from moldau_jepsen.chaos.options import Network
    from moldau_jepsen.chaos.run import Progress
    from moldau_jepsen.checkers import CheckOptions, Verdict
    from moldau_jepsen.faults.kinds import FaultKind
    from moldau_jepsen.history import HistoryFile

commands = typer.Typer(help="Break a cluster under load and judge what its clients saw.", rich_markup_mode=None)

WORKLOADS = ("queue", "transactions", "pipe", "bank", "register", "share", "streams", "topics", "spark", "all")
NETWORKS = ("proxies", "namespaces")
Pairs = list[str] | None


@commands.command()
def run(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Empty folder for history and report. Default: moldau-chaos-SEED.")
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            help="What clients do: queue, transactions, pipe, bank, register, share, streams, topics, all of these, or "
            "spark."
        ),
    ] = "queue",
    faults: Annotated[str, typer.Option(help="Comma-separated kinds, all, or none.")] = "all",
    network: Annotated[
        str,
        typer.Option(help="How links are controlled: proxies (before every node), or network namespaces (as root)."),
    ] = "proxies",
    duration: Annotated[float, typer.Option(min=1, help="Seconds of load under faults.")] = 60.0,
    seed: Annotated[int | None, typer.Option(help="Seed of faults and clients. Default: the time.")] = None,
    window: Annotated[float, typer.Option(min=1, help="Seconds between draws of new faults.")] = 30.0,
    churn: Annotated[
        bool,
        typer.Option("--churn", help="Reassign, elect and change voters continuously, not only now and then."),
    ] = False,
    brokers: Annotated[int, typer.Option(min=1, help="Brokers of the cluster.")] = 3,
    controllers: Annotated[int, typer.Option(min=1, help="Controllers of the fresh cluster.")] = 3,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic.")] = 4,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT,...", help="A running cluster instead of a fresh one."),
    ] = None,
    node: Annotated[
        Pairs,
        typer.Option(
            "--node",
            metavar="ID=COMMAND",
            help="A node behind --bootstrap that the run starts by this command, kills, pauses and restarts.",
        ),
    ] = None,
    config: Annotated[Pairs, typer.Option("--config", metavar="KEY=VALUE", help="Configuration of the topic.")] = None,
    settings: Annotated[
        Pairs, typer.Option("--set", metavar="KEY=VALUE", help="Configuration key for every node of the fresh cluster.")
    ] = None,
    producer: Annotated[
        Pairs, typer.Option("--producer", metavar="KEY=VALUE", help="Configuration of the producers.")
    ] = None,
    consumer: Annotated[
        Pairs, typer.Option("--consumer", metavar="KEY=VALUE", help="Configuration of the consumers.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option("--control", metavar="NAME", help="Run a negative control, which must be convicted, or all."),
    ] = None,
    controls: Annotated[
        bool, typer.Option(help="Also run negative controls, which must be convicted: one, or all from 600 s on.")
    ] = True,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep the nodes' data and logs, and topics elsewhere.")
    ] = False,
) -> None:
    """Run clients against a cluster under faults, and negative controls.

    Exit code 1 if an anomaly was found or a control was not convicted.
    """
    from moldau_jepsen.chaos.campaign import choose_controls, run_campaign
    from moldau_jepsen.chaos.clients import ClientOptions, Workload
    from moldau_jepsen.chaos.foreign import foreign_kinds
    from moldau_jepsen.chaos.nemesis.schedule import PROXY_KINDS
    from moldau_jepsen.chaos.options import ChaosOptions, Network, refuse_impossible
    from moldau_jepsen.chaos.outside import parse_node
    from moldau_jepsen.faults.kinds import CHAOS_KINDS
    from moldau_jepsen.workloads.queue import QueueOptions

    if network not in NETWORKS:
        raise UsageError(f"unknown network {network!r}; known: {', '.join(NETWORKS)}")
    if workload not in WORKLOADS:
        raise UsageError(f"unknown workload {workload!r}; known: {', '.join(WORKLOADS)}")
    chosen = int(time.time()) if seed is None else seed
    target = directory if directory is not None else Path(f"moldau-chaos-{chosen}")
    if control is not None:
        _refuse_beside_control(context)
        _run_controls(
            control, target, chosen, Network(network), keep_data=keep_data, bootstrap=bootstrap, brokers=brokers
        )
        return
    everything: tuple[FaultKind, ...] = CHAOS_KINDS if network == Network.NAMESPACES.value else PROXY_KINDS
    if bootstrap is not None:
        everything = foreign_kinds(processes=bool(node))
    with run_errors():
        options = ChaosOptions(
            directory=target,
            duration_s=duration,
            seed=chosen,
            kinds=parse_kinds(faults, everything),
            network=Network(network),
            window_s=window,
            churn=churn,
            brokers=brokers,
            controllers=controllers,
            bootstrap=bootstrap,
            nodes=[parse_node(text) for text in node or []],
            command_config=command_config_file(),
            topic_configs=parse_settings(config or [], "--config"),
            settings=parse_settings(settings or [], "--set"),
            clients=ClientOptions(
                workload=Workload(workload),
                connection=connection_config(),
                queue=QueueOptions(
                    partitions=partitions,
                    producer={**own_config("producer"), **parse_settings(producer or [], "--producer")},
                    consumer={**own_config("consumer"), **parse_settings(consumer or [], "--consumer")},
                ),
            ),
            keep_data=keep_data,
        )
        refuse_impossible(options)
        with interrupted_by_sigterm(), progress_bar(duration) as report:
            result = run_campaign(options, choose_controls(options) if controls else (), report)
    _answer(result)


OF_A_PLAN = ("workload", "faults", "duration", "window", "churn", "controllers", "partitions")
OF_CLIENTS_AND_NODES = ("node", "config", "settings", "producer", "consumer")
"""Parameters of ``run`` that a control sets itself."""


def _refuse_beside_control(context: typer.Context) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in OF_A_PLAN + OF_CLIENTS_AND_NODES and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--control has a script and settings of its own: leave out {parameter.opts[0]}")


def _run_controls(
    name: str, directory: Path, seed: int, network: Network, *, keep_data: bool, bootstrap: str | None, brokers: int
) -> None:
    """Runs one control, or each that can run against the cluster; exits with 1 if one is acquitted."""
    from moldau_jepsen.chaos.campaign import CONTROL_SECONDS, control_options
    from moldau_jepsen.chaos.clients import Workload
    from moldau_jepsen.chaos.controls import CONTROLS
    from moldau_jepsen.chaos.options import refuse_impossible
    from moldau_jepsen.chaos.run import run_chaos
    from moldau_jepsen.chaos.spark.workload import refusal as spark_refusal

    if name not in (*CONTROLS, "all"):
        raise UsageError(f"unknown control {name!r}; known: {', '.join(CONTROLS)}, or all")
    rows: list[dict[str, output.Json]] = []
    able = [control for control in CONTROLS.values() if bootstrap is None or control.clients_only]
    if (reason := spark_refusal()) is not None and name == "all":
        output.note(f"left out the controls with Spark: {reason}")
        able = [control for control in able if control.workload is not Workload.SPARK]
    for control in able if name == "all" else (CONTROLS[name],):
        place = directory / control.name if name == "all" else directory
        options = control_options(
            control,
            place,
            seed,
            network,
            keep_data=keep_data,
            bootstrap=bootstrap,
            brokers=brokers,
            connection=connection_config(),
            command_config=command_config_file(),
        )
        with run_errors():
            refuse_impossible(options)
            with interrupted_by_sigterm(), progress_bar(CONTROL_SECONDS) as report:
                result = run_chaos(options, report)
        row = result.control
        assert row is not None
        rows.append(
            {
                "control": row.name,
                "convicted": row.convicted,
                "found": row.found_text,
                "report": str(result.report),
            }
        )
    output.answer_rows("controls", ["control", "convicted", "found", "report"], rows)
    if missed := [str(row["control"]) for row in rows if not row["convicted"]]:
        raise AnsweredError(f"not convicted: {', '.join(missed)}")


@commands.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")],
    spark: Annotated[
        bool, typer.Option("--spark", help="Check the history as a Spark job, if it is too large for one process.")
    ] = False,
) -> None:
    """Judge a recorded run again, and rewrite its verdict and its page."""
    from moldau_jepsen.chaos.folder import judge
    from moldau_jepsen.checkers import check_history
    from moldau_jepsen.origin import origin

    with run_errors():
        result = judge(directory, _check_with_spark if spark else check_history, origin())
    _answer(result)


def _check_with_spark(history: HistoryFile, options: CheckOptions) -> Verdict:
    from moldau_jepsen.checkers.spark import check_history_with_spark
    from pyspark_moldau.session import local_session
    from pyspark_moldau.session.java import NoJavaError

    try:
        session = local_session("moldau-checkers")
    except (NoJavaError, ImportError) as error:
        raise CommandError(str(error)) from error
    try:
        return check_history_with_spark(session, history.path.absolute(), options)
    finally:
        session.stop()


def _answer(result: ChaosResult) -> None:
    verdict = result.verdict
    figures = verdict.figures
    wrong = sorted({anomaly.kind.value for anomaly in verdict.anomalies if not anomaly.allowed})
    effective = sum(fault.took_effect for fault in result.faults)
    sound = "no anomaly" if effective else "no anomaly, but no fault took effect"
    found = [f"ANOMALIES: {', '.join(wrong)}"] if not verdict.valid else ["FAILED"] if result.deaths else [sound]
    said = "; ".join([*found, *result.deaths])
    said += "".join(f"; control {row.name}: {row.verdict}" for row in result.controls)
    missed = len(result.faults) - effective
    more = f" ({missed} more of the plan had no effect)" if missed else ""
    text = (
        f"{said}; {figures.sends_acknowledged:,} writes acknowledged, {figures.sends_unknown:,} of unknown outcome, "
        f"{figures.records_polled:,} records read, {effective} faults{more}, "
        f"{result.unavailable_s:.1f} s without an acknowledged write\nreport: {result.report}"
    )
    document = cast("dict[str, output.Json]", dict(result.document))
    output.answer({**document, "report": str(result.report)}, text)
    if not result.valid:
        raise AnsweredError(said)


def parse_kinds(text: str, everything: tuple[FaultKind, ...]) -> tuple[FaultKind, ...]:
    """Parses ``--faults``; ``everything`` is the meaning of ``all``.

    Raises:
        UsageError: a kind is unknown.
    """
    from moldau_jepsen.faults.kinds import CHAOS_KINDS

    if text == "all":
        return everything
    if text == "none":
        return ()
    known = {kind.value: kind for kind in CHAOS_KINDS}
    kinds = []
    for word in text.split(","):
        kind = known.get(word.strip())
        if kind is None:
            raise UsageError(f"unknown fault {word.strip()!r}; known: {', '.join(known)}, or all, or none")
        kinds.append(kind)
    return tuple(dict.fromkeys(kinds))


@contextmanager
def run_errors() -> Iterator[None]:
    """Turns the kit's errors into the command line's."""
    from moldau.runtime.config import ConfigError
    from moldau_jepsen.chaos.folder import RunFolderError
    from moldau_jepsen.history import HistoryError
    from moldau_jepsen.workloads.operations import OperationFailedError

    try:
        with launcher_errors():
            yield
    except (RunFolderError, HistoryError, ConfigError) as error:
        raise UsageError(str(error)) from error
    except OperationFailedError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or 'the history of the run'}: {error.strerror or error}") from error


@contextmanager
def progress_bar(duration_s: float) -> Iterator[Callable[[Progress], None]]:
    """Shows the run on stderr while it lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:14}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, disable=output.wants_json()) as bar:
        task = bar.add_task("start", total=duration_s, figures="")

        def report(progress: Progress) -> None:
            figures = f"{progress.acknowledged:,} acknowledged, {progress.polled:,} read"
            done = min(progress.elapsed_s, duration_s)
            bar.update(task, description=progress.phase, completed=done, figures=figures)
            if progress.note:
                bar.console.print(progress.note, markup=False, highlight=False, soft_wrap=True)
            if progress.fault:
                bar.console.print(f"{progress.elapsed_s:8.1f} s  {progress.fault}", markup=False, highlight=False)

        yield report
