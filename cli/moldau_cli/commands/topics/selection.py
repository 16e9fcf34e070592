"""Selects the topics of a command: by name, or by an expression; those that must exist, and those that may be gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from moldau_cli.errors import UsageError
from moldau_cli.words import expression_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau import Admin

Include = Annotated[
    str | None, typer.Option("--include", metavar="REGEX", help="Only topics whose whole name matches.")
]
IfExists = Annotated[bool, typer.Option("--if-exists", help="A topic that does not exist is not an error.")]


class Chosen(NamedTuple):
    """The topics that the user asks about."""

    names: list[str]
    """Empty: all that match."""
    matches: Callable[[str], bool]
    if_exists: bool
    internal: bool


def pattern_of(include: str | None) -> Callable[[str], bool]:
    """Returns whether a name matches an expression as a whole; every name does without one.

    Raises:
        UsageError: it is no regular expression.
    """
    pattern = expression_of(".*" if include is None else include, "--include")
    return lambda name: pattern.fullmatch(name) is not None


def chosen_topics(names: list[str], include: str | None, *, if_exists: bool) -> Chosen:
    """Returns the topics of a command that changes some: by name, or by an expression.

    Raises:
        UsageError: neither or both are given, or the expression is wrong.
    """
    if bool(names) == (include is not None):
        raise UsageError("give either names or --include")
    return Chosen(names, pattern_of(include), if_exists, internal=False)


async def names_of(admin: Admin, chosen: Chosen) -> list[str]:
    """Returns the names of the chosen topics, as far as the broker that is asked knows them."""
    return await _existing(admin, chosen.names) if chosen.names and chosen.if_exists else await named(admin, chosen)


async def named(admin: Admin, chosen: Chosen) -> list[str]:
    """Returns the names that the user gives, or those that match."""
    if chosen.names:
        return [*chosen.names]
    return [one.name for one in await admin.list_topics(include_internal=chosen.internal) if chosen.matches(one.name)]


async def bear_absent(asked: Awaitable[object], wanted: list[str], chosen: Chosen) -> None:
    """Waits for a change of topics; takes those that do not exist out of ``wanted``, unless they have to.

    The controller knows which topics exist. A broker that is behind lists a deleted topic, or lacks a new one.

    Raises:
        AdminError: the change failed for other topics.
    """
    from moldau.admin import AdminError
    from moldau.protocol.errors import ErrorCode

    try:
        await asked
    except AdminError as error:
        if chosen.names and not chosen.if_exists:
            raise
        gone = [name for name, one in error.failures.items() if one.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        wanted[:] = [name for name in wanted if name not in gone]
        left = {name: one for name, one in error.failures.items() if name not in gone}
        if left:
            raise AdminError(left, error.results) from error


async def _existing(admin: Admin, names: list[str]) -> list[str]:
    known = {topic.name for topic in await admin.list_topics(include_internal=True)}
    return [name for name in names if name in known]
