"""One seed is one run: a cluster, its clients, faults, healing, and the judgement; and many seeds over the cores.

A run has four phases. The cluster forms and the topic is made. Clients work while faults strike. Everything is healed,
and must come back to health within a bounded virtual time (liveness). At last every partition is read from its
beginning, and the history of all clients is checked. In all of them the observer judges every step. The first
violation ends the run.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import logging
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from trio.abc import Instrument

from moldau.runtime.exceptions import leaves
from moldau_broker.log.errors import LogStorageError
from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.simulation.cluster import ClusterNotReadyError, ClusterShape, SimulatedCluster
from moldau_jepsen.simulation.disk import CRASHED_TEXT
from moldau_jepsen.simulation.faults import FaultInjector, FaultKind, Struck, plan_faults
from moldau_jepsen.simulation.invariants import ClusterInvariants
from moldau_jepsen.simulation.network import NetworkProfile
from moldau_jepsen.simulation.observer import ClusterObserver
from moldau_jepsen.simulation.register import ConfigRegister
from moldau_jepsen.simulation.world import derive_random, run_world
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from moldau_jepsen.history import Operation
    from moldau_jepsen.simulation.faults import PlannedFault
    from moldau_jepsen.simulation.world import World

CLIENT_HOST = "client"
STEPS_AT_ONE_INSTANT_MAX = 100_000
LOG_LINES_MAX = 5_000
WATCH_SECONDS = 0.05
VIOLATIONS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run consists of. Times are virtual seconds."""

    shape: ClusterShape = field(default_factory=ClusterShape)
    workload: QueueOptions = field(
        default_factory=lambda: QueueOptions(
            partitions=3,
            senders=2,
            group_readers=2,
            sends_per_second=40.0,
            crash_every_s=10.0,
            consumer={"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500},
        )
    )
    transactions: bool | None = None
    """Whether a transactional client works beside the others; drawn if None."""
    fault_seconds: float = 15.0
    forming_seconds: float = 60.0
    healing_seconds: float = 90.0
    reading_seconds: float = 60.0
    kinds: tuple[FaultKind, ...] = tuple(FaultKind)
    faults: tuple[PlannedFault, ...] | None = None
    """Instead of the plan that the seed gives: for shrinking and for regressions."""
    synced: bool | None = None
    """Whether records are synced before they are acknowledged; drawn if None."""
    struck: Struck | None = None
    """Which nodes faults strike; drawn if None."""
    config_changes_per_second: float = 5.0
    """Changes of the topic's configuration, one after the other: they keep the quorum busy."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    check: CheckOptions = field(default_factory=CheckOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one run."""

    seed: int
    trace_hash: str
    violations: tuple[str, ...]
    """Empty for a clean run."""
    timeline: tuple[str, ...]
    """Faults, elections and warnings, one line each, and the last events before the end of a failed run."""
    virtual_seconds: float
    wall_seconds: float
    steps: int
    events: int
    faults: int
    acknowledged: int
    polled: int
    fault_kinds: tuple[str, ...] = ()
    operations: Mapping[str, int] = field(default_factory=dict)
    """Operations of the clients by kind and outcome."""

    @property
    def passed(self) -> bool:
        """Whether nothing was violated."""
        return not self.violations

    @property
    def replay_command(self) -> str:
        """What runs it again."""
        return f"moldau sim run --seed {self.seed}"

    def to_json(self) -> dict[str, object]:
        """Returns the result as JSON values."""
        return {**asdict(self), "passed": self.passed, "replay": self.replay_command}


class _StepGuard(Instrument):
    """Ends a run in which tasks go on without time moving: a busy loop that would never end."""

    def __init__(self) -> None:
        self._instant = -1.0
        self._steps = 0
        self._by_task: dict[trio.lowlevel.Task, int] = {}
        self.found: str | None = None
        self.on_found: Callable[[], None] | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        if now != self._instant:
            self._instant = now
            self._steps = 0
            self._by_task.clear()
        self._steps += 1
        if self._steps > STEPS_AT_ONE_INSTANT_MAX // 2:
            self._by_task[task] = self._by_task.get(task, 0) + 1
        if self._steps >= STEPS_AT_ONE_INSTANT_MAX and self.found is None:
            busiest = max(self._by_task, key=lambda one: self._by_task[one])
            frames = [f"{frame.f_code.co_qualname}:{line}" for frame, line in busiest.iter_await_frames()]
            self.found = f"busy loop at {now:.6f} s in {busiest.name}: {' < '.join(reversed(frames))}"
            if self.on_found is not None:
                self.on_found()


class _LogLines(logging.Handler):
    """Takes the nodes' log lines into the timeline; a failed request is a violation."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        self.failures: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        line = f"{trio.current_time():12.6f}  {record.levelname.lower():<12} {record.name} {text}"
        if len(self.lines) < LOG_LINES_MAX:
            self.lines.append(line)
        if text.startswith("request-failed"):
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, OSError) and CRASHED_TEXT in str(error):
                return  # the process died in the middle of the request
            self.failures.append(f"{text} {_where(error)}")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Takes all lines of Moldau while it lasts, and lets none through to other handlers."""
        logger = logging.getLogger("moldau")
        level, propagate = logger.level, logger.propagate
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate


def _where(error: BaseException | None) -> str:
    """Returns the place an exception came from."""
    if error is None:
        return ""
    error = next(leaves(error))
    trace = error.__traceback__
    place = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f"{Path(code.co_filename).name}:{trace.tb_lineno} {code.co_qualname}"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error} at {place}"


class _Run:
    """One run in its world."""

    def __init__(self, world: World, options: RunOptions, logs: _LogLines) -> None:
        self.world = world
        self.options = options
        draw = world.random("run")
        self.acks_all = str(options.workload.producer.get("acks", "all")) in ("all", "-1")
        self.synced = draw.random() < 0.6 if options.synced is None else options.synced
        settings = {**draw_settings(draw), **options.shape.settings}
        if self.synced:
            settings["log.flush.interval.messages"] = "1"
        shape = ClusterShape(controllers=options.shape.controllers, brokers=options.shape.brokers, settings=settings)
        self.cluster = SimulatedCluster(world, shape)
        self.judge = ClusterInvariants(trio.current_time)
        self.observer = ClusterObserver(self.cluster, self.judge)
        self.transactions = draw.random() < 0.5 if options.transactions is None else options.transactions
        struck = draw.choices(list(Struck), weights=(3, 1, 1))[0] if options.struck is None else options.struck
        self.injector = FaultInjector(self.cluster, [CLIENT_HOST], synced=self.synced, struck=struck)
        if options.faults is not None:
            self.plan: Sequence[PlannedFault] = options.faults
        else:
            self.plan = planned_faults(world.seed, options)
        self.guard = _StepGuard()
        self.logs = logs
        self.history: list[Operation] = []
        self.environment = world.node(CLIENT_HOST).environment
        self.register = ConfigRegister(self.cluster, self.environment, options.workload.topic)
        self.recorder = Recorder(self.environment.clock, self._record)
        self.violations: list[str] = []

    def _record(self, operation: Operation) -> None:
        self.history.append(operation)
        if self.acks_all and operation.kind is Kind.SEND and operation.status is Status.OK:
            for send in operation.sends:
                if send.offset is not None:
                    self.judge.acknowledged_at(send.partition.topic, send.partition.partition, send.offset)
        self.world.trace.event("operation", operation.process, operation.kind.value, operation.status.value)

    def collect(self) -> None:
        """Gathers what was found so far."""
        found = [str(violation) for violation in self.judge.violations]
        found += [f"failed request: {line}" for line in self.logs.failures]
        if self.guard.found is not None:
            found.append(self.guard.found)
        for name, failure in self.world.failures:
            node_id = int(name.rpartition("-")[2])
            of_disk = all(isinstance(error, OSError | LogStorageError) for error in leaves(failure))
            if not (of_disk and node_id in self.injector.disk_errors):
                found.append(f"node-failed: {name}: {_where(failure)}")
        self.violations = [*found, *(text for text in self.violations if text.startswith("at the end"))]

    async def run(self) -> None:
        """Runs all phases, or as many as pass."""
        trio.lowlevel.add_instrument(self.observer)
        trio.lowlevel.add_instrument(self.guard)
        try:
            async with trio.open_nursery() as nursery:
                self.guard.on_found = nursery.cancel_scope.cancel
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._phases()
                nursery.cancel_scope.cancel()
            self.collect()
        finally:
            trio.lowlevel.remove_instrument(self.observer)
            trio.lowlevel.remove_instrument(self.guard)

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Ends the run soon after the first violation."""
        while True:
            await trio.sleep(WATCH_SECONDS)
            self.collect()
            if self.violations:
                scope.cancel()

    async def _phases(self) -> None:
        options, trace = self.options, self.world.trace
        workload = QueueWorkload(self.environment, self.cluster.bootstrap, options.workload, self.recorder)
        transfers = TransactionWorkload(
            self.environment,
            self.cluster.bootstrap,
            TransactionOptions(topic=options.workload.topic, partitions=options.workload.partitions),
            self.recorder,
        )
        try:
            self.cluster.start_all()
            await self.cluster.wait_healthy(options.forming_seconds)
            await self.cluster.create_topic(
                self.environment, options.workload.topic, options.workload.partitions, options.topic_settings
            )
            trace.note("phase", "faults", "synced" if self.synced else "unsynced")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(workload.run)
                nursery.start_soon(self.register.run, options.config_changes_per_second)
                if self.transactions:
                    nursery.start_soon(transfers.run)
                self.injector.schedule(self.plan, trio.current_time())
                await trio.sleep(options.fault_seconds)
                trace.note("phase", "healing")
                self.injector.end_all()
                await self.cluster.wait_healthy(options.healing_seconds)
                trace.note("phase", "healthy")
                workload.stop()
                self.register.stop()
                transfers.stop()
            trace.note("phase", "final read")
            await workload.final_read(options.reading_seconds)
        except* ClusterNotReadyError as group:
            self.violations = [f"at the end: stuck: {error}" for error in leaves(group)]
        if self.violations:
            return
        lost = self.register.lost()
        if lost is not None:
            self.violations = [f"at the end: metadata-lost: {lost}"]
            return
        verdict = check_history(self.history, options.check)
        found = [anomaly for anomaly in verdict.anomalies if not anomaly.allowed]
        # A final read that did not end has not seen what it has not read: that alone is no loss.
        stuck = [anomaly for anomaly in found if anomaly.kind is AnomalyKind.STUCK]
        if stuck:
            found = stuck + [
                anomaly for anomaly in found if anomaly.kind not in (AnomalyKind.STUCK, AnomalyKind.UNSEEN)
            ]
        self.violations = [
            f"at the end: {anomaly.kind.value}: {anomaly.text}" for anomaly in found[:VIOLATIONS_SHOWN_MAX]
        ]


def planned_faults(seed: int, options: RunOptions) -> list[PlannedFault]:
    """Returns the faults that a seed draws."""
    return plan_faults(derive_random(seed, "fault plan"), options.fault_seconds, options.kinds)


def draw_settings(draw: random.Random) -> dict[str, str]:
    """Returns the times of a cluster: short ones let a run of some seconds see what takes minutes otherwise."""
    session_ms = draw.choice((1_500, 3_000, 9_000))
    return {
        "replica.lag.time.max.ms": str(draw.choice((600, 2_000, 10_000))),
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // draw.choice((3, 5))),
        "controller.quorum.election.timeout.ms": str(draw.choice((400, 1_000))),
        "replica.fetch.wait.max.ms": str(draw.choice((100, 500))),
        "group.min.session.timeout.ms": "500",
        "group.initial.rebalance.delay.ms": str(draw.choice((0, 500))),
        "log.segment.bytes": str(draw.choice((1 << 30, 16_384, 2_048))),
        "log.index.interval.bytes": str(draw.choice((4_096, 64))),
    }


def count_operations(history: Sequence[Operation]) -> dict[str, int]:
    """Returns how many operations of each kind ended in which way."""
    counts: dict[str, int] = {}
    for operation in history:
        outcome = "aborted" if operation.aborted else operation.status.value
        name = f"{operation.kind.value} {outcome}"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def draw_network(seed: int) -> NetworkProfile:
    """Returns the network of a seed: near or far, smooth or rough."""
    draw = derive_random(seed, "network profile")
    return NetworkProfile(
        delay_min=draw.choice((0.000_05, 0.000_2, 0.002)),
        delay_jitter=draw.choice((0.000_1, 0.000_5, 0.005)),
        spike_probability=draw.choice((0.0, 0.001, 0.01)),
        fragment_probability=draw.choice((0.0, 0.05, 0.3)),
        window_bytes=draw.choice((8 * 1024, 64 * 1024, 256 * 1024)),
    )


def run_seed(seed: int, options: RunOptions | None = None) -> Result:
    """Runs one seed. The result is the same for the same seed, options and code, but for ``wall_seconds``."""
    chosen = options if options is not None else RunOptions()
    started = time.perf_counter()
    logs = _LogLines()

    async def main(world: World) -> Result:
        run = _Run(world, chosen, logs)
        await run.run()
        trace = world.trace
        lines = sorted([*(str(note) for note in trace.notes()), *run.logs.lines], key=lambda line: float(line[:12]))
        if run.violations:
            lines += ["", "the last events:", *(str(event) for event in trace.tail())]
        return Result(
            seed=seed,
            trace_hash=trace.digest,
            violations=tuple(run.violations),
            timeline=tuple(lines),
            virtual_seconds=trio.current_time(),
            wall_seconds=0.0,
            steps=run.observer.steps,
            events=trace.count,
            faults=run.injector.struck,
            acknowledged=run.recorder.acknowledged,
            polled=run.recorder.polled,
            fault_kinds=tuple(sorted({fault.kind.value for fault in run.plan})),
            operations=count_operations(run.history),
        )

    with logs.installed():
        result = run_world(main, seed, draw_network(seed))
    return replace(result, wall_seconds=time.perf_counter() - started)


def run_seeds(
    seeds: Iterable[int], *, processes: int | None = None, options: RunOptions | None = None
) -> Iterator[Result]:
    """Runs seeds over the cores, each in a process of its own pool; yields results as they come.

    Memory is bounded: no more than four seeds per process are handed out ahead.
    """
    count = processes if processes is not None else (os.cpu_count() or 1)
    remaining = iter(seeds)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(count, mp_context=context, max_tasks_per_child=50) as pool:
        running: dict[concurrent.futures.Future[Result], int] = {}
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < 4 * count:
                try:
                    seed = next(remaining)
                except StopIteration:
                    exhausted = True
                    break
                running[pool.submit(run_seed, seed, options)] = seed
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                del running[future]
                yield future.result()


def write_failure(result: Result, directory: Path) -> Path:
    """Writes the folder of a failed seed (result and timeline) and returns it."""
    folder = directory / f"seed-{result.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result.to_json(), indent=2) + "\n")
    (folder / "timeline.txt").write_text(
        "\n".join([result.replay_command, "", *result.violations, "", *result.timeline]) + "\n"
    )
    return folder
