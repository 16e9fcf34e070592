"""The client's side of a share session: which partitions one broker knows, and the next epoch. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1

TopicIdPartition = tuple["UUID", int]


class ShareSession:
    """The session with one broker. Invariant: the broker has answered ``epoch`` requests since it was opened."""

    __slots__ = ("_known", "epoch", "number")

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH
        self.number = 0
        """Which session this is; it rises when a session is lost."""
        self._known: dict[TopicIdPartition, None] = {}

    @property
    def is_open(self) -> bool:
        """Whether the broker knows the session."""
        return self.epoch != INITIAL_EPOCH

    def changes(self, wanted: Iterable[TopicIdPartition]) -> tuple[list[TopicIdPartition], list[TopicIdPartition]]:
        """Returns the partitions to add and to forget, so that the broker knows exactly ``wanted``."""
        keys = dict.fromkeys(wanted)
        added = [key for key in keys if key not in self._known]
        return added, [key for key in self._known if key not in keys]

    def fetched(self, wanted: Iterable[TopicIdPartition]) -> None:
        """Notes that the broker has answered a fetch, and now knows ``wanted``."""
        self._known = dict.fromkeys(wanted)
        self._advance()

    def acknowledged(self) -> None:
        """Notes that the broker has answered acknowledgements."""
        self._advance()

    def _advance(self) -> None:
        self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1

    def lose(self) -> None:
        """Forgets the session, which is gone or may be; the next fetch opens another."""
        self.epoch = INITIAL_EPOCH
        self.number += 1
        self._known = {}
