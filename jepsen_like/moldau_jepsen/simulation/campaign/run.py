"""Executes one run: a cluster, its clients, faults, healing, and the judgement.

A run has four phases. First the cluster forms and the topic is created. Then clients work under faults. Then all nodes
are healed, in some runs a core of the nodes first; the cluster must become healthy and serve the clients within a
bounded virtual time (liveness), and the core must give a reader all acknowledged records. Finally a new group and a
reader without a group read every partition from its beginning, and the checkers judge the history of all clients. The
observer judges every step of all phases. The first violation ends the run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from moldau.runtime.tasks.exceptions import leaves
from moldau_broker.log.errors import LogStorageError
from moldau_jepsen.checkers import AnomalyKind, check_read
from moldau_jepsen.cluster.outside import NONE_OUTSIDE, Outside
from moldau_jepsen.cluster.simulated import ClusterNotReadyError, ClusterShape, SimulatedCluster
from moldau_jepsen.coverage.situations import (
    ADMINISTERED,
    OF_SHARE_ADMINISTRATION,
    OF_STREAMS,
    OF_TIERED,
    Situation,
)
from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.history import Status
from moldau_jepsen.places import place_of
from moldau_jepsen.simulation.campaign.clients import CLIENT_HOST, VIOLATIONS_SHOWN_MAX, Clients
from moldau_jepsen.simulation.campaign.options import (
    draw_settings,
    drawn_compaction,
    drawn_directories,
    drawn_quotas,
    drawn_racks,
    drawn_security,
    drawn_share_administration,
    drawn_sharing,
    drawn_short_sequences,
    drawn_streams,
    drawn_timed_syncs,
    drawn_transaction_level,
    plan_within,
)
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.inject.recovery import draw_outside, drawn_core_first
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants, PartitionKey
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.simulation.judge.quotas import QuotaWatch
from moldau_jepsen.simulation.judge.remote_watch import RemoteWatch
from moldau_jepsen.simulation.judge.rights import RightsWatch
from moldau_jepsen.simulation.judge.watch import StepGuard
from moldau_jepsen.workloads.access.quotas import METERED, WINDOWS
from moldau_jepsen.workloads.compacted import CLEANER_SETTINGS
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.share import settings_of
from moldau_jepsen.workloads.tiered.options import BROKER_SETTINGS, UNFINISHED_SECONDS
from moldau_jepsen.world.objects import LATE_SECONDS
from moldau_quorum.controller.cluster.features import INITIAL_FEATURES, TRANSACTION_VERSION
from moldau_quorum.log.port import LogDamagedError
from moldau_quorum.metadata.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from moldau_quorum.node.directory import NodeDirectoryError

if TYPE_CHECKING:
    import random
    import uuid
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau_jepsen.checkers import Anomaly
    from moldau_jepsen.faults.kinds import PlannedFault
    from moldau_jepsen.history import Operation
    from moldau_jepsen.simulation.campaign.options import RunOptions
    from moldau_jepsen.simulation.judge.watch import LogLines
    from moldau_jepsen.workloads.phases.liveness import Liveness
    from moldau_jepsen.world.world import World

WATCH_SECONDS = 0.05
DRAIN_SECONDS = 3_000.0
"""How long clients may take to end after they were asked to: longer than a pipe that gets on takes at most."""
TIDY_SECONDS = LATE_SECONDS + 2 * UNFINISHED_SECONDS + 30.0
"""Time after which the object store holds only what logs need: late effects, the delay of brokers, and their tasks."""
SYNCED_PROBABILITY = 0.6
VARIETY_PROBABILITY = 0.8


class Run:
    """One run in its world."""

    def __init__(self, world: World, options: RunOptions, logs: LogLines) -> None:
        self.world = world
        self.options = options
        draw = world.random("run")
        self.acks_all = str(options.workload.producer.get("acks", "all")) in ("all", "-1")
        # Values set by options are drawn all the same, so that a plan with its draws written out is the same run again.
        synced = draw.random() < SYNCED_PROBABILITY
        self.synced = synced if options.synced is None else options.synced
        has_quotas = drawn_quotas(world.seed, options)
        self.compaction = drawn_compaction(world.seed, options)
        self.sharing = drawn_sharing(world.seed, options)
        self.streams = drawn_streams(world.seed, options)
        settings = self._settings(draw, has_quotas=has_quotas)
        secured = drawn_security(world.seed, options)
        self.cluster = SimulatedCluster(world, self._shape(settings, secured=secured))
        self.rights = RightsWatch(self.cluster) if secured else None
        self.judge = ClusterInvariants(trio.current_time, options.only)
        self.observer = ClusterObserver(self.cluster, self.judge)
        self.remote = RemoteWatch(self.cluster, self.judge) if options.tiered else None
        self.history: list[Operation] = []
        # Drawn apart, so that it shifts no other draw.
        variety = world.random("variety").random() < VARIETY_PROBABILITY
        self.variety = variety if options.variety is None else options.variety
        self.recorder = Recorder(world.node(CLIENT_HOST).environment.clock, self._record, variety=self.variety)
        self.clients = Clients(
            world,
            self.cluster,
            options,
            draw,
            self.recorder,
            synced=self.synced,
            on_acknowledged=self._acknowledged,
            rights=self.rights,
            quotas=has_quotas,
            compaction=self.compaction,
        )
        verdict = None if self.clients.quotas is None else self.clients.quotas.verdict
        self.quotas = None if verdict is None else QuotaWatch(self.cluster, verdict, METERED)
        fault_scope = draw.choices(list(FaultScope), weights=(3, 1, 1))[0]
        fault_scope = fault_scope if options.fault_scope is None else options.fault_scope
        self.injector = FaultInjector(
            self.cluster,
            self.clients.hosts,
            synced=self.synced,
            fault_scope=fault_scope,
            replaceable=not (self.synced and self.clients.topics),  # see the replication factors of that workload
            prompt_links=self.clients.prompt_links,
        )
        self.plan: Sequence[PlannedFault] = plan_within(world.seed, options)
        # Drawn apart, so that it shifts no other draw.
        self.core_first = drawn_core_first(world.seed) if options.core_first is None else options.core_first
        self.transaction_level = drawn_transaction_level(world.seed, options)
        self.outside: Outside | None = None
        self.guard = StepGuard(world.agenda.clock)
        self.logs = logs
        self.violations: list[str] = []
        self.anomalies: tuple[Anomaly, ...] = ()
        self._client_failure = ""
        self._liveness: Liveness | None = None
        self._unread: list[Anomaly] = []

    def _shape(self, settings: Mapping[str, str], *, secured: bool) -> ClusterShape:
        seed, options = self.world.seed, self.options
        directories, racks = drawn_directories(seed, options), drawn_racks(seed, options)
        return replace(options.shape, directories=directories, settings=settings, secured=secured, racks=racks)

    def _settings(self, draw: random.Random, *, has_quotas: bool) -> dict[str, str]:
        settings = {**draw_settings(draw), **self.options.shape.settings}
        if self.compaction is not None:
            settings |= CLEANER_SETTINGS
        if self.sharing or drawn_share_administration(self.world.seed, self.options):
            settings |= settings_of(self.options.share_options)
        if self.streams:
            settings |= self.options.streams_options.settings
        if self.options.tiered:
            settings |= BROKER_SETTINGS
        if self.synced:
            settings["log.flush.interval.messages"] = "1"
        if drawn_timed_syncs(self.world.seed, self.options):
            settings["log.flush.interval.ms"] = "1"
        if has_quotas:
            settings["quota.window.num"] = str(WINDOWS)
        return settings

    def drawn(self) -> dict[str, object]:
        """Returns the values, drawn or set, of the fields of ``RunOptions`` that may be drawn."""
        return {
            "fault_seconds": self.options.fault_seconds,
            "synced": self.synced,
            "directories": self.cluster.shape.directories,
            "fault_scope": self.injector.fault_scope.value,
            "transactions": self.clients.transactions,
            "pipe": self.clients.pipe,
            "topics": self.clients.topics,
            "bank": self.clients.bank,
            "members": self.clients.members,
            "seeks": self.clients.seeks,
            "variety": self.variety,
            "core_first": self.core_first,
            "transaction_level": self.transaction_level,
            "security": self.rights is not None,
            "quotas": self.quotas is not None,
            "compaction": self.compaction is not None,
            "sharing": self.sharing,
            "streams": self.streams,
            "racks": self.cluster.shape.racks,
            "short_sequences": drawn_short_sequences(self.world.seed, self.options),
            "administration": self.clients.administered is not None,
            "share_administration": self.clients.share_administration is not None,
            "timed_syncs": drawn_timed_syncs(self.world.seed, self.options),
            "few_acks": self.clients.few_acks is not None,
            "tiered": self.remote is not None,
        }

    @property
    def holds_calls(self) -> bool:
        """Whether the plan holds single messages, so that each must be looked at."""
        return any(fault.kind is FaultKind.HELD_CALL for fault in self.plan)

    def situations(self) -> Counter[Situation]:
        """Returns the rare situations that clients and rules saw."""
        found = Counter({Situation.SEQUENCES_WRAPPED: self.judge.producers.wrapped})
        administered = self.clients.administered
        for name, count in administered.counts.items() if administered is not None else ():
            if name in ADMINISTERED:
                found[ADMINISTERED[name]] += count
        for name, count in self.clients.streams.situations().items():
            found[OF_STREAMS[name]] += count
        for name, count in self.remote.counts.items() if self.remote is not None else ():
            found[OF_TIERED[name]] += count
        shares = self.clients.share_administration
        for name, count in shares.counts.items() if shares is not None else ():
            if name in OF_SHARE_ADMINISTRATION:
                found[OF_SHARE_ADMINISTRATION[name]] += count
        return +found + self.injector.held_calls.situations

    def _record(self, operation: Operation) -> None:
        self.history.append(operation)
        if self.acks_all and operation.status is Status.OK and not operation.aborted:
            for send in operation.sends:
                if send.offset is not None:
                    self.judge.acknowledged_at(send.partition.topic, send.partition.partition, send.offset)
        if self._liveness is not None:
            self._liveness.saw(operation)
        self.world.trace.event("operation", operation.process, operation.kind.value, operation.status.value)

    def _acknowledged(self, topic: str, partition: int, topic_id: uuid.UUID, offset: int) -> None:
        self.judge.acknowledged(PartitionKey(topic, partition, topic_id.hex), offset)

    def collect(self) -> None:
        """Gathers what was found so far."""
        found: list[str] = []
        if not self.options.by_history:
            found += [str(violation) for violation in self.judge.violations]
            found += self.clients.wrong_answers()
        if not self.options.only:
            found += self._failures()
        self.violations = [*found, *(text for text in self.violations if text.startswith("at the end"))]

    def _failures(self) -> list[str]:
        """Failures that no rule names: of requests, tasks, nodes, directories and clients."""
        found = [f"failed request: {line}" for line in self.logs.failures]
        if self.guard.found is not None:
            found.append(self.guard.found)
        for name, failure in self.world.failures:
            node_id = int(name.rpartition("-")[2])
            of_disk = all(isinstance(error, OSError | LogStorageError) for error in leaves(failure))
            lost = all(isinstance(error, LogDamagedError | NodeDirectoryError) for error in leaves(failure))
            if lost and node_id in self.injector.log_losses.victims:
                continue
            may_fail = self.injector.may_fail(node_id)
            if not (of_disk and len(may_fail) == len(self.cluster.log_directories(node_id))):
                found.append(f"node-failed: {name}: {place_of(failure)}")
        found += [
            f"directory-failed: {text}, which no fault affected" for text in self.injector.unexplained_directories()
        ]
        if self._client_failure:
            found.append(f"client-failed: {self._client_failure}")
        return found

    async def run(self) -> None:
        """Runs all phases, or as many as pass.

        An exception that leaves them is a violation like another: clients answer every error of the cluster, so it is
        the client library, or a workload, that is wrong.
        """
        watchers = self.world.agenda.watchers
        own = [self.observer.turn_ended, self.guard.turn_ended]
        own += [watch.turn_ended for watch in (self.remote, self.rights, self.quotas) if watch is not None]
        watchers += own
        try:
            async with trio.open_nursery() as nursery:
                self.guard.on_found = nursery.cancel_scope.cancel
                nursery.start_soon(self._watch, nursery.cancel_scope)
                try:
                    await self._phases()
                except* Exception as group:  # noqa: BLE001 - reported as a violation, with its place
                    self._client_failure = place_of(group)
                nursery.cancel_scope.cancel()
            self.collect()
        finally:
            for watcher in own:
                watchers.remove(watcher)
            self.guard.end()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Ends the run soon after the first violation."""
        while True:
            await trio.sleep(WATCH_SECONDS)
            self.collect()
            if self.violations:
                scope.cancel()

    async def _phases(self) -> None:
        options, trace, clients = self.options, self.world.trace, self.clients
        try:
            self.cluster.start_all()
            await self.cluster.wait_healthy(options.forming_seconds)
            if self.rights is not None:
                await self.cluster.open_to_clients(clients.environment, clients.acls)
            if self.transaction_level != INITIAL_FEATURES[TRANSACTION_VERSION]:
                await self.cluster.set_transaction_level(clients.environment, self.transaction_level)
            await clients.create_topics()
            trace.note("phase", "faults", "synced" if self.synced else "unsynced")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.run)
                self.injector.schedule(self.plan, trio.current_time())
                await trio.sleep(options.fault_seconds)
                stuck = await self._heal()
                clients.stop()
                nursery.cancel_scope.deadline = trio.current_time() + DRAIN_SECONDS
                if stuck or self._unread:
                    nursery.cancel_scope.cancel()
            if not stuck and not self._unread and nursery.cancel_scope.cancelled_caught:
                late = ", ".join(clients.under_way)
                stuck = [f"clients had not ended {DRAIN_SECONDS:g} s after they were asked to: {late}"]
            elif not stuck and not self._unread:
                stuck = await self._read_in_group("readers-at-the-end")
            if stuck and not options.by_history and options.may_convict("stuck"):
                self._stuck(stuck)
                return
            if self._unread:
                self.anomalies = tuple(self._unread[:VIOLATIONS_SHOWN_MAX])
                self.violations = [f"at the end: {one.kind.value}: {one.text}" for one in self.anomalies]
                return
            trace.note("phase", "final read")
            await clients.final_read()
            if self.remote is not None and not options.by_history and options.may_convict("remote-orphan"):
                await self.remote.wait_tidy(TIDY_SECONDS)
        except* ClusterNotReadyError as group:
            if options.may_convict("stuck"):
                self._stuck([str(error) for error in leaves(group)])
        if not self.violations:
            self.violations, self.anomalies = clients.judge(self.history)

    def _stuck(self, texts: Sequence[str]) -> None:
        """Reports what did not end, and then what clients had seen: it may say why."""
        seen, self.anomalies = self.clients.judge(self.history, is_final=False)
        self.violations = [*(f"at the end: stuck: {text}" for text in texts), *seen]

    async def _heal(self) -> list[str]:
        """Ends all faults; returns the parts that have not recovered in time.

        In some runs a core of the nodes is healed first, and must get on by itself.
        """
        seconds = self.options.healing_seconds
        if self.core_first:
            outside = self.outside = draw_outside(self.injector, self.world.random("core"))
            self.world.trace.note("phase", "core", f"without {list(outside.nodes)}", "cut" if outside.cut else "down")
            self.injector.end_all(outside)
            stuck = await self._converge(lambda: self.cluster.wait_healthy(seconds, outside), outside)
            # Damaged records cannot be read until their disk is replaced, which belongs to the whole cluster's healing.
            groups, _ = self._serves(outside)
            if not stuck and groups and not self.injector.targets.safekeeping.rotten:
                stuck = await self._read_in_group("readers-in-the-core")
            if self._unread:
                return []
            if stuck:
                return [f"in the core, without {list(outside.nodes)}: {text}" for text in stuck]
        self.world.trace.note("phase", "healing")
        self.injector.end_all()
        return await self._converge(self._wait_whole)

    def _serves(self, outside: Outside) -> tuple[bool, bool]:
        """Returns whether the cluster without those outside serves groups, and transactions.

        It cannot serve the first of them where too few brokers are left for the replicas of the topic that holds them:
        Kafka does not make it then. Transactions commit offsets of groups.
        """
        groups = self.cluster.can_have_topic(OFFSETS_TOPIC, outside)
        return groups, groups and self.cluster.can_have_topic(TRANSACTIONS_TOPIC, outside)

    async def _read_in_group(self, group: str) -> list[str]:
        """Reads every topic from the beginning, as a new group; returns where that did not end.

        What it lacks of all that was acknowledged when it began goes to ``_unread``.
        """
        if self.options.by_history:
            return []  # what convicts there are the checkers of the history alone
        self.world.trace.note("phase", "group read", group)
        begun = len(self.history)
        read = await self.clients.read_in_group(group, self.options.healing_seconds)
        if read.unread:
            return [read.unread]
        if self.options.check.final_phase and self.options.may_convict(AnomalyKind.UNSEEN.value):
            self._unread = check_read(self.history[:begun], read.seen, f"group {group}")
        return []

    async def _wait_whole(self) -> None:
        seconds = self.options.healing_seconds
        await self.injector.log_losses.wait_replaced(seconds)
        await self.injector.moves.restore(seconds)
        await self.injector.replace_disks(seconds)
        await self.cluster.wait_healthy(seconds)

    async def _converge(self, wait: Callable[[], Awaitable[None]], outside: Outside = NONE_OUTSIDE) -> list[str]:
        """Waits until the cluster has recovered and serves its clients; returns the parts that do not."""
        stuck: list[str] = []
        try:
            await wait()
        except* ClusterNotReadyError as group:
            stuck = [str(error) for error in leaves(group)]
        if stuck:
            return stuck
        self.world.trace.note("phase", "healthy")
        groups, transactions = self._serves(outside)
        self._liveness = self.clients.liveness(groups=groups, transactions=transactions)
        missing = await self._liveness.wait(self.options.healing_seconds)
        self.cluster.assert_kept_down()
        return [missing] if missing else []
