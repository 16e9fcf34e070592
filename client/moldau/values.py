"""Values that every package names. Pure.

They are byte buffers, the nil UUID, integers that must not be confused, marks that brokers and tools share, and the
base of errors that pass between processes.
"""

import re
from typing import Final, NewType
from uuid import UUID

Buffer = bytes | bytearray | memoryview
"""Bytes in any form that can be read without a copy."""

ZERO_UUID: Final = UUID(int=0)
"""Kafka's "no id": no topic id, no directory, no incarnation."""

Offset = NewType("Offset", int)
"""A record's position in the log of a partition; -1 where Kafka's messages mean "unknown"."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""The number of a partition's leadership, which grows with each election; -1 where Kafka's messages mean "unknown"."""

BrokerId = NewType("BrokerId", int)
"""The id of a broker, ``node.id``; negative where there is no broker. ADR 0011 says where these types are used."""

LOW_BYTES_MAX: Final = 1 << 30
"""A disk with so many usable bytes is not nearly full, however large it is."""

_BY_DURATION: Final = "by_duration:"
_LOW_SHARE: Final = 20
_DURATION: Final = re.compile(
    r"([-+]?)P(?:([-+]?\d{1,12})D)?"
    r"(?:T(?:([-+]?\d{1,12})H)?(?:([-+]?\d{1,12})M)?(?:([-+]?\d{1,12}(?:[.,]\d*)?)S)?)?",
    re.IGNORECASE,  # as in Java, which also takes signs and a decimal comma
)


class Portable:
    """An exception that ``pickle`` and ``copy`` can rebuild, whatever its constructor takes.

    By default they call the class with ``args``, which is the text alone. Pools of processes then break or hang.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        assert isinstance(self, BaseException)
        return _rebuilt, (type(self), self.args), vars(self)


def _rebuilt(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError with a constructor of its own keeps none before that runs
    return error


def low_mark_bytes(total_bytes: int) -> int:
    """Returns the usable bytes below which a disk is nearly full: a twentieth of it, and at most 1 GiB."""
    return min(LOW_BYTES_MAX, total_bytes // _LOW_SHARE)


def duration_ms(text: str) -> int:
    """Parses an ISO 8601 duration of days, hours, minutes and seconds.

    Raises:
        ValueError: a value is not allowed.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ValueError(f"{text!r} is no duration such as P1D or PT1H30M")
    sign, *parts = match.groups()
    days, hours, minutes, seconds = (float((part or "0").replace(",", ".")) for part in parts)
    milliseconds = int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
    if sign == "-":
        milliseconds = -milliseconds
    if milliseconds < 0:
        raise ValueError(f"{text!r} is negative")
    return milliseconds


def is_text(value: str) -> bool:
    """Returns whether UTF-8 can hold a string: not with half of a surrogate pair, which JSON can escape."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    """Returns ``host:port`` for people and for configurations: an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def list_elements(text: str) -> tuple[str, ...]:
    """Returns the elements of a list with commas, without the blanks around them and without empty elements."""
    return tuple(element for element in (part.strip() for part in text.split(",")) if element)


def reset_duration_ms(reset: str) -> int | None:
    """Returns the duration of ``by_duration:DURATION``, a value of ``auto.offset.reset``; None for another value.

    Raises:
        ValueError: the duration cannot be parsed.
    """
    return duration_ms(reset.removeprefix(_BY_DURATION)) if reset.startswith(_BY_DURATION) else None


def is_reset(reset: str, *names: str) -> bool:
    """Returns whether a value of ``auto.offset.reset`` is one of ``names``, or ``by_duration:`` with a duration."""
    try:
        return reset in names or reset_duration_ms(reset) is not None
    except ValueError:
        return False
