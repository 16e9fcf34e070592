"""The parts of a broker that read remote segments, as its handlers know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.remote_reading.reads import RemoteReads


class RemoteReading(NamedTuple):
    """The parts of a broker that read remote segments."""

    reader: RemoteReader
    reads: RemoteReads
    """The reads of fetches."""
