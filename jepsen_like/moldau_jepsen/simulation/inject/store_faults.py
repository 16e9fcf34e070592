"""Faults of the object store that holds the remote segments of tiered topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.world.objects import ObjectTrouble

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau_jepsen.simulation.inject.targets import Targets

FOR_ALL_SHARE = 0.4
"""Faults that concern all brokers; the others concern one."""


class StoreFaults:
    """Begins faults of the store. Each action returns a function that ends it."""

    def __init__(self, targets: Targets) -> None:
        """Starts with a store that works."""
        self._targets = targets
        self._profile = targets.world.objects.profile
        self.actions: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.STORE_AWAY: self._away,
            FaultKind.STORE_SLOW: self._slow,
            FaultKind.STORE_ERROR: self._errors,
            FaultKind.STORE_LATE: self._late,
        }

    def end_all(self) -> None:
        """Repairs the store."""
        self._profile.end_all()

    def _machines(self, draw: random.Random) -> tuple[str, ...] | None:
        cluster = self._targets.cluster
        return None if draw.random() < FOR_ALL_SHARE else (cluster.host(draw.choice(cluster.broker_ids)),)

    def _begin(self, trouble: ObjectTrouble) -> Callable[[], None]:
        self._profile.begin(trouble)
        return lambda: self._profile.end(trouble)

    def _away(self, draw: random.Random) -> Callable[[], None]:
        return self._begin(ObjectTrouble(on_effect=self._targets.mark, machines=self._machines(draw), is_away=True))

    def _slow(self, draw: random.Random) -> Callable[[], None]:
        machines, jitter, stall_max = self._machines(draw), draw.choice((0.1, 0.5)), draw.choice((1.0, 4.0))
        slow = ObjectTrouble(
            on_effect=self._targets.mark,
            machines=machines,
            delay_jitter=jitter,
            stall_probability=0.1,
            stall_max=stall_max,
        )
        return self._begin(slow)

    def _errors(self, draw: random.Random) -> Callable[[], None]:
        machines, before, after = self._machines(draw), draw.choice((0.0, 0.1, 0.4)), draw.choice((0.05, 0.2, 0.4))
        errors = ObjectTrouble(
            on_effect=self._targets.mark,
            machines=machines,
            error_before_probability=before,
            error_after_probability=after,
        )
        return self._begin(errors)

    def _late(self, draw: random.Random) -> Callable[[], None]:
        machines, share = self._machines(draw), draw.choice((0.2, 0.5))
        return self._begin(ObjectTrouble(on_effect=self._targets.mark, machines=machines, late_put_probability=share))
