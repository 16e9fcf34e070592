"""Defines rules for the links between members, independent of their mechanism, and stacks rules of several faults."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

CLIENT = 0
"""Stands for all clients in link rules; node ids begin at 1."""
DELAY, RATE, LOSS, RESET = "delay", "rate", "loss", "reset"
"""Rules that some links cannot carry out (``LinkRules.lacks``). All links can be cut."""


@dataclass(frozen=True, slots=True)
class Link:
    """The directed path of bytes from one member to another (``CLIENT`` for any client)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRule:
    """The treatment of bytes on a link."""

    cut: bool = False
    delay_ms: float = 0.0
    bytes_per_second: float = 0.0  # 0 is unlimited
    loss: float = 0.0  # share of packets, below 1


OPEN = LinkRule()


class LinkRules(ABC):
    """The contract of everything that rules the links of one cluster: one rule per directed link, the last one set."""

    lacks: Mapping[str, str]
    """The rules that these links cannot carry out, with the reason in a few words."""
    blocks: ClassVar[bool]
    """Calls take long and may come from any thread; otherwise they return at once and belong to one ``trio.run``."""

    def __init__(self) -> None:
        """All links are open."""
        self._rules: dict[Link, LinkRule] = {}

    def set_rules(self, rules: Mapping[Link, LinkRule]) -> None:
        """Replaces the rules of these links, for bytes that are sent from now on or are under way.

        Raises:
            ValueError: These links do not have the rule.
        """
        for rule in rules.values():
            for name, wanted in ((DELAY, rule.delay_ms), (RATE, rule.bytes_per_second), (LOSS, rule.loss)):
                if wanted and name in self.lacks:
                    raise ValueError(f"these links know no {name}: {self.lacks[name]}")
        before = {link: self.rule(link) for link in rules}
        for link, rule in rules.items():
            if rule == OPEN:
                self._rules.pop(link, None)
            else:
                self._rules[link] = rule
        self._carry_out({link: (before[link], rule) for link, rule in rules.items() if rule != before[link]})

    def set_rule(self, link: Link, rule: LinkRule) -> None:
        """Replaces the rule of one link."""
        self.set_rules({link: rule})

    def rule(self, link: Link) -> LinkRule:
        """Returns the rule that holds now."""
        return self._rules.get(link, OPEN)

    def cut(self, sources: Iterable[int], targets: Iterable[int], *, both_ways: bool = True) -> None:
        """Cuts every link from ``sources`` to ``targets``, and back with ``both_ways``."""
        target_list = list(targets)
        rules = {}
        for source in sources:
            for target in target_list:
                if source != target:
                    rules[Link(source, target)] = LinkRule(cut=True)
                    if both_ways:
                        rules[Link(target, source)] = LinkRule(cut=True)
        self.set_rules(rules)

    def heal(self) -> None:
        """Removes all rules."""
        self.set_rules(dict.fromkeys(list(self._rules), OPEN))

    @abstractmethod
    def reset(self, members: Iterable[int]) -> int:
        """Ends, for both ends, all connections that one of ``members`` opened or accepted. Returns how many."""

    @abstractmethod
    def _carry_out(self, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> None:
        """Makes links follow their new rules; ``changes`` names the rule before and the rule now."""


class InThread(Protocol):
    """Runs a blocking call outside the event loop, as ``trio.to_thread.run_sync`` does."""

    def __call__(self, function: Callable[[int], object], node_id: int, /) -> Awaitable[object]: ...


def _held(imposed: Sequence[tuple[int, LinkRule]]) -> LinkRule:
    """Returns the combined effect of the rules on one link."""
    rules = [rule for _, rule in imposed]
    return next((rule for rule in reversed(rules) if rule.cut), rules[-1] if rules else OPEN)


class LinkFaults:
    """The rules of several faults on the same links.

    A cut takes precedence, otherwise the last rule applies. The end of a rule restores the rule that applies then.
    """

    def __init__(self, links: LinkRules, in_thread: InThread) -> None:
        """No fault has imposed anything."""
        self.links = links
        self._in_thread = in_thread
        self._imposed: dict[Link, list[tuple[int, LinkRule]]] = {}
        self._tokens = itertools.count()
        self._changing = trio.Lock()

    async def impose(self, rules: Sequence[tuple[Link, LinkRule]]) -> int:
        """Imposes the rules of one fault; returns what ``lift`` takes."""
        async with self._changing:
            token = next(self._tokens)
            for link, rule in rules:
                self._imposed.setdefault(link, []).append((token, rule))
            held = {link: _held(self._imposed[link]) for link, _ in rules}
            await self._do(partial(self.links.set_rules, held))
            return token

    async def lift(self, token: int) -> None:
        """Takes the rules of one fault back."""
        async with self._changing:
            rules = {}
            for link, entries in self._imposed.items():
                left = [entry for entry in entries if entry[0] != token]
                if len(left) < len(entries):
                    self._imposed[link] = left
                    rules[link] = _held(left)
            await self._do(partial(self.links.set_rules, rules))

    async def heal(self) -> None:
        """Takes all rules back."""
        async with self._changing:
            self._imposed.clear()
            await self._do(self.links.heal)

    async def reset(self, members: Sequence[int]) -> int:
        """Ends the connections of ``members``; returns how many."""
        counts: list[int] = []
        async with self._changing:
            await self._do(lambda: counts.append(self.links.reset(members)))
        return counts[0]

    async def _do(self, call: Callable[[], None]) -> None:
        if self.links.blocks:
            await self._in_thread(lambda _: call(), CLIENT)
        else:
            call()
