"""Faults of links: cuts of all shapes, resets, slowness, loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.faults.topology import ring_cuts
from moldau_jepsen.world.network.hosts import ignored

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from moldau_jepsen.simulation.inject.targets import Targets

LOSS_LINKS_PROBABILITY = 0.6
LOSS_PROBABILITIES = (0.01, 0.05, 0.2, 0.5)
HELD_BACK_SECONDS = (3.0, 40.0)
"""How long packets that are held back stay in the network: often until all faults have ended."""
HELD_BACK_CLIENT_PROBABILITY = 0.6
HELD_BACK_COORDINATOR_PROBABILITY = 0.5
"""Of packets from a machine of clients; the others are from a node."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Trouble:
    """The effect of one fault on one directed link: slow, or lossy."""

    link: tuple[str, str]
    extra_delay: float = 0.0  # seconds
    bytes_per_second: float = 0.0
    loss_probability: float = 0.0
    mark: Callable[[], None] = ignored


class LinkFaults:
    """Begins faults of links. Each action returns a function that ends it, which does nothing after ``end_all``.

    Where several faults strike one link, it is cut until the last of them ends, and as slow or lossy as the newest of
    those that go on makes it.
    """

    def __init__(self, targets: Targets) -> None:
        """Starts with links that work."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster
        self._cuts: dict[tuple[str, str], int] = {}  # how many faults cut a link now
        self._troubles: list[_Trouble] = []  # that go on, the oldest first
        self.actions: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.CUT: self._cut_node,
            FaultKind.CUT_ONE_WAY: self._cut_one_way,
            FaultKind.HALVES: self._halves,
            FaultKind.BRIDGE: self._bridge,
            FaultKind.RING: self._ring,
            FaultKind.LINK: self._cut_link,
            FaultKind.BLIND: self._blind,
            FaultKind.RESET: self._reset,
            FaultKind.SLOW: self._slow,
            FaultKind.LOSS: self._loss,
            FaultKind.HELD_BACK: self._held_back,
        }

    def end_all(self, outside: Sequence[str]) -> None:
        """Repairs all links, except those of the hosts ``outside``, which stay cut off."""
        self._cuts.clear()
        self._troubles.clear()
        self._world.network.heal_all(outside)

    def _cut(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
        if pairs:
            self._targets.mark()
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
            self._world.network.cut(*pair)

        def end() -> None:
            for pair in pairs:
                if pair not in self._cuts:
                    continue  # all faults were ended; a node that stays outside is cut off still
                self._cuts[pair] -= 1
                if not self._cuts[pair]:
                    del self._cuts[pair]
                    self._world.network.heal(*pair)

        return end

    def _trouble(self, troubles: Sequence[_Trouble]) -> Callable[[], None]:
        self._troubles += troubles
        for trouble in troubles:
            self._rule(trouble.link)

        def end() -> None:
            for trouble in troubles:
                if trouble in self._troubles:
                    self._troubles.remove(trouble)
                    self._rule(trouble.link)

        return end

    def _rule(self, link: tuple[str, str]) -> None:
        """Applies to a link the rule of the newest fault that concerns it."""
        slow = lossy = _Trouble(link=link)
        for trouble in self._troubles:
            if trouble.link == link:
                slow, lossy = (slow, trouble) if trouble.loss_probability else (trouble, lossy)
        self._world.network.slow_link(
            *link, extra_delay=slow.extra_delay, bytes_per_second=slow.bytes_per_second, slowed=slow.mark
        )
        self._world.network.lossy_link(*link, probability=lossy.loss_probability, lost=lossy.mark)

    def _others(self, host: str, draw: random.Random) -> list[str]:
        others = [other for other in self._targets.hosts(self._targets.all_nodes) if other != host]
        return others + (self._targets.clients if draw.random() < 0.5 else [])

    def cut_off(self, host: str, others: Sequence[str]) -> Callable[[], None]:
        """Cuts a host off from others, in both directions; returns the function that ends it."""
        return self._cut([*((host, other) for other in others), *((other, host) for other in others)])

    def _cut_node(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(self._targets.leader_or_any(draw))
        return self.cut_off(host, self._others(host, draw))

    def _cut_one_way(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._targets.nodes))
        others = self._others(host, draw)
        if draw.random() < 0.5:
            return self._cut([(host, other) for other in others])
        return self._cut([(other, host) for other in others])

    def _halves(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._targets.hosts(self._targets.nodes)
        draw.shuffle(hosts)
        middle = draw.randint(1, len(hosts) - 1)
        return self._cut(_between(hosts[:middle], hosts[middle:]))

    def _bridge(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._targets.hosts(self._targets.nodes)
        draw.shuffle(hosts)
        middle = len(hosts) // 2
        return self._cut(_between(hosts[1 : middle + 1], hosts[middle + 1 :]))

    def _ring(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._targets.hosts(self._targets.nodes)
        draw.shuffle(hosts)
        return self._cut(ring_cuts(hosts))

    def _cut_link(self, draw: random.Random) -> Callable[[], None]:
        one, other = draw.sample([*self._targets.hosts(self._targets.all_nodes), *self._targets.clients], 2)
        return self._cut(_between([one], [other]))

    def _blind(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._cluster.leaders() or self._cluster.broker_ids))
        return self._cut(_between([host], self._targets.hosts(self._cluster.controller_ids)))

    def _reset(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._targets.nodes))
        others = [other for other in self._world.network.host_names if other != host]
        active = True
        mark = self._targets.mark

        def strike() -> None:
            if active:
                if sum([self._world.network.reset_connections(host, other) for other in others]):
                    mark()
                self._world.agenda.call_after(draw.uniform(0.05, 1.5), strike)

        def end() -> None:
            nonlocal active
            active = False

        strike()
        return end

    def _slow(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._targets.nodes))
        others = [other for other in self._world.network.host_names if other != host]
        delay = draw.choice((0.005, 0.05, 0.3))
        rate = draw.choice((0.0, 20_000.0, 500_000.0))
        mark = self._targets.mark
        return self._trouble(
            [_Trouble(link=(host, other), extra_delay=delay, bytes_per_second=rate, mark=mark) for other in others]
        )

    def _loss(self, draw: random.Random) -> Callable[[], None]:
        """Loses segments between one node and some others, at a drawn rate for each direction."""
        host = self._cluster.host(self._targets.leader_or_any(draw))
        mark = self._targets.mark
        troubles = [
            _Trouble(link=link, loss_probability=draw.choice(LOSS_PROBABILITIES), mark=mark)
            for other in self._world.network.host_names
            if other != host
            for link in ((host, other), (other, host))
            if draw.random() < LOSS_LINKS_PROBABILITY
        ]
        return self._trouble(troubles)

    def _held_back(self, draw: random.Random) -> Callable[[], None]:
        """Delays the packets of one machine to another so long that the peers give up and go on.

        New connections are quick again as soon as the fault has ended, so the packets arrive behind later ones.
        """
        targets = self._targets
        nodes = targets.hosts(targets.nodes)
        from_client = draw.random() < HELD_BACK_CLIENT_PROBABILITY
        source = draw.choice(targets.clients if from_client and targets.clients else nodes)
        coordinators = targets.transaction_coordinators() if source in targets.clients else []
        if coordinators and draw.random() < HELD_BACK_COORDINATOR_PROBABILITY:
            leader = self._cluster.host(draw.choice(coordinators))
        else:
            leader = self._cluster.host(targets.leader_or_any(draw))
        target = leader if leader != source else draw.choice([host for host in nodes if host != source])
        shortest, longest = HELD_BACK_SECONDS
        delay = shortest * (longest / shortest) ** draw.random()
        if not targets.prompt_links.may_be_late(source, target):
            sources = [*targets.clients, *nodes]
            pairs = [(one, other) for one in sources for other in nodes if one != other]
            pairs = [pair for pair in pairs if targets.prompt_links.may_be_late(*pair)]
            if not pairs:
                return ignored
            source, target = draw.choice(pairs)
        return self._trouble([_Trouble(link=(source, target), extra_delay=delay, mark=targets.mark)])


def _between(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for one in left for other in right for pair in ((one, other), (other, one))]
