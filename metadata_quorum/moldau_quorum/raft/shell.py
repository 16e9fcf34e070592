"""The ``raft`` engine behind the ``MetadataLog`` port: a ``RaftNode`` driven by trio.

    driver   inbox, clock -> node -> messages to the links; wakes whoever waits
    syncer   makes writes durable outside the event loop, one sync for all that was written meanwhile
    jobs     snapshots, step by step
    links    one task per other member (``peers``)

Only these tasks and the callers of the port touch the node, never with a checkpoint in between, so each of its steps is
atomic. A failing disk ends ``run`` with the error; what was not durable was promised to nobody.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.log import EventLogger
from moldau.runtime.sync import Signal
from moldau_quorum.log_engine import (
    ZERO_UUID,
    CommittedRange,
    Leadership,
    LogBusyError,
    LogPosition,
    MembershipChangeError,
    MetadataLogError,
    NotLeaderError,
    OffsetOutOfRangeError,
    QuorumStatus,
    SnapshotReader,
    VoterEndpoint,
)
from moldau_quorum.raft.node import Pending, RaftNode
from moldau_quorum.raft.peers import PeerLink

if TYPE_CHECKING:
    import uuid
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau.runtime.environment import Buffer, Connection, Environment
    from moldau_quorum.log_engine import MetadataLogConfig, StateMachine
    from moldau_quorum.raft.engine_node import EngineNode
    from moldau_quorum.raft.snapshot_jobs import Job
    from moldau_quorum.raft.types import Configuration

CATCH_UP_TIMEOUT_MS: Final = 60_000
"""How long a new voter may take to catch up before it is dropped again."""
SLEEP_MS_MIN: Final = 1.0


class RaftProposal:
    """See ``Proposal`` of the port."""

    __slots__ = ("_event", "_pending")

    def __init__(self, begin: Callable[[Callable[[], None]], Pending]) -> None:
        """``begin(notify)`` makes the proposal."""
        self._event = trio.Event()
        self._pending = begin(self._event.set)

    @property
    def position(self) -> LogPosition:
        """See ``Proposal``."""
        return self._pending.position

    async def wait_committed(self) -> LogPosition:
        """See ``Proposal``."""
        await self._event.wait()
        if self._pending.error is not None:
            raise self._pending.error
        return self._pending.position


class RaftLog:
    """See ``MetadataLog``."""

    def __init__(self, environment: Environment, config: MetadataLogConfig, machine: StateMachine) -> None:
        """Does nothing before ``run``."""
        self._environment = environment
        self._config = config
        self._machine = machine
        self._node: EngineNode | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self.inbox_dropped = 0
        """Messages that did not fit."""
        self._kick = trio.Event()
        self._sync_wanted = trio.Event()
        self._job_wanted = trio.Event()
        self._progressed = Signal()  # something was applied, or leadership or a member's progress changed
        self._links: dict[int, PeerLink] = {}
        self._linked: Configuration | None = None
        self._changing = False
        self._failure: Exception | None = None
        self._log = EventLogger("moldau.metadata-log", node=config.node_id)

    # --- running

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See ``MetadataLog``."""
        assert self._node is None, "an engine runs once"
        environment = self._environment
        seed = environment.random.getrandbits(64)
        node = await environment.disk.offload(lambda: self._open_node(seed, environment.clock.monotonic_ms()))
        try:
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
        node, clock = self.node, self._environment.clock
        while True:
            self._kick = trio.Event()
            now_ms = clock.monotonic_ms()
            self._take_inbox(node, now_ms)
            node.tick(now_ms)
            before = node.leadership
            node.process()
            if node.leadership != before:
                self._log_leadership(node.leadership)
            self._relink(nursery)
            for recipient, body in node.take_outbox():
                link = self._links.get(recipient)
                if link is not None:
                    link.send(body)
            if node.wants_sync:
                self._sync_wanted.set()
            if node.has_job:
                self._job_wanted.set()
            self._progressed.notify()
            with trio.move_on_after(max(SLEEP_MS_MIN, node.next_deadline_ms() - now_ms) / 1000):
                await self._kick.wait()

    def _take_inbox(self, node: EngineNode, now_ms: float) -> None:
        inbox, self._inbox, self._inbox_bytes = self._inbox, deque(), 0
        for body in inbox:
            sender = node.receive(body, now_ms)
            if sender is None:
                self._log.warning("quorum-message-refused", size=len(body))
            elif sender in self._links:
                self._links[sender].heard_ms = now_ms

    async def _sync_loop(self) -> None:
        node, disk = self.node, self._environment.disk
        while True:
            work = node.begin_sync()
            if work is None:
                self._sync_wanted = trio.Event()
                await self._sync_wanted.wait()
                continue
            await disk.offload(work.run)
            node.sync_done(work)
            self._kick.set()

    async def _job_loop(self) -> None:
        node = self.node
        while True:
            job = node.take_job()
            if job is None:
                self._job_wanted = trio.Event()
                await self._job_wanted.wait()
                continue
            await self._run_job(job)
            self._kick.set()

    async def _run_job(self, job: Job) -> None:
        while job.step():
            await trio.lowlevel.checkpoint()
        work = job.blocking_work()
        if work is not None:
            await self._environment.disk.offload(work)
        job.finish()

    def _relink(self, nursery: trio.Nursery) -> None:
        """Keeps one link to each member, and to the voters that were configured."""
        configuration = self.node.configuration
        if configuration is self._linked:
            return
        self._linked = configuration
        wanted = dict(self._config.voters)
        wanted.update({member.voter_id: (member.host, member.port) for member in configuration.members()})
        wanted.pop(self._config.node_id, None)
        for peer_id in [key for key, link in self._links.items() if wanted.get(key) != link.address]:
            self._links.pop(peer_id).scope.cancel()
        for peer_id, address in sorted(wanted.items()):
            if peer_id not in self._links:
                link = PeerLink(
                    self._environment,
                    node_id=self._config.node_id,
                    peer_id=peer_id,
                    address=address,
                    connect=self._config.connect or self._connect,
                    limits=self._config.limits,
                    on_refused=self._peer_refused,
                )
                self._links[peer_id] = link
                nursery.start_soon(link.run)

    async def _connect(self, host: str, port: int) -> Connection:
        return await self._environment.network.connect(host, port)

    def _peer_refused(self, peer_id: int) -> None:
        self.node.peer_refused(peer_id, self._environment.clock.monotonic_ms())
        self._kick.set()

    def _log_leadership(self, leadership: Leadership) -> None:
        self._log.info(
            "metadata-leadership", leader=leadership.leader_id, epoch=leadership.epoch, active=leadership.active
        )

    @property
    def node(self) -> EngineNode:
        """The running node."""
        assert self._node is not None, "the engine runs"
        return self._node

    # --- the port

    def handle_message(self, body: Buffer) -> None:
        """See ``MetadataLog``."""
        if self._inbox_bytes + len(body) > self._config.limits.inbox_bytes_max:
            self.inbox_dropped += 1
            return
        self._inbox.append(bytes(body))
        self._inbox_bytes += len(body)
        self._kick.set()

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

    # --- membership

    async def add_voter(self, voter: VoterEndpoint) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            if voter.voter_id in configuration.voters:
                raise MembershipChangeError(f"node {voter.voter_id} is a voter already")
            if configuration.learners.get(voter.voter_id) != voter:
                await self._change(node, configuration.with_learner(voter))
            with trio.move_on_after(CATCH_UP_TIMEOUT_MS / 1000):
                await self._progressed.wait_until(lambda: self._caught_up(node, voter.voter_id))
            if not self._caught_up(node, voter.voter_id):
                await self._change(node, node.configuration.without(voter.voter_id))
                raise MembershipChangeError(
                    f"node {voter.voter_id} at {voter.host}:{voter.port} did not catch up within "
                    f"{CATCH_UP_TIMEOUT_MS} ms, and was not added"
                )
            await self._change(node, node.configuration.with_voter(voter.voter_id))
        finally:
            self._changing = False

    async def remove_voter(self, voter_id: int, directory_id: uuid.UUID = ZERO_UUID) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            member = configuration.member(voter_id)
            if member is None or (
                ZERO_UUID not in (directory_id, member.directory_id) and member.directory_id != directory_id
            ):
                raise MembershipChangeError(f"node {voter_id} with directory {directory_id} is no voter")
            if voter_id in configuration.voters and len(configuration.voters) == 1:
                raise MembershipChangeError(f"node {voter_id} is the last voter")
            await self._change(node, configuration.without(voter_id))
        finally:
            self._changing = False

    async def update_voter(self, voter: VoterEndpoint) -> None:
        """See ``MetadataLog``."""
        node = self._begin_change()
        try:
            configuration = node.configuration
            known = configuration.voters.get(voter.voter_id)
            if known is None or (
                ZERO_UUID not in (voter.directory_id, known.directory_id) and voter.directory_id != known.directory_id
            ):
                raise MembershipChangeError(f"node {voter.voter_id} with directory {voter.directory_id} is no voter")
            if (known.host, known.port) != (voter.host, voter.port):
                await self._change(node, configuration.with_address(voter.voter_id, voter.host, voter.port))
        finally:
            self._changing = False

    def _begin_change(self) -> EngineNode:
        if self._node is None or not self._node.leadership.active:
            raise NotLeaderError(self.leadership.leader_id, self.leadership.epoch)
        if self._changing:
            raise MembershipChangeError("another change of the voters is under way")
        self._changing = True
        return self._node

    async def _change(self, node: EngineNode, configuration: Configuration) -> None:
        try:
            change = RaftProposal(lambda notify: node.change_configuration(configuration, notify=notify))
        except LogBusyError as error:
            raise MembershipChangeError(str(error)) from error
        self._kick.set()
        await change.wait_committed()

    def _caught_up(self, node: EngineNode, member: int) -> bool:
        """Whether a learner holds all that is committed. A node that does not lead any more must say so."""
        match_index = node.member_match(member)
        return match_index is not None and match_index >= node.applied_index

    def _best_successor(self, node: EngineNode, voters: Sequence[int]) -> int:
        """The voter that is furthest, of those that answered lately if any did: in an idle log a dead one is as far."""
        clock = self._environment.clock
        wall_ms = clock.wall_ms()
        lately_ms = wall_ms - self._config.timing.election_timeout_ms_min
        heard_ms = {
            row.voter.voter_id: row.last_fetch_timestamp_ms
            for row in node.status(clock.monotonic_ms(), wall_ms).replicas
        }
        return max(voters, key=lambda voter: (heard_ms[voter] >= lately_ms, node.member_match(voter) or 0))

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        """See ``MetadataLog``."""
        node = self._node
        if node is None or not node.leadership.active:
            raise NotLeaderError(self.leadership.leader_id, self.leadership.epoch)
        epoch = node.epoch
        voters = [voter for voter in sorted(node.configuration.voters) if voter != self.node_id]
        if target_id is None and voters:
            target_id = self._best_successor(node, voters)
        if target_id == self.node_id:
            return
        if target_id is None or target_id not in voters:
            raise MembershipChangeError(f"node {target_id} is no voter, so it cannot lead")
        node.transfer(target_id)
        self._kick.set()
        with trio.move_on_after(2 * self._config.timing.election_timeout_ms_max / 1000):
            await self._progressed.wait_until(lambda: self.leadership.epoch > epoch and self.leadership.leader_id >= 0)
        if self.leadership.epoch == epoch or self.leadership.leader_id != target_id:
            raise MembershipChangeError(f"node {target_id} did not take the leadership over in time")
