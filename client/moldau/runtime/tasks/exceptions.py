"""Exception groups, in which trio raises the exceptions of several tasks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yields the exceptions inside of groups, in order; an exception that is no group is its own only leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
