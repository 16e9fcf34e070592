"""The eight levels of quotas, as KIP-55 lists them, and a naive search among them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import ClientQuotaRecord
from moldau_quorum.quotas.precedence import PRODUCER_BYTE_RATE, QuotaIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Parts = dict[str, str | None]
Quota = tuple[Parts, str, float | None]

ORDER: list[Parts] = [
    {"user": "alice", "client-id": "app"},
    {"user": "alice", "client-id": None},
    {"user": "alice"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
]
"""The levels as KIP-55 lists them, the most specific first."""
CLIENTS = list(itertools.product(("alice", "bob"), ("app", "other", "")))


def entity(parts: Parts) -> tuple[tuple[str, str | None], ...]:
    return tuple(sorted(parts.items()))


def image_of(quotas: Iterable[Quota], image: MetadataImage | None = None) -> MetadataImage:
    records = [ClientQuotaRecord(entity=entity(parts), key=key, value=value) for parts, key, value in quotas]
    return (image or MetadataImage()).apply(records, offset=0, epoch=0).image


def index_of(image: MetadataImage) -> QuotaIndex:
    return QuotaIndex().changed(image.quotas, list(image.quotas))


def naive(
    configured: Sequence[tuple[Parts, float]], user: str, client_id: str
) -> tuple[float, str | None, str | None] | None:
    """Returns value and group of the first level that fits, by comparing every part."""
    for parts, value in sorted(configured, key=lambda each: ORDER.index(each[0])):
        own = {"user": user, "client-id": client_id}
        if all(name in (None, own[kind]) for kind, name in parts.items()):
            return value, user if "user" in parts else None, client_id if "client-id" in parts else None
    return None


def check_every_subset_of_levels() -> None:
    """The most specific of the configured levels decides, for any subset of the eight."""
    for subset in range(256):
        levels = [(parts, 100.0 + number) for number, parts in enumerate(ORDER) if subset >> number & 1]
        index = index_of(image_of([(parts, PRODUCER_BYTE_RATE, value) for parts, value in levels]))
        for user, client_id in CLIENTS:
            found = index.limit(PRODUCER_BYTE_RATE, user, client_id)
            assert (found and tuple(found[1:])) == naive(levels, user, client_id)
