"""Builds the ``ip`` and ``tc`` commands that make packets between two members follow a rule; does not run them.

All members are hosts of one /24 network and reach each other through a router, where every rule is kept:

- A cut is a policy rule, ``from SOURCE to TARGET blackhole``: the packet is dropped without a word to its sender, as a
  network that is cut does. (A blackhole in the sender's own routes would return an error to the sender at once.)
- A rate is a class of ``htb`` on the router's device towards the target; packets get there by their source address.
- A delay is ``netem`` in that class.
- Loss is a class that queues nothing. Packets get there by the low bits of their IP identification, which a sender
  counts up, so a share of one in a power of two is lost, and what is sent again has another chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_jepsen.chaos.network.rules import CLIENT, LinkRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_jepsen.chaos.network.rules import Link

ROUTER_HOST = 253
CLIENT_HOST = 254
HARNESS_HOST = 252
"""The harness asks from this address, which no rule names."""
NODE_ID_MAX = 251
CUT_PREFERENCE = 100  # of policy rules; the table of local addresses has 0
LOSS_CLASS = 0x1000
SHAPE_CLASS = 0x2000
UNLIMITED = "10gbit burst 1m cburst 1m"
QUEUE_PACKETS_MAX = 100_000
LOSS_BITS_MAX = 12


@dataclass(slots=True)
class Words:
    """Lines for ``ip -batch`` and ``tc -batch`` in the router's namespace."""

    ip: list[str] = field(default_factory=list)
    tc: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Subnet:
    """Addresses of one run; ``prefix`` are the first three numbers."""

    prefix: str

    def host(self, number: int) -> str:
        """Address of a host."""
        return f"{self.prefix}.{number}"

    def member(self, member: int) -> str:
        """Address of a node, or of the clients."""
        return self.host(host_of(member))

    @property
    def network(self) -> str:
        """All addresses."""
        return f"{self.prefix}.0/24"


def host_of(member: int) -> int:
    """Returns the number of a member's host; the number of a node is its id.

    Raises:
        ValueError: The id is not a number.
    """
    if not 0 <= member <= NODE_ID_MAX:
        raise ValueError(f"node id {member} has no address in a /24 network; it must be 1..{NODE_ID_MAX}")
    return CLIENT_HOST if member == CLIENT else member


def device_to(member: int) -> str:
    """Returns the name of the router's device towards a member."""
    return f"to{host_of(member)}"


def loss_bits(share: float) -> int:
    """Returns the number n of low bits that must agree for a packet to be lost: 1/2^n is nearest to the share."""
    return min(LOSS_BITS_MAX, max(1, round(-math.log2(share))))


def words_for(subnet: Subnet, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> Words:
    """Commands that take links from one rule to another; ``changes`` gives the old and the new rule."""
    words = Words()
    for link, (before, now) in changes.items():
        if before.cut != now.cut:
            done = "add" if now.cut else "del"
            source, target = subnet.member(link.source), subnet.member(link.target)
            words.ip.append(f"rule {done} pref {CUT_PREFERENCE} from {source} to {target} blackhole")
        _shape(words.tc, subnet, link, before, now)
    return words


def _shape(tc: list[str], subnet: Subnet, link: Link, before: LinkRule, now: LinkRule) -> None:
    device, number = device_to(link.target), host_of(link.source)
    parent = f"dev {device} parent 1:"
    taken = f"filter add {parent} protocol ip prio {{}} u32 match ip src {subnet.member(link.source)}/32"
    lossy, shaped = LOSS_CLASS + number, SHAPE_CLASS + number
    if before.loss != now.loss:
        if before.loss:
            tc.append(f"filter del {parent} protocol ip prio {lossy}")
            tc.append(f"class del {parent} classid 1:{lossy:x}")
        if now.loss:
            mask = (1 << loss_bits(now.loss)) - 1
            tc.append(f"class add {parent} classid 1:{lossy:x} htb rate {UNLIMITED} quantum 10000")
            tc.append(f"qdisc add dev {device} parent 1:{lossy:x} pfifo limit 0")
            # Identification 0 is for packets that are not counted, answers to SYN among them: they are not lost.
            tc.append(f"{taken.format(lossy)} match u16 1 0x{mask:x} at 4 flowid 1:{lossy:x}")
    if (before.delay_ms, before.bytes_per_second) != (now.delay_ms, now.bytes_per_second):
        if before.delay_ms or before.bytes_per_second:
            tc.append(f"filter del {parent} protocol ip prio {shaped}")
            tc.append(f"class del {parent} classid 1:{shaped:x}")
        if now.delay_ms or now.bytes_per_second:
            rate = f"{now.bytes_per_second * 8:.0f}bit" if now.bytes_per_second else UNLIMITED
            tc.append(f"class add {parent} classid 1:{shaped:x} htb rate {rate} quantum 10000")
            if now.delay_ms:
                late = f"netem delay {now.delay_ms:g}ms limit {QUEUE_PACKETS_MAX}"
                tc.append(f"qdisc add dev {device} parent 1:{shaped:x} {late}")
            tc.append(f"{taken.format(shaped)} flowid 1:{shaped:x}")
