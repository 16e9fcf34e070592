"""Decides which silent brokers cannot be reached, from the results of connection attempts to their hosts.

Silence has several causes, and they call for different patience. A process that is paused, starved or collecting
garbage goes on by itself, and its host still accepts connections: the kernel does that. Its broker keeps the whole
session. A host that accepts nothing has no network or no power, or the process that listened there is gone. But
the cause may also lie at the controller: its own network is cut, it gets no processor, or a firewall keeps it
from all brokers. So an attempt without success counts only if the host of another broker accepted in the same
round, under the same conditions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.values import BrokerId

ROUNDS: Final = 3
"""Rounds in a row without success after which a host cannot be reached; a single lost packet fails one round."""


class Suspects:
    """Silent brokers, each with its number of failed rounds in a row."""

    def __init__(self) -> None:
        """Starts without suspects."""
        self._failed: dict[BrokerId, int] = {}

    def judge(self, silent: Sequence[BrokerId], accepted: Mapping[BrokerId, bool]) -> list[BrokerId]:
        """Ends a round and returns the brokers of ``silent`` that cannot be reached.

        ``accepted`` says for each broker that was tried, silent or not, whether its host accepted the connection. A
        broker that is not in ``silent`` was heard, and starts again at zero when it falls silent.
        """
        is_proof = any(accepted.values())
        self._failed = {
            broker: self._failed.get(broker, 0) + 1 if is_proof and not accepted.get(broker, True) else 0
            for broker in silent
        }
        return [broker for broker, rounds in self._failed.items() if rounds >= ROUNDS]
