"""The port to object stores: named, immutable pieces of bytes that outlive the machines that wrote them.

A name is a path of ASCII letters, digits, ``_``, ``-`` and ``.`` with ``/`` between its parts. An object is written as
a whole or not at all, is never changed, and is listed as soon as it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

LISTED_MAX = 1_000
"""Objects of one page of a listing, at most."""


class ObjectStoreError(Exception):
    """A store could not do what it was asked for. After ``put`` and ``delete`` it is unknown whether it was done."""


class ObjectNotFoundError(ObjectStoreError):
    """There is no object of that name."""


class StoredObject(NamedTuple):
    """An object as a listing shows it."""

    name: str
    size_bytes: int
    modified_ms: int
    """When it was written, by the clock of the store, in milliseconds since the epoch."""


class Content(Protocol):
    """The bytes of an object that is written. Its size does not change meanwhile."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole content."""
        ...

    def read(self, position: int, count: int) -> bytes:
        """Returns ``count`` bytes from ``position`` on; fewer only at the end. Blocks; may be called in any thread.

        Raises:
            OSError: the bytes could not be read.
        """
        ...


class ObjectStore(Protocol):
    """One store, or one folder of it. Each call may be cancelled; each has a bound on its duration."""

    async def put(self, name: str, content: Content) -> None:
        """Writes an object as a whole; durable on return. The same name may be put again, with the same bytes.

        Raises:
            ObjectStoreError: it is unknown whether the object exists now.
            OSError: the content could not be read; the object does not exist.
        """
        ...

    async def read(self, name: str, position: int, count: int) -> bytes:
        """Returns ``count`` bytes of an object from ``position`` on; fewer only at its end.

        Raises:
            ObjectNotFoundError: there is no such object.
            ObjectStoreError: the store did not answer, or refused.
        """
        ...

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        """Returns the first objects whose names begin with ``prefix`` and are greater than ``after``, by name.

        At most ``LISTED_MAX``; an empty page is the end.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
        """
        ...

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """Returns the next parts of the names that begin with ``prefix``, which is empty or ends with ``/``.

        Only parts with a ``/`` behind them, each once, without it, in order. Complete.

        Raises:
            ObjectStoreError: the store did not answer, or refused.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Deletes objects; those that do not exist are no error. Durable on return.

        Raises:
            ObjectStoreError: it is unknown which of them exist now.
        """
        ...

    def close(self) -> None:
        """Gives connections back. No call is in progress."""
        ...
