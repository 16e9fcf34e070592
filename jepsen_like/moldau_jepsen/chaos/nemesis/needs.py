"""Declares the protocols through which the nemesis uses a cluster, its operator, and its quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.launcher.control import Control
    from moldau_jepsen.launcher.process import ProcessState
    from moldau_jepsen.launcher.spec import Node
    from moldau_jepsen.launcher.undo import PowerLoss


class Cluster(Protocol):
    """The part of ``moldau_jepsen.launcher.LocalCluster`` that the nemesis uses; all calls block."""

    @property
    def brokers(self) -> Sequence[Node]: ...

    @property
    def controllers(self) -> Sequence[Node]: ...

    def state(self, node_id: int) -> ProcessState: ...

    def kill(self, node_id: int) -> None: ...

    def pause(self, node_id: int) -> None: ...

    def resume(self, node_id: int) -> None: ...

    def stop_node(self, node_id: int) -> bool: ...

    def launch(self, node_id: int) -> None: ...

    def lose_power(self, node_id: int, seed: int) -> PowerLoss: ...

    def control(self, node_id: int, change: Callable[[Control], Control]) -> None: ...

    def wipe(self, node_id: int) -> None: ...

    def is_whole(self) -> bool: ...

    def can_do_without(self, node_id: int) -> bool: ...


class Operations(Protocol):
    """Administrative operations that run as faults, and queries for the leaders."""

    async def broker_leaders(self) -> list[int]:
        """Ids of the brokers that lead a partition of the workload now; empty if unknown."""
        ...

    async def active_controller(self) -> list[int]:
        """Returns the id of the active controller; empty if unknown."""
        ...

    async def reassign(self, draw: random.Random) -> str:
        """Moves a drawn partition of the workload to drawn brokers; returns what was asked, for the report."""
        ...

    async def elect_preferred(self) -> str:
        """Elects the preferred leader of every partition of the workload; returns what was asked, for the report."""
        ...


class Voters(Protocol):
    """Changes of the quorum's voters, as ``moldau_jepsen.chaos.nemesis.moves.Operator`` makes them."""

    removed: dict[int, None]
    """Controllers that may have no vote."""

    async def remove_voter(self, node_id: int) -> str:
        """Takes a controller's vote away; returns what was answered, for the report."""
        ...

    async def surely_remove_voter(self, node_id: int, timeout_s: float) -> bool:
        """Takes a controller's vote away; returns whether the quorum has said so in time."""
        ...

    async def add_voter(self, node_id: int) -> str:
        """Gives it back."""
        ...

    async def restore_voters(self, timeout_s: float) -> bool:
        """Gives every vote back that was taken; returns whether that was done in time."""
        ...


class Cordons(Protocol):
    """Cordons of log directories, as ``moldau_jepsen.chaos.nemesis.cordons.DirectoryCordons`` makes them."""

    async def cordon(self, broker_id: int) -> str:
        """Keeps new replicas away from a broker; returns what was answered, for the report."""
        ...

    async def uncordon(self, broker_id: int) -> str:
        """Lets it take replicas again."""
        ...

    async def uncordon_all(self, timeout_s: float) -> bool:
        """Lets all brokers take replicas again; returns whether that was done in time."""
        ...
