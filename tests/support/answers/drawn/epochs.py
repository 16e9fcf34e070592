"""Shows epochs of groups by their number in the order of time, since Kafka sometimes raises an epoch twice at once."""

from __future__ import annotations

from typing import Any


def observe(seen: list[int], epoch: int) -> None:
    """Adds the epoch of a group to those that were seen of it."""
    if seen and epoch < seen[-1]:
        seen.clear()  # it is another group of that name
    if epoch not in seen:
        seen.append(epoch)


def with_words(value: Any, seen: list[int]) -> Any:
    """Returns an answer with the numbers of its epochs."""
    if isinstance(value, list):
        return [with_words(each, seen) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _word(key, each, seen) for key, each in value.items()}


def _word(key: str, value: Any, seen: list[int]) -> Any:
    """Returns the number of an epoch; of a member only whether it is the newest one.

    A member that releases partitions twice in a row goes one epoch on in between; with Kafka it waits for the newest.
    """
    if not (key.endswith(("_epoch", "generation_id")) and isinstance(value, int) and value > 0):
        return with_words(value, seen)
    if key in ("member_epoch", "generation_id"):
        return "the newest" if value in seen[-1:] else "an earlier one"
    return f"epoch {seen.index(value)}" if value in seen else "another epoch"
