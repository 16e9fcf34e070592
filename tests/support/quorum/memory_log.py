"""A metadata log of one node in memory, for tests of what stands on the ``MetadataLog`` port."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

import trio

from moldau.runtime.tasks.sync import Signal
from moldau.values import ZERO_UUID
from moldau_quorum.log.port import (
    CommittedEntry,
    CommittedRange,
    Leadership,
    LogPosition,
    MembershipChangeError,
    NotLeaderError,
    OutcomeUnknownError,
    QuorumStatus,
    VoterEndpoint,
    VoterStatus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from moldau.runtime.ports.environment import Environment
    from moldau_quorum.log.port import MetadataLogConfig, StateMachine


@dataclass
class MemoryProposal:
    position: LogPosition
    lost: bool = False
    committed: bool = False
    changed: Signal = field(default_factory=Signal)

    async def wait_committed(self) -> LogPosition:
        await self.changed.wait_until(lambda: self.committed or self.lost)
        if self.lost:
            raise OutcomeUnknownError("leadership was lost")
        return self.position


class MemoryLog:
    """Leads at once; ``hold`` stops commits, ``resign`` and ``lead`` move leadership away and back."""

    def __init__(self, environment: Environment, config: MetadataLogConfig, machine: StateMachine) -> None:
        self._config = config
        self._machine = machine
        self.entries: list[CommittedEntry] = []
        self.applied = 0
        self.hold = False
        self.leadership = Leadership()
        self._pending: list[MemoryProposal] = []
        self._changed = Signal()

    @property
    def node_id(self) -> int:
        return self._config.node_id

    @property
    def hangs(self) -> bool:
        return False

    @property
    def log_start_index(self) -> int:
        return 1

    @property
    def high_watermark(self) -> int:
        return self.applied

    @property
    def voters(self) -> Mapping[int, VoterEndpoint]:
        return {n: VoterEndpoint(voter_id=n, host=h, port=p) for n, (h, p) in self._config.voters.items()}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        self.lead()
        while True:
            while self.applied < len(self.entries) and not self.hold:
                self._apply_next()
            await self._changed.wait()

    def _apply_next(self) -> None:
        entry = self.entries[self.applied]
        self.applied += 1
        self._machine.apply(entry)
        for proposal in self._pending:
            if proposal.position.index == entry.index:
                proposal.committed = True
                proposal.changed.notify()
        self._pending = [p for p in self._pending if not p.committed]
        self._changed.notify()

    def release(self) -> None:
        self.hold = False
        self._changed.notify()

    def lead(self) -> None:
        while self.applied < len(self.entries):
            self._apply_next()
        self._lead(Leadership(leader_id=self.node_id, epoch=self.leadership.epoch + 1, active=True))

    def resign(self, *, lose: bool) -> None:
        """Loses leadership, and with ``lose`` all entries that are not committed."""
        if lose:
            del self.entries[self.applied :]
            for proposal in self._pending:
                proposal.lost = True
                proposal.changed.notify()
            self._pending = []
        self._lead(Leadership(leader_id=-1, epoch=self.leadership.epoch, active=False))

    def _lead(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self._machine.leadership_changed(leadership)
        self._changed.notify()

    def accept_session(self, refusal: Callable[[str], str | None] | None = None) -> NoReturn:
        raise AssertionError("a single node has no peers")

    @property
    def peers(self) -> Mapping[int, tuple[str, int]]:
        return {}

    def learn_voters(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        raise AssertionError("a single node has no peers")

    async def wait_leadership_change(self, seen: Leadership) -> Leadership:
        await self._changed.wait_until(lambda: self.leadership != seen)
        return self.leadership

    def propose_nowait(self, data: bytes, *, epoch: int) -> MemoryProposal:
        if not self.leadership.active or epoch != self.leadership.epoch:
            raise NotLeaderError(self.leadership.leader_id, self.leadership.epoch)
        entry = CommittedEntry(index=len(self.entries) + 1, epoch=epoch, data=data)
        self.entries.append(entry)
        proposal = MemoryProposal(position=LogPosition(index=entry.index, epoch=epoch))
        self._pending.append(proposal)
        self._changed.notify()
        return proposal

    async def propose(self, data: bytes, *, epoch: int) -> LogPosition:
        return await self.propose_nowait(data, epoch=epoch).wait_committed()

    async def read_barrier(self) -> int:
        if not self.leadership.active:
            raise NotLeaderError(-1, self.leadership.epoch)
        target = len(self.entries)
        await self._changed.wait_until(lambda: self.applied >= target)
        return self.applied

    async def wait_for_commit(self, index: int) -> int:
        await self._changed.wait_until(lambda: self.applied >= index)
        return self.applied

    def read_committed(self, from_index: int, bytes_max: int) -> CommittedRange:
        entries = tuple(self.entries[from_index - 1 : self.applied])
        return CommittedRange(entries=entries, next_index=self.applied + 1, high_watermark=self.applied)

    def open_snapshot(self) -> None:
        return None

    def status(self) -> QuorumStatus:
        return QuorumStatus(
            leader_id=self.leadership.leader_id,
            epoch=self.leadership.epoch,
            high_watermark=self.applied,
            log_start_index=1,
            log_end_index=len(self.entries),
            snapshot_index=0,
            replicas=tuple(
                VoterStatus(voter=voter, log_end_offset=len(self.entries)) for voter in self.voters.values()
            ),
        )

    async def add_voter(self, voter: VoterEndpoint) -> None:
        raise MembershipChangeError("one node only")

    async def remove_voter(self, voter_id: int, directory_id: UUID = ZERO_UUID) -> None:
        raise MembershipChangeError("the last voter cannot leave")

    async def update_voter(self, voter: VoterEndpoint) -> None:
        raise MembershipChangeError("one node only")

    async def transfer_leadership(self, target_id: int | None = None) -> None:
        raise MembershipChangeError("one node only")
