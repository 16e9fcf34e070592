"""Exception groups, in which trio raises the exceptions of several tasks. Pure."""

from __future__ import annotations

from contextlib import contextmanager
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


@contextmanager
def exits_unwrapped() -> Iterator[None]:
    """Takes a KeyboardInterrupt or a SystemExit out of the groups in which nurseries raise it.

    A script that the user interrupts must end as Python ends it, wherever the signal met the client's tasks. The group
    is the cause of the exception if it holds other errors.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        found = list(leaves(group))
        ending = next((each for each in found if isinstance(each, KeyboardInterrupt | SystemExit)), None)
        if ending is None:
            raise
        raise ending from (group if any(isinstance(each, Exception) for each in found) else None)
