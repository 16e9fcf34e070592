"""Explores all short histories of a small world, breadth first.

A world is a value that can be built again from its history: it lists the actions that are possible now, performs one,
and checks its own rules with assertions. Two histories that lead to the same ``key`` are followed once. So a violation
is reported with one of the shortest histories that show it, which reads as a story.

A world with a ``settle`` method is also asked in every state whether it can still reach its goal: ``settle`` ends all
disturbances and asserts that the actors get on. A lost wake-up and a state without an exit fail there.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

Action = tuple[str | int | bool, ...]
"""Name of a method of the world, and its arguments."""


class World(Protocol):
    """A small world."""

    def actions(self) -> Sequence[Action]:
        """Returns the actions that are possible now, always in the same order."""
        ...

    def key(self) -> Hashable:
        """Returns the state, so that equal states have equal futures."""
        ...

    def check(self) -> None:
        """Asserts what holds in every state."""
        ...


class ViolationError(AssertionError):
    """A history that breaks a rule of its world."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The size of an exploration."""

    states: int
    """Different states that were reached."""
    steps: int
    """Actions that were tried in them."""


def explore(make: Callable[[], World], depth: int, *, settle_depth: int | None = None, copies: bool = True) -> Explored:
    """Performs all histories of up to ``depth`` actions.

    Args:
        make: builds the world.
        depth: the largest number of actions.
        settle_depth: the largest number of actions after which the world is settled; all by default.
        copies: whether worlds can be pickled; otherwise they are built again from their histories.

    Raises:
        ViolationError: A history breaks a rule; its text lists the actions.
    """
    start = make()
    start.check()
    seen = {start.key()}
    waiting: deque[tuple[tuple[Action, ...], bytes]] = deque([((), pickle.dumps(start) if copies else b"")])
    steps = 0
    while waiting:
        history, image = waiting.popleft()

        def again(history: tuple[Action, ...] = history, image: bytes = image) -> World:
            return pickle.loads(image) if copies else replayed(make, history)

        world = again()
        actions = world.actions()
        for number, action in enumerate(actions):
            steps += 1
            longer = (*history, action)
            if number:
                world = again()
            try:
                perform(world, action)
                world.check()
                key = world.key()
            except AssertionError as error:
                raise ViolationError(as_text(longer, error)) from error
            if key in seen:
                continue
            seen.add(key)
            if len(longer) < depth:
                waiting.append((longer, pickle.dumps(world) if copies else b""))
            if settle_depth is None or len(longer) <= settle_depth:
                _settle(world, longer)
    return Explored(states=len(seen), steps=steps)


def replayed(make: Callable[[], World], history: Sequence[Action]) -> World:
    """Returns the world after a history."""
    world = make()
    for action in history:
        perform(world, action)
    return world


def perform(world: World, action: Action) -> None:
    """Performs one action."""
    getattr(world, str(action[0]))(*action[1:])


def _settle(world: World, history: Sequence[Action]) -> None:
    settle = getattr(world, "settle", None)
    if settle is None:
        return
    try:
        settle()
    except AssertionError as error:
        raise ViolationError(as_text((*history, ("settle",)), error)) from error


def as_text(history: Sequence[Action], error: AssertionError) -> str:
    """Returns a history as text, one action a line, and what is wrong at its end."""
    lines = [f"  {name}({', '.join(map(repr, arguments))})" for name, *arguments in history]
    return "\n".join([f"{error}", "after", *lines])
