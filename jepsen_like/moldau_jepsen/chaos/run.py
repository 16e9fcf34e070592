"""One chaos run from start to report: a fresh cluster behind proxies, a workload, a plan of faults, the checkers, a
folder.

What remains is a folder (``moldau_jepsen.chaos.folder``). Against a cluster
that was started elsewhere (``bootstrap``) the faults that need its processes or its links are refused; reassignments
and elections remain.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.runtime.config import parse_address
from moldau.runtime.real import real_environment
from moldau_jepsen.chaos.folder import ChaosResult, RunFacts, judge, write_facts
from moldau_jepsen.chaos.links import Links
from moldau_jepsen.chaos.moves import Operator
from moldau_jepsen.chaos.nemesis import FaultEvent, Nemesis
from moldau_jepsen.chaos.schedule import MACHINE_KINDS, FaultKind, plan_faults
from moldau_jepsen.checkers import CheckOptions
from moldau_jepsen.history import HistoryWriter
from moldau_jepsen.launcher import ClusterSpec, LauncherError, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.reports.chaos import ClusterSample
from moldau_jepsen.workloads.operations import ClusterOperations
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.runtime.environment import Environment
    from moldau_jepsen.chaos.schedule import PlannedFault
    from moldau_jepsen.launcher import Node
    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.launcher.process import ProcessState
    from moldau_jepsen.launcher.undo import PowerLoss

SAMPLE_S = 1.0
TOPIC_TIMEOUT_S = 30.0
FOREIGN_KINDS = (FaultKind.REASSIGN, FaultKind.ELECT)
FLUSH_MESSAGES = "log.flush.interval.messages"
READY_TIMEOUT_MS = 90_000
SEGMENT_BYTES = "segment.bytes"
SMALL_SEGMENT_BYTES = 64 * 1024
"""Of runs whose faults strike closed segments: there must be some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What to run."""

    directory: Path
    """Where report, history and cluster go; created, must be empty."""
    duration_s: float = 60.0
    seed: int = 1
    kinds: Sequence[FaultKind] = tuple(FaultKind)
    window_s: float = 30.0
    churn: bool = False
    """Reassignments, preferred elections and changes of voters go on from the beginning to the end."""
    brokers: int = 3
    controllers: int = 3
    bootstrap: str | None = None
    """An existing cluster instead of a fresh one."""
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    """Configuration keys of the fresh cluster's nodes."""
    workload: QueueOptions = field(default_factory=QueueOptions)
    """Topic, readers and, without ``transactions``, senders."""
    transactions: TransactionOptions | None = None
    """Transactional clients, which take the place of the senders. The promise is then that of transactions, whatever
    isolation level the readers are given."""
    final_read_s: float = 90.0
    keep_data: bool = False
    """Keeps the nodes' data and logs also when no anomaly was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run tells while it lasts."""

    phase: str
    elapsed_s: float
    duration_s: float
    acknowledged: int
    polled: int
    fault: str = ""


def refuse_impossible(options: ChaosOptions) -> None:
    """Raises ``LauncherUsageError`` for options that contradict each other and for a directory that is in use."""
    if options.directory.exists() and (not options.directory.is_dir() or any(options.directory.iterdir())):
        raise LauncherUsageError(f"{options.directory} is not an empty directory")
    if options.bootstrap is not None:
        refused = [kind.value for kind in options.kinds if kind not in FOREIGN_KINDS]
        if refused:
            allowed = ", ".join(kind.value for kind in FOREIGN_KINDS)
            raise LauncherUsageError(
                f"faults {', '.join(refused)} need the cluster's own processes; with --bootstrap only {allowed} work"
            )


def run_chaos(options: ChaosOptions, tell: Callable[[Progress], None] = lambda progress: None) -> ChaosResult:
    """Runs it all; blocks for the whole time.

    Raises:
        LauncherUsageError: the options contradict each other, or the directory is not empty.
        LauncherError: a node did not come up, or did not come back.
        OperationFailedError: the topic could not be created.
    """
    refuse_impossible(options)
    options.directory.mkdir(parents=True, exist_ok=True)
    return trio.run(_Run(options, tell).main)


class _Run:
    def __init__(self, options: ChaosOptions, tell: Callable[[Progress], None]) -> None:
        self.options = options
        self.tell = tell
        self.faults: list[FaultEvent] = []
        self.samples: list[ClusterSample] = []
        self.deaths: list[str] = []
        self.environment: Environment = real_environment(seed=options.seed)

    async def main(self) -> ChaosResult:
        with ExitStack() as stack:
            async with trio.open_nursery() as nursery:
                cluster, links, bootstrap = await self._cluster(stack, nursery)
                try:
                    await self._work(cluster, links, bootstrap)
                finally:
                    if cluster is not None:
                        cluster.shut_down()
                    nursery.cancel_scope.cancel()
        return self._judge()

    async def _cluster(self, stack: ExitStack, nursery: trio.Nursery) -> tuple[LocalCluster | None, Links | None, str]:
        options = self.options
        if options.bootstrap is not None:
            return None, None, options.bootstrap
        self._progress("start", 0, None)
        count = options.brokers + options.controllers
        ports = take_free_ports(2 * count)
        spec = ClusterSpec(
            brokers=options.brokers,
            controllers=options.controllers,
            settings=options.settings,
            hostile=any(kind in MACHINE_KINDS for kind in options.kinds),
            ports=tuple(ports[:count]),
            advertised_ports=tuple(ports[count:]),
        )
        ids = [*range(1, options.brokers + 1), *(101 + number for number in range(options.controllers))]
        links = Links(dict(zip(ids, ports[:count], strict=True)))
        await nursery.start(links.serve, dict(zip(ids, ports[count:], strict=True)))
        home = options.directory / "cluster"
        if not options.keep_data:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory, prefix="cluster-")))
        cluster = await trio.to_thread.run_sync(start_cluster, home, spec)
        return cluster, links, cluster.bootstrap

    async def _work(self, cluster: LocalCluster | None, links: Links | None, bootstrap: str) -> None:
        options, queue = self.options, self.options.workload
        operations = ClusterOperations(self.environment, bootstrap, queue.topic)
        with (options.directory / "history").open("wb") as stream:
            writer = HistoryWriter(stream)
            recorder = Recorder(self.environment.clock, writer.add)
            workload = self._workload(bootstrap, recorder)
            async with trio.open_nursery() as nursery:
                await nursery.start(operations.run)
                await operations.create_topic(
                    queue.partitions, min(3, options.brokers), self._topic_configs(), timeout_s=TOPIC_TIMEOUT_S
                )
                async with trio.open_nursery() as clients:
                    clients.start_soon(workload.run)
                    clients.start_soon(self._sample, operations, recorder, clients.cancel_scope)
                    await self._harm(cluster, links, operations, recorder)
                    self._progress("drain", options.duration_s, recorder)
                    workload.stop()
                    self.sampling = False
                self._progress("final read", options.duration_s, recorder)
                await workload.final_read(options.final_read_s)
                writer.flush()
                nursery.cancel_scope.cancel()

    sampling = True

    def _topic_configs(self) -> dict[str, str]:
        small = {SEGMENT_BYTES: str(SMALL_SEGMENT_BYTES)} if FaultKind.BIT_ROT in self.options.kinds else {}
        return {**small, **self.options.topic_configs}

    def _workload(self, bootstrap: str, recorder: Recorder) -> _Workload:
        queue, transactions = self.options.workload, self.options.transactions
        if transactions is None:
            return QueueWorkload(self.environment, bootstrap, queue, recorder)
        shared = replace(transactions, topic=queue.topic, partitions=queue.partitions, producer=queue.producer)
        return _Beside(
            QueueWorkload(self.environment, bootstrap, replace(queue, senders=0), recorder),
            TransactionWorkload(self.environment, bootstrap, shared, recorder),
        )

    async def _harm(
        self, cluster: LocalCluster | None, links: Links | None, operations: ClusterOperations, recorder: Recorder
    ) -> None:
        options = self.options
        plan = plan_faults(
            random.Random(options.seed),
            duration_ms=options.duration_s * 1000,
            kinds=options.kinds,
            window_ms=options.window_s * 1000,
            churn=options.churn,
        )
        offset_ms = recorder.now_ms()

        def report(event: FaultEvent) -> None:
            self.faults.append(
                FaultEvent(
                    kind=event.kind,
                    target=event.target,
                    nodes=event.nodes,
                    begin_ms=event.begin_ms + offset_ms,
                    end_ms=event.end_ms + offset_ms,
                    detail=event.detail,
                )
            )
            self._progress("faults", event.end_ms / 1000, recorder, f"{event.kind} {event.target} {list(event.nodes)}")

        if cluster is None:
            await self._strike(Nemesis(_Nobody(), links, operations, report), plan)
            return
        controllers = {node.node_id: parse_address(node.address) for node in cluster.controllers}
        async with Operator(self.environment, cluster.bootstrap, controllers) as operator:
            synced = options.settings.get(FLUSH_MESSAGES) == "1"
            nemesis = Nemesis(cluster, links, operations, report, voters=operator, synced=synced)
            await self._strike(nemesis, plan)
        try:
            await trio.to_thread.run_sync(lambda: cluster.wait_ready(cluster.nodes, timeout_ms=READY_TIMEOUT_MS))
        except LauncherError as error:
            self.deaths.append(str(error))

    async def _strike(self, nemesis: Nemesis, plan: Sequence[PlannedFault]) -> None:
        end = trio.current_time() + self.options.duration_s
        async with trio.open_nursery() as nursery:
            nursery.start_soon(nemesis.watch)
            await nemesis.run(plan)
            await trio.sleep_until(end)
            await nemesis.recover()
            nursery.cancel_scope.cancel()
        self.deaths += nemesis.deaths

    async def _sample(self, operations: ClusterOperations, recorder: Recorder, scope: trio.CancelScope) -> None:
        while self.sampling:
            sample = await operations.sample()
            if sample is not None:
                before = self.samples[-1].high_watermark_sum if self.samples else 0
                self.samples.append(
                    ClusterSample(
                        at_ms=recorder.now_ms(),
                        in_sync_min=sample.in_sync_min,
                        leaderless=sample.leaderless,
                        high_watermark_sum=before if sample.high_watermark_sum is None else sample.high_watermark_sum,
                    )
                )
            self._progress("faults", recorder.now_ms() / 1000, recorder)
            await trio.sleep(SAMPLE_S)

    def _progress(self, phase: str, elapsed_s: float, recorder: Recorder | None, fault: str = "") -> None:
        self.tell(
            Progress(
                phase=phase,
                elapsed_s=elapsed_s,
                duration_s=self.options.duration_s,
                acknowledged=0 if recorder is None else recorder.acknowledged,
                polled=0 if recorder is None else recorder.polled,
                fault=fault,
            )
        )

    def _judge(self) -> ChaosResult:
        options = self.options
        options_text = {
            "workload": "queue" if options.transactions is None else "transactions",
            "seed": str(options.seed),
            "faults": ", ".join(kind.value for kind in options.kinds),
            "brokers": str(options.brokers),
            "controllers": str(options.controllers),
            "cluster": options.bootstrap or "started for the run",
            **{f"topic {key}": value for key, value in options.topic_configs.items()},
            **{f"node {key}": value for key, value in options.settings.items()},
            **{f"producer {key}": str(value) for key, value in options.workload.producer.items()},
            **{f"consumer {key}": str(value) for key, value in options.workload.consumer.items()},
        }
        facts = RunFacts(
            duration_s=options.duration_s,
            settings=options_text,
            promised=check_options(options.workload, transactional=options.transactions is not None),
            faults=tuple(self.faults),
            samples=tuple(self.samples),
            deaths=tuple(self.deaths),
        )
        write_facts(options.directory, facts)
        return judge(options.directory)


class _Workload(Protocol):
    """The clients of a run."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    async def final_read(self, timeout_s: float) -> None: ...


class _Beside:
    """Readers of one workload beside the writers of another."""

    def __init__(self, readers: QueueWorkload, writers: TransactionWorkload) -> None:
        self._readers = readers
        self._writers = writers

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._readers.run)
            nursery.start_soon(self._writers.run)

    def stop(self) -> None:
        self._writers.stop()
        self._readers.stop()

    async def final_read(self, timeout_s: float) -> None:
        await self._readers.final_read(timeout_s)


def check_options(workload: QueueOptions, *, transactional: bool = False) -> CheckOptions:
    """What the workload's configuration promises."""
    if transactional:
        return CheckOptions(read_committed=True, idempotent=True, subscribe=False)
    acks = str(workload.producer.get("acks", "all"))
    idempotence = str(workload.producer.get("enable.idempotence", True)).lower()
    return CheckOptions(
        read_committed=workload.consumer.get("isolation.level", "read_committed") == "read_committed",
        idempotent=acks in ("all", "-1") and idempotence != "false",
        subscribe=False,  # group readers tell when they were rebalanced, so nothing else may move a position
    )


class _Nobody:
    """The processes of a foreign cluster: none that could be harmed."""

    brokers: Sequence[Node] = ()
    controllers: Sequence[Node] = ()

    def state(self, node_id: int) -> ProcessState:
        raise self._refusal(node_id)

    def kill(self, node_id: int) -> None:
        raise self._refusal(node_id)

    def pause(self, node_id: int) -> None:
        raise self._refusal(node_id)

    def resume(self, node_id: int) -> None:
        raise self._refusal(node_id)

    def stop_node(self, node_id: int) -> bool:
        raise self._refusal(node_id)

    def launch(self, node_id: int) -> None:
        raise self._refusal(node_id)

    def lose_power(self, node_id: int, seed: int) -> PowerLoss:
        raise self._refusal(node_id)

    def control(self, node_id: int, change: Callable[[Control], Control]) -> None:
        raise self._refusal(node_id)

    def wipe(self, node_id: int) -> None:
        raise self._refusal(node_id)

    def is_whole(self) -> bool:
        raise self._refusal(0)

    def can_do_without(self, node_id: int) -> bool:
        raise self._refusal(node_id)

    @staticmethod
    def _refusal(node_id: int) -> LauncherUsageError:
        return LauncherUsageError(f"node {node_id} is no process of ours")
