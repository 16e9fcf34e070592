"""The record that a function returns to have it sent. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple

from moldau.serialization.core.values import KeyIn, ValueIn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.values import Buffer


class OutputRecord(NamedTuple, Generic[KeyIn, ValueIn]):
    """A record that ``transform`` sends; the fields are the parameters of ``send``."""

    topic: str
    value: ValueIn | None
    key: KeyIn | None = None
    headers: Iterable[tuple[str, Buffer | None]] = ()
    partition: int | None = None
    timestamp: int | None = None
