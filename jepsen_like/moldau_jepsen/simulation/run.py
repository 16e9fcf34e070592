"""One run: a cluster, its clients, faults, healing, and the judgement.

A run has four phases. The cluster forms and the topic is made. Clients work while faults strike. Everything is healed,
and must come back to health within a bounded virtual time (liveness). At last every partition is read from its
beginning, and the history of all clients is checked. In all of them the observer judges every step. The first
violation ends the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.exceptions import leaves
from moldau_broker.log.errors import LogStorageError
from moldau_jepsen.checkers import AnomalyKind, check_history
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.simulation.cluster import ClusterNotReadyError, ClusterShape, SimulatedCluster
from moldau_jepsen.simulation.faults import FaultInjector, Struck
from moldau_jepsen.simulation.invariants import ClusterInvariants
from moldau_jepsen.simulation.observer import ClusterObserver
from moldau_jepsen.simulation.options import draw_settings, planned_faults
from moldau_jepsen.simulation.register import ConfigRegister
from moldau_jepsen.simulation.watch import StepGuard, place_of
from moldau_jepsen.workloads.queue import QueueWorkload
from moldau_jepsen.workloads.recorder import Recorder
from moldau_jepsen.workloads.transactions import TransactionOptions, TransactionWorkload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_jepsen.checkers import Anomaly
    from moldau_jepsen.history import Operation
    from moldau_jepsen.simulation.faults import PlannedFault
    from moldau_jepsen.simulation.options import RunOptions
    from moldau_jepsen.simulation.watch import LogLines
    from moldau_jepsen.simulation.world import World

CLIENT_HOST = "client"
WATCH_SECONDS = 0.05
VIOLATIONS_SHOWN_MAX = 20


class Run:
    """One run in its world."""

    def __init__(self, world: World, options: RunOptions, logs: LogLines) -> None:
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
        self.guard = StepGuard(world.agenda.clock)
        self.logs = logs
        self.history: list[Operation] = []
        self.environment = world.node(CLIENT_HOST).environment
        self.register = ConfigRegister(self.cluster, self.environment, options.workload.topic)
        self.recorder = Recorder(self.environment.clock, self._record)
        self.violations: list[str] = []
        self.anomalies: tuple[Anomaly, ...] = ()

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
                found.append(f"node-failed: {name}: {place_of(failure)}")
        self.violations = [*found, *(text for text in self.violations if text.startswith("at the end"))]

    async def run(self) -> None:
        """Runs all phases, or as many as pass."""
        watchers = self.world.agenda.watchers
        watchers += [self.observer.step_ended, self.guard.turn_ended]
        try:
            async with trio.open_nursery() as nursery:
                self.guard.on_found = nursery.cancel_scope.cancel
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._phases()
                nursery.cancel_scope.cancel()
            self.collect()
        finally:
            watchers.remove(self.observer.step_ended)
            watchers.remove(self.guard.turn_ended)
            self.guard.end()

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
        self.anomalies = tuple(found[:VIOLATIONS_SHOWN_MAX])
        self.violations = [
            f"at the end: {anomaly.kind.value}: {anomaly.text}" for anomaly in found[:VIOLATIONS_SHOWN_MAX]
        ]
