"""Maps groups and transactional ids to partitions of internal topics, with the hash that Kafka's clients assume."""

import sys
from operator import mul
from typing import Final

_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_UNITS_MAX: Final = 32_767
"""UTF-16 code units of the longest name that a request can hold."""
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_UNITS_MAX - 1, -1, -1))


def java_string_hash(text: str) -> int:
    """Returns Java's ``String.hashCode``: 31-adic over UTF-16 code units, as a signed 32-bit integer.

    ``text`` has at most 32,767 code units.
    """
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    # Clients choose the length, so the loop over the units runs in C.
    value: int = sum(map(mul, units, _POWERS[_UNITS_MAX - len(units) :])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def partition_for(key: str, partition_count: int) -> int:
    """Returns the partition of ``__consumer_offsets`` or ``__transaction_state`` that coordinates ``key``.

    Args:
        key: group id or transactional id.
        partition_count: partitions of the internal topic, at least 1.
    """
    assert partition_count >= 1
    value = java_string_hash(key)
    return (0 if value == -0x8000_0000 else abs(value)) % partition_count
