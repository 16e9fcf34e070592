"""Runs a chaos run from start to report.

The run starts a fresh cluster behind proxies or in network namespaces, runs a workload and a plan of faults, and judges
the history; the result is a folder (``moldau_jepsen.chaos.folder``). On a cluster that was started elsewhere
(``bootstrap``) it refuses faults that need the processes or the links; reassignments and elections remain
(``moldau_jepsen.chaos.foreign``).
"""

from __future__ import annotations

import contextlib
import random
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import trio

from moldau.runtime.config import parse_address
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tasks.exceptions import leaves
from moldau_jepsen.chaos.clients import RunClients
from moldau_jepsen.chaos.controls import wait_polled
from moldau_jepsen.chaos.folder import HISTORY, ChaosResult, ControlFacts, RunFacts, judge, write_facts
from moldau_jepsen.chaos.foreign import delete_topics, new_mark, with_own_names
from moldau_jepsen.chaos.nemesis.moves import Operator
from moldau_jepsen.chaos.nemesis.nemesis import FaultEvent, Nemesis
from moldau_jepsen.chaos.nemesis.schedule import MACHINE_KINDS, plan_faults
from moldau_jepsen.chaos.nemesis.stage import NoCluster, ProcessNodes, ProcessStage
from moldau_jepsen.chaos.network.links import Links
from moldau_jepsen.chaos.network.meter import WireMeter
from moldau_jepsen.chaos.network.namespaces import NamespaceLinks
from moldau_jepsen.chaos.observe.claims import ClaimSampler, question_tls
from moldau_jepsen.chaos.observe.observed import observed
from moldau_jepsen.chaos.observe.sampler import ClusterSampler
from moldau_jepsen.chaos.options import ChaosOptions, Network, once_more, possible_kinds, refuse_impossible
from moldau_jepsen.chaos.outside import OutsideProcesses
from moldau_jepsen.checkers.log.copies import Copies
from moldau_jepsen.checkers.log.topics import TopicsMade
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.history import HistoryWriter
from moldau_jepsen.launcher import ClusterSpec, LauncherError, LauncherUsageError, LocalCluster, start_cluster
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.origin import origin
from moldau_jepsen.places import place_of
from moldau_jepsen.reports.chaos import ClusterSample
from moldau_jepsen.reports.gather import PartitionsOverTime
from moldau_jepsen.workloads.operations import ClusterOperations
from moldau_jepsen.workloads.recording.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.chaos.network.rules import LinkRules
    from moldau_jepsen.checkers import RegisterOperation
    from moldau_jepsen.faults.kinds import TargetedFault
    from moldau_jepsen.history import Operation
    from moldau_jepsen.workloads.operations import PartitionsSample
    from moldau_jepsen.workloads.phases.liveness import Liveness

CLUSTER = "cluster"
"""Where a fresh cluster has its data and logs; removed after a run in which nothing was found."""
NODES = "nodes"
"""Where the nodes of another system have their logs, if the run starts them."""
SPARK = "spark"
"""Where the query of the workload ``spark`` has its checkpoint and logs; removed likewise."""
SAMPLE_S = 1.0
CLAIMS_S = 0.5
WRONG_SHOWN_MAX = 20
FORGETTING_KINDS = (FaultKind.POWER, FaultKind.BIT_ROT)
"""After these a replica may lack what it had acknowledged: one copy is not enough then."""
FLUSH_MESSAGES = "log.flush.interval.messages"
READY_TIMEOUT_MS = 90_000
PROGRESS_S = 60.0
"""How long clients may get nothing done after the cluster is healthy."""
READING_S = 600.0
"""How long a group may take to come to what is new, as long as it reads what is older."""
DRAIN_S, STUCK_DRAIN_S = 3_000.0, 60.0
PATIENT_START = {"initial.broker.registration.timeout.ms": str(600_000)}
"""Faults may keep controllers from electing a leader for minutes; a broker that starts then is not to end by itself."""
"""How long clients may take to end, where the cluster serves (longer than a pipe takes at most) and where not."""
BROKER_PORT, CONTROLLER_PORT = 9092, 9093
"""In namespaces, where every node has all ports for itself."""
SEGMENT_BYTES = "segment.bytes"
SMALL_SEGMENT_BYTES = 64 * 1024
SNAPSHOT_BYTES = "metadata.log.max.record.bytes.between.snapshots"
SMALL_SNAPSHOT_BYTES = 1_000
"""Of runs whose faults strike closed segments and snapshots of controllers: there must be some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress report of a run."""

    phase: str
    elapsed_s: float
    duration_s: float
    acknowledged: int
    polled: int
    fault: str = ""
    note: str = ""


def run_chaos(options: ChaosOptions, report: Callable[[Progress], None] = lambda progress: None) -> ChaosResult:
    """Runs one chaos run; blocks until its end.

    Raises:
        LauncherUsageError: The options contradict each other, or the directory is not empty.
        LauncherError: A node did not start. A node that fails to restart later ends the run, which is judged.
        OperationFailedError: The topic could not be created.
        OSError: The history could not be written. The written part can be judged later, as after an interrupt.
    """
    refuse_impossible(options)
    try:
        options.directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LauncherUsageError(f"cannot make {options.directory}: {error.strerror}") from error
    if options.bootstrap is not None:
        options = replace(options, clients=with_own_names(options.clients, new_mark()))
    return trio.run(_Run(options, report).main, restrict_keyboard_interrupt_to_checkpoints=True)


class _Run:
    def __init__(self, options: ChaosOptions, report: Callable[[Progress], None]) -> None:
        self.options = options
        self.report = report
        self.faults: list[FaultEvent] = []
        self.samples: list[ClusterSample] = []
        self.meter: WireMeter | None = None
        self.partitions = PartitionsOverTime()
        self.deaths: list[str] = []
        self.register: tuple[RegisterOperation, ...] = ()
        self.topics = TopicsMade()
        self.copies = Copies()
        self.stuck: list[str] = []
        self.wrong: list[str] = []
        self.groups: dict[str, str] = {}
        self.kinds = tuple(options.kinds)
        self.notes: list[str] = []
        self.left = "kept"  # what became of the topics on a cluster that was started elsewhere
        self.outside: OutsideProcesses | None = None
        self.environment: Environment = real_environment(seed=options.seed)

    async def main(self) -> ChaosResult:
        try:
            await self._run()
        except BaseException as error:
            causes = [cause for cause in leaves(error) if not isinstance(cause, trio.Cancelled)]
            self.is_final = False
            if not (self.began and causes and all(isinstance(cause, LauncherError) for cause in causes)):
                self._leave_unjudged(causes)
                if len(causes) == 1:
                    raise causes[0] from None
                raise
            self.deaths += [f"ended early: {cause}" for cause in causes]
        self._keep_facts()
        result = judge(self.options.directory)
        # The nodes' data and logs are evidence. Controls are meant to fail.
        if result.valid or self.options.control is not None:
            self._remove_data()
        return result

    async def _run(self) -> None:
        with ExitStack() as stack:
            async with trio.open_nursery() as nursery:
                cluster, links, bootstrap = await self._cluster(stack, nursery)
                try:
                    await self._work(cluster, links, bootstrap)
                finally:
                    if cluster is not None:
                        cluster.shut_down()
                    nursery.cancel_scope.cancel()

    def _leave_unjudged(self, causes: Sequence[BaseException]) -> None:
        """Leaves what can be judged later, or the directory to the next try where there is nothing to judge.

        The log of a node that did not start is left to be read.
        """
        if self.began:
            self._remove_data()  # also because there may be no room left to report anything
            self._keep_facts()
            note = f"moldau chaos report {self.options.directory} judges what was recorded"
            self._progress("end", self.options.duration_s, None, note=note)
            return
        (self.options.directory / HISTORY).unlink(missing_ok=True)
        if not any(type(cause) is LauncherError for cause in causes):
            self._remove_data()
        with contextlib.suppress(OSError):  # not ours alone, or not empty
            self.options.directory.rmdir()

    def _remove_data(self) -> None:
        if not self.options.keep_data:
            shutil.rmtree(self.options.directory / CLUSTER, ignore_errors=True)
            shutil.rmtree(self.options.directory / SPARK, ignore_errors=True)

    async def _cluster(
        self, stack: ExitStack, nursery: trio.Nursery
    ) -> tuple[LocalCluster | None, LinkRules | None, str]:
        options = self.options
        if options.bootstrap is not None:
            await self._start_outside(stack, options.bootstrap)
            return None, None, options.bootstrap
        self._progress("start", 0, None)
        ids = [*range(1, options.brokers + 1), *(101 + number for number in range(options.controllers))]
        spec = ClusterSpec(
            brokers=options.brokers,
            controllers=options.controllers,
            settings={
                **self._small(SNAPSHOT_BYTES, SMALL_SNAPSHOT_BYTES),
                **PATIENT_START,
                **options.clients.settings,
                **options.settings,
            },
            hostile=any(kind in MACHINE_KINDS for kind in options.kinds),
        )
        links: LinkRules
        if options.network is Network.NAMESPACES:
            links = stack.enter_context(NamespaceLinks(ids))
            self._leave_out(links)
            spec = replace(
                spec,
                ports=(BROKER_PORT,) * options.brokers + (CONTROLLER_PORT,) * options.controllers,
                places=tuple(links.place(node_id) for node_id in ids),
            )
        else:
            ports = take_free_ports(2 * len(ids))
            own, advertised = ports[: len(ids)], ports[len(ids) :]
            spec = replace(spec, ports=tuple(own), advertised_ports=tuple(advertised))
            links = proxies = Links(dict(zip(ids, own, strict=True)))
            self.meter = proxies.meter = WireMeter(range(101, 101 + options.controllers))
            await nursery.start(proxies.serve, dict(zip(ids, advertised, strict=True)))
        cluster = await trio.to_thread.run_sync(start_cluster, options.directory / CLUSTER, spec)
        return cluster, links, cluster.bootstrap

    async def _start_outside(self, stack: ExitStack, bootstrap: str) -> None:
        if not self.options.nodes:
            return
        self._progress("start", 0, None)
        address = parse_address(bootstrap.partition(",")[0])
        self.outside = OutsideProcesses(self.options.nodes, address, self.options.directory / NODES)
        stack.callback(self.outside.shut_down)  # also if only some of them start
        await self.outside.start()

    def _leave_out(self, links: LinkRules) -> None:
        """Takes the kinds out of the plan that these links cannot carry out, and reports it."""
        self.kinds, self.notes = possible_kinds(self.options.kinds, links.lacks)
        for note in self.notes:
            self._progress("start", 0, None, note=note)

    async def _work(self, cluster: LocalCluster | None, links: LinkRules | None, bootstrap: str) -> None:
        options = self.options
        connection = options.clients.connection
        operations = ClusterOperations(self.environment, bootstrap, options.clients.queue.topic, connection)
        with (options.directory / HISTORY).open("wb") as stream, trio.CancelScope() as writing:
            writer = HistoryWriter(stream)

            def record(operation: Operation) -> None:
                try:
                    writer.add(operation)
                except OSError as error:  # it would end one client or another, and look like a finding
                    self.unwritten = error
                    writing.cancel()
                if self.liveness is not None:
                    self.liveness.saw(operation)

            timed = "LogAppendTime" not in (
                options.topic_configs.get("message.timestamp.type"),
                options.settings.get("log.message.timestamp.type"),
            )
            recorder = Recorder(self.environment.clock, record, timed=timed)
            nodes = None if cluster is None else ProcessNodes(cluster)
            forgetting = any(kind in FORGETTING_KINDS for kind in options.kinds)
            workload = RunClients(
                self.environment,
                bootstrap,
                options.clients,
                recorder,
                nodes,
                replication=(3,) if forgetting else (1, 3),
                folder=(options.directory / SPARK).absolute(),
            )
            tls = question_tls(self.environment, connection)
            claims = ClaimSampler(list(options.clients.topics), cluster, bootstrap, tls)
            try:
                await self._load(cluster, links, operations, recorder, workload, claims)
            finally:
                self.register = workload.register_operations
                self.topics = workload.topics_made
                self.copies = workload.copies
                self.faults += workload.kills
                self.stuck = workload.stuck
                self.wrong = workload.wrong
                self.groups = workload.groups
                if self.unwritten is None:
                    writer.flush()
        if self.unwritten is not None:
            raise self.unwritten

    async def _load(
        self,
        cluster: LocalCluster | None,
        links: LinkRules | None,
        operations: ClusterOperations,
        recorder: Recorder,
        workload: RunClients,
        claims: ClaimSampler,
    ) -> None:
        """From the topics to the last read."""
        options = self.options
        async with trio.open_nursery() as nursery:
            await nursery.start(operations.run)
            await workload.create_topics(min(3, options.brokers), self._topic_configs())
            self.began = True
            async with trio.open_nursery() as clients:
                clients.start_soon(self._run_clients, workload, clients.cancel_scope)
                clients.start_soon(self._sample, cluster, operations, recorder)
                clients.start_soon(self._ask_who_leads, claims, recorder)
                await self._harm(cluster, links, operations, recorder)
                await self._await_liveness(workload)
                self._progress("drain", options.duration_s, recorder)
                workload.stop()
                self.sampling = False
                limit_s = STUCK_DRAIN_S if self.deaths else DRAIN_S
                clients.cancel_scope.deadline = trio.current_time() + limit_s
            if clients.cancel_scope.cancelled_caught and not self.client_failed:
                self.deaths.append(f"stuck: clients had not ended {limit_s:g} s after they were asked to")
            if not self.client_failed:
                self._progress("final read", options.duration_s, recorder)
                await workload.final_read(options.final_read_s)
                self.is_final = True
            if cluster is None and not options.keep_data:
                names = [*options.clients.topics, *options.clients.internal_topics, *workload.created_topics]
                bootstrap, connection = str(options.bootstrap), options.clients.connection
                self.left = await delete_topics(self.environment, bootstrap, names, connection)
            nursery.cancel_scope.cancel()

    sampling = True
    liveness: Liveness | None = None
    client_failed = False
    began = False
    """There are topics: what happens from now on leaves something to judge."""
    is_final = False
    """Everything was read from its beginning at last."""
    unwritten: OSError | None = None
    """Why the history ends before the run."""

    async def _run_clients(self, workload: RunClients, scope: trio.CancelScope) -> None:
        """Clients answer every error of the cluster: an exception that leaves them is a finding, and ends the run."""
        try:
            await workload.run()
        except* Exception as group:  # noqa: BLE001 - reported with the place that it came from
            self.deaths.append(f"client-failed: {place_of(group)}")
            self.client_failed = True
            scope.cancel()

    async def _await_liveness(self, workload: RunClients) -> None:
        """A cluster that is healthy must serve. Controls are on trial for what they lose, not for this."""
        if self.options.control is not None or self.deaths:
            return
        self.liveness = workload.liveness()
        missing = await self.liveness.wait(PROGRESS_S, at_most_s=READING_S)
        if missing:
            self.deaths.append(f"stuck: {missing}")

    def _topic_configs(self) -> dict[str, str]:
        return {**self._small(SEGMENT_BYTES, SMALL_SEGMENT_BYTES), **self.options.topic_configs}

    def _small(self, key: str, size: int) -> dict[str, str]:
        return {key: str(size)} if FaultKind.BIT_ROT in self.options.kinds else {}

    async def _harm(
        self, cluster: LocalCluster | None, links: LinkRules | None, operations: ClusterOperations, recorder: Recorder
    ) -> None:
        options = self.options
        plan = plan_faults(
            random.Random(options.seed),
            duration_ms=options.duration_s * 1000,
            kinds=self.kinds,
            window_ms=options.window_s * 1000,
            churn=options.churn,
        )
        offset_ms = recorder.now_ms()

        def report(event: FaultEvent) -> None:
            self.faults.append(replace(event, begin_ms=event.begin_ms + offset_ms, end_ms=event.end_ms + offset_ms))
            done = str(list(event.nodes)) if event.took_effect else event.detail
            self._progress("faults", event.end_ms / 1000, recorder, f"{event.kind} {event.target} {done}")

        if options.control is not None:
            stage = ProcessStage(cluster or NoCluster(), links, report, list(options.clients.topics))
            await options.control.script(stage)
            await wait_polled(recorder, options.control.polled_min)
            await stage.restore()
            return
        if cluster is None:
            await self._strike(Nemesis(self.outside or NoCluster(), links, operations, report), plan)
            return
        controllers = {node.node_id: parse_address(node.address) for node in cluster.controllers}
        async with Operator(self.environment, cluster.bootstrap, controllers) as operator:
            synced = options.settings.get(FLUSH_MESSAGES) == "1"
            nemesis = Nemesis(
                cluster, links, operations, report, voters=operator, cordons=operator.cordons, synced=synced
            )
            await self._strike(nemesis, plan)
        try:
            await trio.to_thread.run_sync(lambda: cluster.wait_ready(cluster.nodes, timeout_ms=READY_TIMEOUT_MS))
        except LauncherError as error:
            self.deaths.append(str(error))

    async def _strike(self, nemesis: Nemesis, plan: Sequence[TargetedFault]) -> None:
        end = trio.current_time() + self.options.duration_s
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nemesis.watch)
                await nemesis.run(plan)
                await trio.sleep_until(end)
                await nemesis.recover()
                nursery.cancel_scope.cancel()
        finally:  # also of a run that ends early, perhaps because a node that died does not start again
            self.deaths += nemesis.deaths

    async def _sample(self, cluster: LocalCluster | None, operations: ClusterOperations, recorder: Recorder) -> None:
        sampler = None
        if cluster is not None:
            sampler = ClusterSampler(cluster, list(self.options.clients.topics), self.partitions)
        while self.sampling:
            at_ms = recorder.now_ms()
            if sampler is not None:
                sample = await trio.to_thread.run_sync(sampler.sample, at_ms)
            else:
                sample = self._foreign_sample(await operations.sample(), at_ms)
            if sample is not None:
                self.samples.append(sample)
            self._progress("faults", recorder.now_ms() / 1000, recorder)
            await trio.sleep(SAMPLE_S)

    async def _ask_who_leads(self, claims: ClaimSampler, recorder: Recorder) -> None:
        process = recorder.new_process()
        while self.sampling:
            begun_ms = recorder.now_ms()
            recorder.claim(process, begun_ms, await trio.to_thread.run_sync(claims.sample))
            await trio.sleep(CLAIMS_S)

    def _foreign_sample(self, sample: PartitionsSample | None, at_ms: float) -> ClusterSample | None:
        if sample is None:
            return None
        before = self.samples[-1].high_watermark_sum if self.samples else 0
        return ClusterSample(
            at_ms=at_ms,
            in_sync_min=sample.in_sync_min,
            leaderless=sample.leaderless,
            high_watermark_sum=before if sample.high_watermark_sum is None else sample.high_watermark_sum,
        )

    def _progress(
        self, phase: str, elapsed_s: float, recorder: Recorder | None, fault: str = "", note: str = ""
    ) -> None:
        self.report(
            Progress(
                phase=phase,
                elapsed_s=elapsed_s,
                duration_s=self.options.duration_s,
                acknowledged=0 if recorder is None else recorder.acknowledged,
                polled=0 if recorder is None else recorder.polled,
                fault=fault,
                note=note,
            )
        )

    def _keep_facts(self) -> None:
        """Writes what a judge needs besides the history, as far as it is known."""
        options = self.options
        queue = options.clients.queue
        kinds = [options.control.name] if options.control is not None else [kind.value for kind in options.kinds]
        options_text = {
            "workload": options.clients.workload.value,
            "seed": str(options.seed),
            "faults": ", ".join(kinds) + (" (all the while where an operator does it)" if options.churn else ""),
            "brokers": str(options.brokers),
            "controllers": str(options.controllers),
            "cluster": options.bootstrap or "started for the run",
            **(
                {"topics": f"{', '.join(options.clients.topics)}: {self.left}"}
                if options.bootstrap
                else {"network": "; ".join((options.network.value, *self.notes))}
            ),
            **self.groups,
            "once more": once_more(options),
            **{f"topic {key}": value for key, value in options.topic_configs.items()},
            **{f"node {key}": value for key, value in options.settings.items()},
            **{f"producer {key}": str(value) for key, value in queue.producer.items()},
            **{f"consumer {key}": str(value) for key, value in queue.consumer.items()},
        }
        promised = replace(options.clients.promised, final_phase=self.is_final, ended=self.is_final)
        if options.control is not None:
            promised = replace(promised, read_committed=True, idempotent=True)
        facts = RunFacts(
            duration_s=options.duration_s,
            settings=options_text,
            promised=promised,
            faults=tuple(self.faults),
            samples=tuple(self.samples),
            deaths=(*self.deaths, *self.stuck, *self.wrong[:WRONG_SHOWN_MAX]),
            register=self.register,
            topics=self.topics,
            copies=self.copies,
            history_bytes=(options.directory / HISTORY).stat().st_size,
            origin=origin(),
            observed=observed(self.meter, self.partitions.series()),
            control=None
            if options.control is None
            else ControlFacts(
                options.control.name,
                options.control.text,
                tuple(kind.value for kind in options.control.convicted_by),
            ),
        )
        write_facts(options.directory, facts)
