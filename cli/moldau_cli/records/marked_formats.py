"""Avro and msgpack on the command line: values of JSON, with the marks of ``core.marks`` for what JSON lacks."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moldau_cli.records.core.marks import READERS, Pairs, bytes_of, marked, unmarked

if TYPE_CHECKING:
    from moldau.serialization import SerializationContext
    from moldau_cli.output import Json
    from moldau_cli.records.core.marks import Readers

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP: Final = -1
"""The extension type of msgpack that is a time."""
_MOMENT: Final = re.compile(r"(?P<time>[^.]+T[^.]+?)(\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:\d\d)")


class MarkedAvro:
    """Avro values as JSON."""

    def __init__(self, serde: Any) -> None:  # noqa: ANN401 - a serde of any value
        """Takes the serde of fastavro's values."""
        self._serde = serde

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the bytes of a value of JSON."""
        written: bytes = self._serde.serialize(unmarked(value, READERS), context)
        return written

    def deserialize(self, data: bytes, context: SerializationContext) -> Json:
        """Returns a value of JSON."""
        return marked(self._serde.deserialize(data, context), {})


class _Extension(NamedTuple):
    """A value of an extension type; the numbers below zero are msgpack's own."""

    number: int
    data: bytes


class MarkedMsgpack:
    """Values of msgpack as JSON; maps may have keys of all types."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise ImportError("the format msgpack needs msgpack: pip install msgpack") from error
        self._msgpack = msgpack
        self._more = {msgpack.Timestamp: _time_mark, _Extension: _extension_mark}
        self._readers: Readers = {**READERS, "$time": self._timestamp, "$ext": self._extension}

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the bytes of a value of JSON."""
        packed: bytes = self._msgpack.packb(unmarked(value, self._readers))
        return packed

    def deserialize(self, data: bytes, context: SerializationContext) -> Json:
        """Returns a value of JSON."""
        value = self._msgpack.unpackb(data, strict_map_key=False, object_pairs_hook=Pairs, ext_hook=_Extension)
        return marked(value, self._more)

    def _timestamp(self, text: str) -> object:
        found = _MOMENT.fullmatch(text)
        if found is None:
            raise ValueError("msgpack's times have a date, a time of the day and a time zone")
        moment = datetime.fromisoformat(found["time"] + found["zone"])
        nanoseconds = int((found["fraction"] or "").ljust(9, "0"))
        return self._msgpack.Timestamp((moment - _EPOCH) // timedelta(seconds=1), nanoseconds)

    def _extension(self, held: tuple[int, str]) -> object:
        number, text = held
        data = bytes_of(text)
        if number == _TIMESTAMP:
            return self._msgpack.Timestamp.from_bytes(data)
        return self._msgpack.ExtType(number, data)


def _time_mark(value: Any) -> Json:  # noqa: ANN401 - a Timestamp of msgpack
    """Returns a time in UTC with up to nanoseconds; Python's dates end at the year 9999, msgpack's do not."""
    try:
        moment = _EPOCH + timedelta(seconds=value.seconds)
    except OverflowError:
        return _extension_mark(_Extension(_TIMESTAMP, value.to_bytes()))
    text = moment.isoformat()
    if value.nanoseconds:
        text = f"{text.removesuffix('+00:00')}.{value.nanoseconds:09}+00:00"
    return {"$time": text}


def _extension_mark(value: _Extension) -> Json:
    return {"$ext": [value.number, base64.b64encode(value.data).decode("ascii")]}
