"""Goal: a leader sends to a member as much as is not on its way, whatever has happened to earlier messages.

Method: all short histories of one member, beside a list of the messages without an answer.
"""

from __future__ import annotations

import itertools

from moldau_quorum.log.raft.core.progress import Progress, ProgressState
from moldau_quorum.log.raft.core.types import Configuration, SnapshotPoint

POINT = SnapshotPoint(index=9, epoch=1, configuration=Configuration(voters={}))
SIZE = 10
BY_BYTES, BY_COUNT = (3, 15), (1, 100)
"""Limits in messages and bytes: two messages reach the first, one reaches the second."""


class Member:
    """A member, and the messages with entries that are on their way to it."""

    def __init__(self) -> None:
        self.progress = Progress(next=1, last_seen_ms=0.0)
        self.unanswered: list[int] = []
        self.is_probed = False

    def has_room(self, count_max: int, bytes_max: int) -> bool:
        """Returns whether another message may be sent."""
        state = self.progress.state
        if state is ProgressState.PROBE:
            return not self.is_probed
        used = len(self.unanswered)
        return state is ProgressState.REPLICATE and used < count_max and used * SIZE < bytes_max

    def send(self) -> None:
        if not self.has_room(*BY_BYTES):
            return
        last_index = self.progress.next
        if self.progress.state is ProgressState.PROBE:
            self.is_probed = True
        else:
            self.unanswered.append(last_index)
        self.progress.sent(last_index, SIZE)

    def accept_first(self) -> None:
        self._accept(self.unanswered[:1])

    def accept_all(self) -> None:
        self._accept(self.unanswered)

    def _accept(self, answered: list[int]) -> None:
        is_probe = self.progress.state is ProgressState.PROBE
        self.progress.accepted(max(answered, default=self.progress.match))
        self.unanswered = [] if is_probe else self.unanswered[len(answered) :]

    def refuse(self) -> None:
        self.progress.become_probe(self.progress.match + 1)
        self.unanswered, self.is_probed = [], False

    def fall_behind(self) -> None:
        self.progress.become_snapshot(POINT)
        self.unanswered, self.is_probed = [], False

    def install(self) -> None:
        self.progress.become_replicate()
        self.unanswered, self.is_probed = [], False


EVENTS = (Member.send, Member.accept_first, Member.accept_all, Member.refuse, Member.fall_behind, Member.install)


def test_room_is_what_is_not_on_its_way() -> None:
    """Messages that a refusal or a snapshot has made void take no room in the next state, nor ever again."""
    for history in itertools.product(EVENTS, repeat=5):
        member = Member()
        for event in history:
            event(member)
            for limits in (BY_BYTES, BY_COUNT):
                expected = member.has_room(*limits)
                assert member.progress.room(*limits) is expected, [each.__name__ for each in history]
