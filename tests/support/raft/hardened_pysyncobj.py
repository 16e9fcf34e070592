"""The hardened pysyncobj in the campaign's world: the face that the world and the invariants look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau_quorum.log.pysyncobj.journal import DATA
from moldau_quorum.log.pysyncobj.node import PySyncObjNode
from moldau_quorum.log.pysyncobj.wire import decode
from moldau_quorum.log.raft.core.types import NO_NODE, Entry, EntryKind, HardState
from moldau_quorum.log.raft.envelope import unseal
from support.raft.campaign import FAULTS

if TYPE_CHECKING:
    from moldau_quorum.log.pysyncobj.journal import DurableJournal


class LogFace:
    """The journal as ``EntryLog`` shows itself."""

    def __init__(self, journal: DurableJournal) -> None:
        self.journal = journal

    @property
    def base_index(self) -> int:
        return int(self.journal.entry(0)[1]) - 1

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    @property
    def last_index(self) -> int:
        return int(self.journal.entry(-1)[1])

    @property
    def last_epoch(self) -> int:
        return int(self.journal.entry(-1)[2])

    def entry(self, index: int) -> Entry:
        command, at, term = self.journal.entry(index - self.first_index)
        assert at == index, "the journal has no gaps"
        kind = EntryKind.DATA if command[:1] == DATA else EntryKind.NOOP
        return Entry(index, term, kind, command[1:] if kind == EntryKind.DATA else b"")

    def epoch_at(self, index: int) -> int | None:
        if self.first_index <= index <= self.last_index:
            return int(self.journal.entry(index - self.first_index)[2])
        return 0 if index == 0 else None


class CoreFace:
    """The library as ``RaftCore`` shows itself."""

    installing = None

    def __init__(self, node: PySyncObjNode) -> None:
        self.node = node
        self.log = LogFace(node._journal)
        self.configuration = node.configuration

    @property
    def epoch(self) -> int:
        return self.node.library.term

    @property
    def commit_index(self) -> int:
        return self.node.library.commit_index

    @property
    def applied_index(self) -> int:
        return self.node.library.last_applied

    @property
    def leader_id(self) -> int | None:
        return self.node.library.leader

    @property
    def leader(self) -> PySyncObjNode | None:
        return self.node if self.node.library.leads else None

    @property
    def hard_state(self) -> HardState:
        voted_for = self.node._journal.getVotedForNodeId()
        return HardState(epoch=self.epoch, voted_for=NO_NODE if voted_for is None else voted_for)

    def next_deadline_ms(self) -> float:
        return self.node.next_deadline_ms()

    def peer_refused(self, peer: int, now_ms: float) -> None:
        self.node.peer_refused(peer, now_ms)


class CampaignNode(PySyncObjNode):
    """``PySyncObjNode`` with that face."""

    has_pre_vote = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.core = CoreFace(self)

    @staticmethod
    def vote_in(sender: int, recipient: int, body: bytes) -> tuple[int, int] | None:
        """The epoch and candidate for which a message votes."""
        _, _, message = decode(unseal(body)[2])
        if message["type"] == "response_vote":
            return message["term"], recipient
        if message["type"] == "request_vote":
            return message["term"], sender
        return None


LEFT_OUT = ("membership", "refused", "lost-disk")
OPTIONS: dict[str, Any] = {"engine": CampaignNode, "faults": tuple(fault for fault in FAULTS if fault not in LEFT_OUT)}
