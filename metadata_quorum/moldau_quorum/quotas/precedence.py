"""Finds the limit that holds for a client: Kafka's eight levels of (user, client-id), and the limits of addresses.

The most specific level that sets a quota wins, for each quota separately. A default applies to each user or client id
by itself: a default of users gives every user an allowance of its own. A level of users alone gives all client ids of
the user one allowance together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau_quorum.metadata.persistent_map import PersistentMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_quorum.metadata.image import QuotaEntity

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_ABSENT, _OWN, _DEFAULT = "absent", "own", "default"

LEVELS: Final = (
    (_OWN, _OWN),
    (_OWN, _DEFAULT),
    (_OWN, _ABSENT),
    (_DEFAULT, _OWN),
    (_DEFAULT, _DEFAULT),
    (_DEFAULT, _ABSENT),
    (_ABSENT, _OWN),
    (_ABSENT, _DEFAULT),
)
"""User and client id of the entities that are asked for a limit, the most specific first (KIP-55)."""


class Limit(NamedTuple):
    """A limit and the group that shares it: all connections whose requests have this user and client id."""

    key: str
    value: float
    user: str | None
    """None if users share the limit."""
    client_id: str | None
    """None if client ids share the limit."""

    @property
    def group(self) -> tuple[str, str | None, str | None]:
        """The identity of the shared allowance; it outlives a change of ``value``."""
        return self.key, self.user, self.client_id


@dataclass(frozen=True, slots=True)
class QuotaIndex:
    """The quotas of one metadata image. Invariant: ``uses`` counts the entities in ``entries`` that set each key."""

    entries: PersistentMap[QuotaEntity, Mapping[str, float]] = field(default_factory=PersistentMap)
    uses: Mapping[str, int] = field(default_factory=dict)

    def changed(
        self, entries: PersistentMap[QuotaEntity, Mapping[str, float]], entities: Iterable[QuotaEntity]
    ) -> QuotaIndex:
        """Returns the index of a later image; ``entities`` are those whose quotas differ."""
        uses = dict(self.uses)
        for entity in entities:
            for key in self.entries.get(entity) or ():
                uses[key] -= 1
            for key in entries.get(entity) or ():
                uses[key] = uses.get(key, 0) + 1
        return QuotaIndex(entries, {key: count for key, count in uses.items() if count})

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Returns the limit of the most specific level that sets ``key``; None if no level does."""
        if key not in self.uses:
            return None
        for user_level, client_level in LEVELS:
            value = self._value(key, _entity(user_level, user, client_level, client_id))
            if value is not None:
                return Limit(
                    key,
                    value,
                    None if user_level is _ABSENT else user,
                    None if client_level is _ABSENT else client_id,
                )
        return None

    def connection_rate(self, host: str) -> float | None:
        """Returns how many connections a second an address may open; None if that is unlimited (KIP-612)."""
        if CONNECTION_CREATION_RATE not in self.uses:
            return None
        own = self._value(CONNECTION_CREATION_RATE, ((_IP, host),))
        return own if own is not None else self._value(CONNECTION_CREATION_RATE, ((_IP, None),))

    def _value(self, key: str, entity: QuotaEntity) -> float | None:
        values = self.entries.get(entity)
        return None if values is None else values.get(key)


def _entity(user_level: str, user: str, client_level: str, client_id: str) -> QuotaEntity:
    """Returns the entity of a level, in the order in which the metadata keep its parts."""
    parts: list[tuple[str, str | None]] = []
    if client_level is not _ABSENT:
        parts.append((_CLIENT_ID, client_id if client_level is _OWN else None))
    if user_level is not _ABSENT:
        parts.append((_USER, user if user_level is _OWN else None))
    return tuple(parts)
