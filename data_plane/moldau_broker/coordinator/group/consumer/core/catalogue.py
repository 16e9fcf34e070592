"""The topics and settings of the cluster, as the decisions on consumer groups use them. Pure: ports and a hash."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from moldau_broker.coordinator.runtime.ports import TopicNames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Catalogue(TopicNames, Protocol):
    """Topics and group settings as the metadata image knows them at the moment of the call."""

    def partition_count(self, name: str) -> int:
        """Returns the number of partitions of a topic; 0 if there is no such topic."""
        ...

    def names(self) -> Sequence[str]:
        """Returns the names of all topics, sorted; the same object while none is created or deleted."""
        ...

    def version(self) -> int:
        """Returns a number that grows whenever a topic, or a right to describe topics, may have changed."""
        ...

    def group_setting(self, group_id: str, key: str) -> int | None:
        """Returns a value of the dynamic configuration of a group; None if it has none of its own."""
        ...


if TYPE_CHECKING:
    Compile = Callable[[str], Callable[[str], bool]]
    """Compiles a regular expression into a test of whole topic names.

    Raises ``KafkaError(INVALID_REGULAR_EXPRESSION)``.
    """


def group_setting(catalogue: Catalogue, group_id: str, key: str, default: int) -> int:
    """Returns a setting of a group; ``default`` if the group has none of its own."""
    own = catalogue.group_setting(group_id, key)
    return default if own is None else own


def metadata_hash(topics: Iterable[str], catalogue: Catalogue) -> int:
    """Returns a hash of the given topics, which changes when one is created, deleted, or gets partitions.

    It is 0 if none of the topics exists. The group's record contains it, so a new coordinator sees what has changed.
    """
    digest = hashlib.blake2b(digest_size=8)
    empty = True
    for name in sorted(topics):
        topic_id = catalogue.topic_id(name)
        if topic_id is not None:
            empty = False
            digest.update(f"{name}\0{topic_id.hex}\0{catalogue.partition_count(name)}\0".encode())
    return 0 if empty else int.from_bytes(digest.digest(), "big", signed=True)
