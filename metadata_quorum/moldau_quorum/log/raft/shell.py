"""The ``raft`` engine behind the ``MetadataLog`` port: a ``RaftNode`` driven by trio.

    driver   inbox, clock -> node -> messages to the links; wakes waiting callers
    syncer   makes writes durable outside the event loop, one sync for all that was written meanwhile
    jobs     snapshots, step by step
    links    one task per other member (``peers``); ``sessions`` judges what comes in
    changes  of the membership (``voter_changes``)

Only these tasks and the callers of the port touch the node, never with a checkpoint in between, so each of its steps is
atomic. A failing disk ends ``run`` with the error; no promise was made for data that is not durable. A leader whose
disk answers no sync for a while hands the leadership over, because it applies nothing that is not durable on its own
disk; a member that does not lead delays nothing.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.net.layers import logs_in
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau.runtime.telemetry.metrics import Histogram
from moldau.values import ZERO_UUID, join_address
from moldau_quorum.log.port import (
    CommittedRange,
    Leadership,
    LogBusyError,
    LogDamagedError,
    LogPosition,
    MembershipChangeError,
    MetadataLogError,
    NotLeaderError,
    OffsetOutOfRangeError,
    QuorumStatus,
    SnapshotReader,
    VoterEndpoint,
    replacement_advice,
)
from moldau_quorum.log.raft.envelope import MessageError, WrongDirectoryError
from moldau_quorum.log.raft.leader_watch import LeaderWatch
from moldau_quorum.log.raft.node import RaftNode
from moldau_quorum.log.raft.peer_addresses import PeerAddresses
from moldau_quorum.log.raft.peers import PeerLink
from moldau_quorum.log.raft.proposals import RaftProposal
from moldau_quorum.log.raft.sessions import Session, Sessions
from moldau_quorum.log.raft.voter_changes import VoterChanges

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from moldau.runtime.ports.environment import Connection, Environment
    from moldau_quorum.log.port import MetadataLogConfig, StateMachine
    from moldau_quorum.log.raft.core.types import Configuration
    from moldau_quorum.log.raft.engine_node import EngineNode
    from moldau_quorum.log.raft.storage.snapshot_jobs import Job

SLEEP_MS_MIN: Final = 1.0


class RaftLog:
    """See ``MetadataLog``."""

    def __init__(self, environment: Environment, config: MetadataLogConfig, machine: StateMachine) -> None:
        """Does nothing before ``run``."""
        self._environment = environment
        self._config = config
        self._machine = machine
        self._node: EngineNode | None = None
        self._inbox: deque[tuple[Session, Callable[[float], None]]] = deque()
        self._inbox_bytes = 0
        self._inbox_dropped = 0
        self.sync_times = Histogram()
        """Milliseconds until appended entries were durable, as the event loop sees it."""
        self._kick = trio.Event()
        self._sync_wanted = trio.Event()
        self._hangs_from_ms = math.inf
        self._hand_over_ms = math.inf
        self._job_wanted = trio.Event()
        self._progressed = Signal()  # something was applied, or leadership or a member's progress changed
        self._links: dict[int, PeerLink] = {}
        self._linked: tuple[Configuration, int] | None = None
        self._addresses = PeerAddresses(config.node_id, config.voters)
        self._leader_watch = LeaderWatch(2 * config.timing.election_timeout_ms_max)
        self._failure: Exception | None = None
        self._log = EventLogger("moldau.metadata-log", node=config.node_id)
        self._sessions = Sessions(
            environment, node=lambda: self._node, links=self._links, enqueue=self._enqueue, logger=self._log
        )
        self._changes = VoterChanges(
            environment,
            config,
            node=lambda: self._node,
            progressed=self._progressed,
            kick=self._wake,
            logger=self._log,
        )
        self.add_voter = self._changes.add_voter
        self.remove_voter = self._changes.remove_voter
        self.update_voter = self._changes.update_voter
        self.transfer_leadership = self._changes.transfer_leadership

    # --- running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See ``MetadataLog``."""
        assert self._node is None, "an engine runs once"
        environment = self._environment
        seed = environment.random.getrandbits(64)
        try:
            node = await environment.disk.offload(lambda: self._open_node(seed, environment.clock.monotonic_ms()))
        except LogDamagedError as error:
            raise LogDamagedError(f"{error}; {replacement_advice(self.node_id)}") from error
        try:
            if self._config.on_opened is not None:
                await environment.disk.offload(self._config.on_opened)
            job = node.restore_job()
            if job is not None:
                await self._run_job(job)
            self._node = node
            self._log.info(
                "metadata-log-opened",
                epoch=node.epoch,
                snapshot=node.applied_index,
                torn_bytes=node.statistics().torn_bytes,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._guarded, nursery.cancel_scope, self._sync_loop)
                nursery.start_soon(self._guarded, nursery.cancel_scope, self._job_loop)
                nursery.start_soon(self._guarded, nursery.cancel_scope, lambda: self._drive(nursery))
                nursery.start_soon(self._changes.drop_abandoned)
                task_status.started()
        finally:
            node.close()
            self._progressed.notify()
        if self._failure is not None:
            raise self._failure

    def _open_node(self, seed: int, now_ms: float) -> EngineNode:
        return RaftNode(self._environment.disk, self._config, self._machine, seed=seed, now_ms=now_ms)

    async def _guarded(self, scope: trio.CancelScope, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except (OSError, MetadataLogError) as error:
            self._log.error("metadata-log-failed", error=error)
            self._failure = self._failure or error
            scope.cancel()

    async def _drive(self, nursery: trio.Nursery) -> None:
        node, clock, watch = self.node, self._environment.clock, self._leader_watch
        watch.leader_changed(node.leadership.leader_id, clock.monotonic_ms())
        while True:
            self._kick = trio.Event()
            now_ms = clock.monotonic_ms()
            self._take_inbox(now_ms)
            node.tick(now_ms)
            before = node.leadership
            node.process()
            if node.leadership != before:
                self._log_leadership(node.leadership)
                watch.leader_changed(node.leadership.leader_id, now_ms)
            if now_ms >= watch.due_ms and not node.has_more:  # a node that catches up learns its leader at the end
                self._report_missing_leader(now_ms)
            self._relink(nursery)
            for recipient, body in node.take_outbox():
                link = self._links.get(recipient)
                if link is not None:
                    link.send(body)
            if node.wants_sync:
                self._sync_wanted.set()
            if now_ms >= self._hand_over_ms and node.leadership.active:
                self._hand_over_ms = now_ms + self._config.sync_patience_ms
                nursery.start_soon(self._hand_over)
            if node.has_job:
                self._job_wanted.set()
            self._progressed.notify()
            if node.has_more:
                self._kick.set()
            with trio.move_on_after(max(SLEEP_MS_MIN, node.next_deadline_ms() - now_ms) / 1000):
                await self._kick.wait()

    def _enqueue(self, session: Session, take: Callable[[float], None], size: int) -> None:
        """Keeps a checked message for the driver, or drops it: Raft repeats what matters."""
        if self._inbox_bytes + size > self._config.limits.inbox_bytes_max:
            self._inbox_dropped += 1
            if self._inbox_dropped & (self._inbox_dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
                self._log.warning("quorum-inbox-full", bytes=self._inbox_bytes, dropped=self._inbox_dropped)
            return
        self._inbox.append((session, take))
        self._inbox_bytes += size
        self._wake()

    def _wake(self) -> None:
        self._kick.set()

    def _take_inbox(self, now_ms: float) -> None:
        inbox, self._inbox, self._inbox_bytes = self._inbox, deque(), 0
        for session, take in inbox:
            try:
                take(now_ms)
            except WrongDirectoryError as error:
                self._sessions.ignore(error)
                continue
            except MessageError as error:
                self._sessions.refuse(session, str(error))
                continue
            link = self._links.get(session.sender if session.sender is not None else -1)
            if link is not None:
                link.heard_ms = now_ms

    async def _sync_loop(self) -> None:
        node, disk, clock = self.node, self._environment.disk, self._environment.clock
        while True:
            work = node.begin_sync()
            if work is None:
                self._sync_wanted = trio.Event()
                await self._sync_wanted.wait()
                continue
            begun_ms = clock.monotonic_ms()
            self._hangs_from_ms = self._hand_over_ms = begun_ms + (self._config.sync_patience_ms or math.inf)
            await disk.offload(work.run)
            self._hangs_from_ms = self._hand_over_ms = math.inf
            self.sync_times.observe(clock.monotonic_ms() - begun_ms)
            node.sync_done(work)
            self._kick.set()

    async def _hand_over(self) -> None:
        """Gives the leadership away while the disk of this node answers no sync."""
        self._log.warning("metadata-log-hangs", patience_ms=self._config.sync_patience_ms)
        try:
            await self.transfer_leadership()
        except (MembershipChangeError, NotLeaderError) as error:
            self._log.warning("leadership-not-handed-over", error=error)

    async def _job_loop(self) -> None:
        node = self.node
        while True:
            job = node.take_job()
            if job is None:
                self._job_wanted = trio.Event()
                await self._job_wanted.wait()
                continue
            await self._run_job(job)
            if node.snapshot_refusal is not None:
                self._log.error("snapshot-refused", leader=node.leadership.leader_id, reason=node.snapshot_refusal)
                node.snapshot_refusal = None
            self._kick.set()

    async def _run_job(self, job: Job) -> None:
        while job.step():
            await trio.lowlevel.checkpoint()
        work = job.blocking_work()
        if work is not None:
            await self._environment.disk.offload(work)
        job.finish()

    def _relink(self, nursery: trio.Nursery) -> None:
        """Keeps one link to each member, to the voters that were configured, and to those that others have named."""
        configuration = self.node.configuration
        changes = self._addresses.changes
        if self._linked is not None and (configuration is self._linked[0] and changes == self._linked[1]):
            return
        self._linked = configuration, changes
        wanted = self._addresses.of(configuration)
        for peer_id in [key for key, link in self._links.items() if wanted.get(key) != link.address]:
            self._links.pop(peer_id).scope.cancel()
        for peer_id, address in sorted(wanted.items()):
            if peer_id not in self._links:
                link = PeerLink(
                    self._environment,
                    node_id=self._config.node_id,
                    peer_id=peer_id,
                    address=address,
                    connect=self._config.connect or partial(self._connect, peer_id),
                    limits=self._config.limits,
                    envelope=partial(self.node.envelope, peer_id),
                    on_refused=self._peer_refused,
                    on_connected=self._sessions.linked,
                    logger=self._log,
                )
                self._links[peer_id] = link
                nursery.start_soon(link.run)

    async def _connect(self, peer_id: int, host: str, port: int) -> Connection:
        network = self._environment.network
        if logs_in(network):
            connection, authenticated = await network.open_authenticated(host, port, None)
            if peer_id in self._links:
                self._links[peer_id].renew_at_ms = authenticated.again_at_ms
            return connection
        return await network.connect(host, port)

    def _peer_refused(self, peer_id: int) -> None:
        self.node.peer_refused(peer_id, self._environment.clock.monotonic_ms())
        self._kick.set()

    def _log_leadership(self, leadership: Leadership) -> None:
        self._log.info(
            "metadata-leadership", leader=leadership.leader_id, epoch=leadership.epoch, active=leadership.active
        )

    def _report_missing_leader(self, now_ms: float) -> None:
        node, config = self.node, self._config
        report = self._leader_watch.report(
            now_ms,
            node_id=config.node_id,
            configuration=node.configuration,
            heard_ms={peer_id: link.heard_ms for peer_id, link in self._links.items()},
            founds=config.directory_id != ZERO_UUID and node.status(now_ms, 0).log_end_index == 0,
        )
        if report is not None:
            self._log.warning(
                "no-quorum-leader",
                epoch=node.epoch,
                silent_ms=report.silent_ms,
                votes_needed=report.votes_needed,
                unanswered=",".join(report.unanswered),
            )

    @property
    def node(self) -> EngineNode:
        """The running node."""
        assert self._node is not None, "the engine runs"
        return self._node

    # --- the port

    def accept_session(self, refusal: Callable[[str], str | None] | None = None) -> Session:
        """See ``MetadataLog``."""
        return self._sessions.accept(refusal)

    @property
    def peers(self) -> Mapping[int, tuple[str, int]]:
        """See ``MetadataLog``."""
        return {peer_id: link.address for peer_id, link in sorted(self._links.items())}

    def learn_voters(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """See ``MetadataLog``."""
        for voter_id, (host, port) in self._addresses.learn(self.node.configuration, addresses).items():
            self._log.info("voter-learned", voter=voter_id, address=join_address(host, port))
            self._wake()

    @property
    def node_id(self) -> int:
        """See ``MetadataLog``."""
        return self._config.node_id

    @property
    def leadership(self) -> Leadership:
        """See ``MetadataLog``."""
        return self._node.leadership if self._node is not None else Leadership()

    async def wait_leadership_change(self, seen: Leadership) -> Leadership:
        """See ``MetadataLog``."""
        await self._progressed.wait_until(lambda: self.leadership != seen)
        return self.leadership

    def propose_nowait(self, data: bytes, *, epoch: int) -> RaftProposal:
        """See ``MetadataLog``."""
        if self._node is None:
            raise NotLeaderError(-1, 0)
        node = self._node
        proposal = RaftProposal(lambda notify: node.propose(data, epoch=epoch, notify=notify))
        self._kick.set()
        return proposal

    async def propose(self, data: bytes, *, epoch: int) -> LogPosition:
        """See ``MetadataLog``."""
        while True:
            try:
                proposal = self.propose_nowait(data, epoch=epoch)
            except LogBusyError:
                await self._progressed.wait()
            else:
                return await proposal.wait_committed()

    async def read_barrier(self) -> int:
        """See ``MetadataLog``."""
        if self._node is None:
            raise NotLeaderError(-1, 0)
        node = self._node
        while True:
            try:
                read = RaftProposal(node.read)
            except LogBusyError:
                await self._progressed.wait()
                continue
            self._kick.set()
            await read.wait_committed()
            return node.applied_index

    @property
    def high_watermark(self) -> int:
        """See ``MetadataLog``."""
        return self._node.applied_index if self._node is not None else 0

    @property
    def log_start_index(self) -> int:
        """See ``MetadataLog``."""
        return self._node.log_start_index if self._node is not None else 1

    @property
    def hangs(self) -> bool:
        """See ``MetadataLog``."""
        return self._environment.clock.monotonic_ms() >= self._hangs_from_ms

    async def wait_for_commit(self, index: int) -> int:
        """See ``MetadataLog``."""
        await self._progressed.wait_until(lambda: self.high_watermark >= index)
        return self.high_watermark

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        """See ``MetadataLog``."""
        if self._node is None:
            raise OffsetOutOfRangeError(from_index, 1)
        return self._node.read_committed(from_index, bytes_max)

    def open_snapshot(self) -> SnapshotReader | None:
        """See ``MetadataLog``."""
        return self._node.open_snapshot() if self._node is not None else None

    def status(self) -> QuorumStatus:
        """See ``MetadataLog``."""
        clock = self._environment.clock
        return self.node.status(clock.monotonic_ms(), clock.wall_ms())

    @property
    def voters(self) -> Mapping[int, VoterEndpoint]:
        """See ``MetadataLog``."""
        return self.node.configuration.voters
