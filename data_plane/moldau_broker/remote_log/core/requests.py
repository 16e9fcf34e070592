"""Values that the readers of remote segments ask their caller for.

A reader is a generator. It yields a request, and the caller sends the answer:

    ReadRange   exactly those bytes of the segment's ``.log``, as a buffer that stays as it is until the next one
    ReadParts   the decoded ``.aux`` of the segment (``auxiliary.decode_for_reading``)
    LongStep    None, after the step was run outside the event loop
    None        None, after other tasks could run

A caller that gets no answer from the store throws its error into the generator, or closes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_broker.log.values import SegmentParts

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    from moldau.records.decompression import LongStep
    from moldau.values import Buffer
    from moldau_broker.remote_log.core.names import RemoteSegment

    _Result = TypeVar("_Result")
    Reader = Generator["ReadRange | ReadParts | LongStep | None", "Buffer | SegmentParts | None", _Result]


class ReadRange(NamedTuple):
    """Asks for bytes ``position .. position + size_bytes - 1`` of the segment's ``.log``, which all lie within it."""

    segment: RemoteSegment
    position: int
    size_bytes: int


class ReadParts(NamedTuple):
    """Asks for the parts in the segment's ``.aux``."""

    segment: RemoteSegment


def answered_buffer(answer: Buffer | SegmentParts | None) -> Buffer:
    """Returns the answer to a ``ReadRange``."""
    assert answer is not None
    assert not isinstance(answer, SegmentParts)
    return answer


def answered_parts(answer: Buffer | SegmentParts | None) -> SegmentParts:
    """Returns the answer to a ``ReadParts``."""
    assert isinstance(answer, SegmentParts)
    return answer
