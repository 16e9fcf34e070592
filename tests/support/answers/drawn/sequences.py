"""Draws sequences of requests from a small vocabulary, sends them to two brokers, and compares answer by answer.

A step names no id that a broker has chosen, only "the second member" or "one epoch before that of t1"; a world, one for
each broker, knows what that broker has answered. So a step means the same to both, and still means something after
other steps were dropped, which is how a sequence with a difference becomes a short one.
"""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import trio

from moldau.protocol.errors import ErrorCode
from moldau.records import CorruptRecordError, decode_records, iterate_batches
from support.answers.drawn.rules import Rule, rule_of
from support.answers.session import AnswerSession, Broker, codes_of, differing, open_connection

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

LENGTHS: Final = (10, 60)
"""The least and the most steps of a sequence."""
_runs = itertools.count(1)
_CLIENT: Final = uuid.uuid4().hex[:6]


class Step(NamedTuple):
    """One request of a sequence: its kind, and what was drawn for it."""

    kind: str
    drawn: Mapping[str, Any]

    def __str__(self) -> str:
        """Returns the step in one line."""
        return f"{self.kind}({', '.join(f'{key}={value!r}' for key, value in self.drawn.items())})"


class DrawnSession(AnswerSession):
    """A session that tells the ids apart that its broker has given."""

    def comparable(self, value: object, name: str = "", version: int = 0) -> object:
        """Returns an id that is known under its word, and all else as usual."""
        if isinstance(value, int | str) and (name, value) in self._known:
            return self._known[name, value]
        return super().comparable(value, name, version)

    @property
    def address(self) -> str:
        """Where the broker listens."""
        return self.broker.address

    def word(self, value: str) -> str:
        """Returns the word under which an id is known."""
        return self._known.get(value, value)

    def given(self, field: str, value: int | str, word: str) -> None:
        """Shows an id that the broker has given as ``word`` in fields of one name."""
        self._known[field, value] = word

    def shown(self, name: str, answer: Any, version: int) -> None:
        """Keeps an answer as that of a step, with the ids that are known by now."""
        self.answers[name] = self.comparable(answer, version=version)

    async def quietly(self, request: Any, version: int | None = None) -> Any:
        """Sends a request whose answer is not compared."""
        step = "(not compared)"
        answer = await self.ask(step, request, version)
        self.answers.pop(step)
        return answer

    async def served(self, request: Any, version: int | None = None) -> None:
        """Sends a request until it is answered without any error."""
        for _ in range(400):
            if not codes_of(await self.quietly(request, version)) - {ErrorCode.NONE}:
                return
            await trio.sleep(0.05)
        raise AssertionError(f"{type(request).__name__} is not served")


class World(Protocol):
    """Sends the steps of an area to one broker, and remembers its answers."""

    session: DrawnSession

    async def prepare(self) -> None:
        """Creates what the sequence needs."""

    async def send(self, name: str, step: Step) -> None:
        """Sends one step, whose answers begin with ``name``."""

    async def finish(self) -> None:
        """Ends what would outlive the sequence."""


class Area(NamedTuple):
    """The requests of one area."""

    world: Callable[[DrawnSession], World]
    draw: Callable[[random.Random], list[Step]]
    """Draws a whole sequence."""


class Difference(NamedTuple):
    """An answer that differs without a rule."""

    number: int
    step: Step
    path: str
    kafka: object
    moldau: object

    def __str__(self) -> str:
        """Returns the difference in one line."""
        return f"{self.step}{self.path}: Kafka {self.kafka!r}, Moldau {self.moldau!r}"


def weighted(rng: random.Random, kinds: Mapping[str, int]) -> str:
    """Returns one of the words, each as often as its weight says."""
    return rng.choices(list(kinds), weights=list(kinds.values()))[0]


def length(rng: random.Random) -> int:
    """Returns the length of a sequence."""
    return rng.randint(*LENGTHS)


def decoded(records: Any) -> list[str]:
    """Returns what the batches of a Fetch hold, one line for each record; control batches with their keys."""
    data = bytes(records or b"")
    lines = []
    for start, header in iterate_batches(data):
        shown = (
            f"attributes {header.attributes}, epoch {header.producer_epoch}, sequence {header.base_sequence}, "
            f"leader epoch {header.partition_leader_epoch}"
        )
        try:
            lines += [f"{each.offset}: {shown}, {each.key!r}" for each in decode_records(data, start, header)]
        except CorruptRecordError:
            lines.append(f"{header.base_offset}: {shown}, damaged")
    return lines


async def _answers(broker: Broker, area: Area, steps: Sequence[Step], run: str) -> dict[str, object]:
    session = DrawnSession(await open_connection(broker.address), broker, run)
    try:
        world = area.world(session)
        await world.prepare()
        session.answers.clear()
        for number, step in enumerate(steps):
            await world.send(f"{number:02}", step)
        await world.finish()
    finally:
        session.connection.close()
    return session.answers


def first_difference(
    brokers: tuple[Broker, Broker], area: Area, steps: Sequence[Step], rules: Sequence[Rule]
) -> Difference | None:
    """Sends a sequence to both brokers, and returns the first difference without a rule."""
    run = f"{_CLIENT}{next(_runs)}"
    results: list[dict[str, object]] = [{}, {}]

    async def main() -> None:
        async def one(index: int) -> None:
            results[index] = await _answers(brokers[index], area, steps, run)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            nursery.start_soon(one, 1)

    trio.run(main)
    theirs, ours = results
    for name in dict.fromkeys([*theirs, *ours]):
        step = steps[int(name[:2])]
        for path, kafka, moldau in differing(theirs.get(name, "(no step)"), ours.get(name, "(no step)")):
            rule = rule_of(rules, *step, name[2:] + path, kafka, moldau)
            if rule is None:
                return Difference(int(name[:2]), step, name[2:] + path, kafka, moldau)
            if rule.ends:
                return None
    return None


def shrunk(steps: Sequence[Step], differs: Callable[[Sequence[Step]], Difference | None]) -> list[Step]:
    """Drops steps from a sequence while it still has a difference at a step of the same kind."""
    found = differs(steps)
    assert found is not None
    kind, path = found.step.kind, found.path
    left = list(steps[: found.number + 1])
    size = max(1, len(left) // 2)
    while True:
        start, dropped = 0, False
        while start < len(left) - 1:
            tried = left[:start] + left[min(start + size, len(left) - 1) :]
            again = differs(tried)
            if again is not None and (again.step.kind, again.path) == (kind, path):
                left, dropped = tried[: again.number + 1], True
            else:
                start += size
        if size == 1 and not dropped:
            return left
        size = max(1, size // 2)
