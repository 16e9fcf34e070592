"""Judges that no new replica starts in a cordoned log directory (KIP-1066)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable


class CordonsSeen(NamedTuple):
    """The cordons of one broker after a step."""

    process: object
    """Differs from one process of the broker to the next."""
    cordoned: Collection[str]
    has_choice: bool
    """Whether a directory works that is not cordoned."""
    held: frozenset[Hashable]
    """The replicas with a log in a cordoned directory, copies of moves included."""
    is_recorded: Callable[[Hashable], bool]
    """Whether the metadata of this step record a replica in a cordoned directory: then its log belongs there."""


class CordonRules:
    """Judges what is new in cordoned directories. State per broker: what was seen after its last step."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated
        self._before: dict[int, CordonsSeen] = {}

    def look(self, broker_id: int, seen: CordonsSeen) -> None:
        """Tasks of a broker with cordoned directories have run."""
        before = self._before.get(broker_id)
        self._before[broker_id] = seen
        if before is None or before.process is not seen.process or before.cordoned != seen.cordoned:
            return
        if not (before.has_choice and seen.has_choice):
            return
        for replica in sorted(seen.held - before.held, key=str):
            if not before.is_recorded(replica):
                self._violated(
                    "cordon-kept",
                    f"broker {broker_id} started a replica of {replica} in a cordoned directory, of "
                    f"{', '.join(sorted(seen.cordoned))}",
                )

    def calm(self, broker_id: int) -> None:
        """Nothing is cordoned on the broker."""
        self._before.pop(broker_id, None)
