"""Holds single requests or answers on their connections, beside newer connections that are quick.

A link that is slow, or holds everything back (``link_faults``), delays new connections as well while it lasts. Here one
message is held, and by TCP's order all that its connection sends behind it. So an answer comes after its reader has
reached a newer state by another connection, and a request takes effect after its client has given it up, connected
again and repeated it.

A strike draws a few of the APIs that the run uses just then, between clients, brokers or controllers, for each a node
that serves it, and whether requests or answers are held. It holds some of the next such messages, each for a time of
its own: shorter or longer than clients wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.api import ApiKey
from moldau_jepsen.coverage.coverage import message_name
from moldau_jepsen.coverage.situations import Situation
from moldau_jepsen.world.network.hosts import ignored

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from moldau_jepsen.coverage.coverage import MessageKind
    from moldau_jepsen.simulation.inject.targets import Targets
    from moldau_jepsen.world.network.connection import VirtualConnection

HELD_SECONDS = (0.1, 12.0)
RECENT_SECONDS = 2.0
"""Only calls of this time are drawn: others may not come again while the fault lasts."""
CALLS_PER_STRIKE = 5
HELD_PER_CALL_MAX = 3
ANSWERS_PROBABILITY = 0.5
SHARES = (1.0, 0.3)
"""Of the messages that fit, until enough are held."""


class _Call(NamedTuple):
    """An API between two kinds of machines."""

    api_key: int
    client: str
    server: str


@dataclass(slots=True, kw_only=True)
class _Trap:
    """Waits for messages of one API to hold, while a fault lasts."""

    call: _Call
    server: str
    is_request: bool
    left: int
    share: float
    draw: random.Random
    mark: Callable[[], None]


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    """A message that is held now."""

    end: VirtualConnection
    is_request: bool
    is_overtaken: bool = False
    """Whether a later message went the same way between the same hosts, on another connection."""


class HeldCalls:
    """Sees every message before it is sent, and holds some."""

    def __init__(self, targets: Targets) -> None:
        """Holds nothing before a strike."""
        self._targets = targets
        self._agenda = targets.world.agenda
        self._servers: dict[_Call, dict[str, float]] = {}  # hosts that were called, with the time of the last message
        self._traps: list[_Trap] = []
        self._held: list[_Held] = []
        self.situations: Counter[Situation] = Counter()
        """The results of messages that were held."""

    def strike(self, draw: random.Random) -> Callable[[], None]:
        """Sets traps for some APIs; the returned function takes them away."""
        nodes = dict.fromkeys(self._targets.hosts(self._targets.nodes))
        since = self._agenda.clock.now - RECENT_SECONDS
        served = {
            call: [host for host, seconds in hosts.items() if host in nodes and seconds >= since]
            for call, hosts in sorted(self._servers.items())
        }
        calls = [call for call, hosts in served.items() if hosts]
        if not calls:
            return ignored
        traps = [
            _Trap(
                call=call,
                server=draw.choice(served[call]),
                is_request=draw.random() >= ANSWERS_PROBABILITY,
                left=draw.randint(1, HELD_PER_CALL_MAX),
                share=draw.choice(SHARES),
                draw=draw,
                mark=self._targets.mark,
            )
            for call in draw.sample(calls, min(CALLS_PER_STRIKE, len(calls)))
        ]
        self._traps += traps

        def end() -> None:
            self._traps = [trap for trap in self._traps if trap not in traps]

        return end

    def end_all(self) -> None:
        """Takes all traps away; what is held arrives at its time."""
        self._traps.clear()

    def message_sent(self, end: VirtualConnection, kind: MessageKind) -> None:
        """Looks at each message and at the end that is about to send it."""
        if kind.api_key == ApiKey.API_VERSIONS:
            return  # a connection that does not open yet overtakes nothing
        source, target = end.host.name, end.peer_end.host.name
        server = target if kind.is_request else source
        roles = (kind.sender, kind.receiver) if kind.is_request else (kind.receiver, kind.sender)
        call = _Call(kind.api_key, *roles)
        self._servers.setdefault(call, {})[server] = self._agenda.clock.now
        for held in self._held:
            if held.end is not end and held.end.host is end.host and held.end.peer_end.host is end.peer_end.host:
                held.is_overtaken = True
        for trap in self._traps:
            if (
                trap.left
                and (trap.call, trap.server, trap.is_request) == (call, server, kind.is_request)
                and self._may_be_late(source, target, kind)
                and trap.draw.random() < trap.share
            ):
                trap.left -= 1
                shortest, longest = HELD_SECONDS
                self._hold(end, kind, shortest * (longest / shortest) ** trap.draw.random())
                trap.mark()
                return

    def _may_be_late(self, source: str, target: str, kind: MessageKind) -> bool:
        return not kind.is_request or self._targets.prompt_links.request_may_be_late(source, target, kind.api_key)

    def _hold(self, end: VirtualConnection, kind: MessageKind, seconds: float) -> None:
        end.outgoing.hold(seconds)
        what = f"{message_name(kind.api_key)} {'request' if kind.is_request else 'answer'}"
        self._targets.world.trace.note("held", what, f"{end.host.name} to {end.peer_end.host.name}", f"{seconds:.3f} s")
        held = _Held(end=end, is_request=kind.is_request)
        self._held.append(held)
        self._agenda.call_after(seconds, lambda: self._arrives(held))

    def _arrives(self, held: _Held) -> None:
        self._held.remove(held)
        client = held.end if held.is_request else held.end.peer_end
        if held.is_request and (client.closed or client.dead):
            self.situations[Situation.GIVEN_UP_REQUEST] += 1
        if not held.is_request and not client.closed and held.is_overtaken:
            self.situations[Situation.OVERTAKEN_ANSWER] += 1
