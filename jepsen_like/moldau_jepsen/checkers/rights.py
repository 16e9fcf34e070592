"""Judges answers about rights and logins against what the answering broker knew while it answered.

A broker decides with the newest metadata that it has applied, which a fault may hold back for any time. So the judge
looks at that broker's own metadata. What it permitted from the request to the answer must not be denied, and what it
never permitted in that time must not be acknowledged. ``permits`` says what ACLs mean: it is a plain search of the list
and shares no code with the authorizer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WILDCARD: Final = "*"
ALL, READ, WRITE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 6, 7, 8
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
IMPLY_DESCRIBE: Final = (READ, WRITE, DELETE, ALTER)


class Entry(Protocol):
    """An access control entry with Kafka's numbers."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class Right(NamedTuple):
    """An operation of one principal on one resource, which may be permitted."""

    principal: str
    operation: int
    resource_type: int
    name: str


def permits(entries: Iterable[Entry], right: Right) -> bool:
    """Returns whether access control entries, all for any host, permit it: deny wins; without an entry nothing is."""
    is_allowed = False
    for entry in entries:
        if entry.resource_type != right.resource_type or entry.principal not in (right.principal, "User:*"):
            continue
        if entry.pattern_type == PREFIXED:
            if not right.name.startswith(entry.resource_name):
                continue
        elif entry.resource_name not in (right.name, WILDCARD):
            continue
        if entry.permission_type == DENY:
            if entry.operation in (ALL, right.operation):
                return False
        elif entry.operation in (ALL, right.operation) or (
            right.operation == DESCRIBE and entry.operation in IMPLY_DESCRIBE
        ):
            is_allowed = True
    return is_allowed


@dataclass(slots=True, eq=False)
class Watched:
    """A request under way, with what the metadata of its broker have permitted and denied since it was sent."""

    look: Callable[[], bool | None]
    """Returns whether the broker's present metadata permit it; None while the broker is down."""
    was_permitted: bool = False
    was_denied: bool = False

    def sample(self) -> None:
        """Notes what the broker's present metadata say."""
        known = self.look()
        if known is not None:
            self.was_permitted = self.was_permitted or known
            self.was_denied = self.was_denied or not known

    def wrong(self, *, permitted: bool) -> str | None:
        """Returns the rule that the answer breaks, None if it breaks none."""
        if permitted and self.was_denied and not self.was_permitted:
            return PERMITTED
        if not permitted and self.was_permitted and not self.was_denied:
            return DENIED
        return None


PERMITTED: Final = "permitted-though-denied"
DENIED: Final = "denied-though-permitted"


class Outcome(enum.Enum):
    """A client's observation."""

    PERMITTED = "permitted"
    DENIED = "denied"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class RightsVerdict:
    """The answers of a run, counted, and those that were wrong."""

    permitted: int = 0
    denied: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """Rule and text."""

    def take(self, watched: Watched, outcome: Outcome, text: str) -> None:
        """Judges an answer."""
        if outcome is Outcome.UNKNOWN:
            return
        permitted = outcome is Outcome.PERMITTED
        self.permitted += permitted
        self.denied += not permitted
        rule = watched.wrong(permitted=permitted)
        if rule is not None:
            self.wrong.append((rule, text))
