"""The knowledge that a broker has of its cluster, and how new it is.

A broker that is cut off from the controllers goes on with old metadata, and believes that it still leads. Its reads and
copies do no harm then, but an object that it deletes is gone for its successor, too. The configuration may have changed
meanwhile, or a topic may have been created. So a deletion needs metadata whose age is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_quorum.metadata.image import MetadataImage

FRESH_LOOKS: Final = 120
FRESH_LOOK_MS: Final = 500.0
"""How often, and at which distance, a task looks for the heartbeat that shows its metadata to be the newest."""
RECENT_MS: Final = 60_000.0
"""Age of metadata by which a leader may delete what its retention demands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The present knowledge of a broker about its cluster."""

    clock: Clock
    broker_id: BrokerId
    cluster_id: str
    image: Callable[[], MetadataImage]
    """The newest metadata."""
    caught_up_ms: Callable[[], float]
    """Monotonic time of the last heartbeat that carried the newest metadata offset; see ``BrokerSession``."""
    before_deletions: Callable[[], None]
    """Returns when the position of the metadata is durable, on whose word objects are deleted."""

    @property
    def is_recent(self) -> bool:
        """Whether the metadata were the newest at most ``RECENT_MS`` ago."""
        return self.clock.monotonic_ms() - self.caught_up_ms() <= RECENT_MS

    async def is_newest_since(self, since_ms: float) -> bool:
        """Returns whether the metadata have been the newest at some time after ``since_ms``; waits for a heartbeat."""
        for _ in range(FRESH_LOOKS):
            if self.caught_up_ms() >= since_ms:
                return True
            await trio.sleep(FRESH_LOOK_MS / 1000)
        return False
