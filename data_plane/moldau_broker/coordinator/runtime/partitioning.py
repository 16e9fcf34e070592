"""Maps groups and transactional ids to partitions of internal topics, with the hash that Kafka's clients assume."""

import sys
from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import Final

_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_UNITS_MAX: Final = 32_767
"""UTF-16 code units of the longest name that a request can hold."""
_UNITS_FEW: Final = 256


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[int, ...]:
    """Returns the first powers of 31, modulo 2**32. Few suffice for nearly all names, and many take 10 ms."""
    return tuple(accumulate(repeat(31, count - 1), lambda power, factor: power * factor & 0xFFFFFFFF, initial=1))


def java_string_hash(text: str) -> int:
    """Returns Java's ``String.hashCode``: 31-adic over UTF-16 code units, as a signed 32-bit integer.

    ``text`` has at most 32,767 code units.
    """
    units = memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H")
    # Clients choose the length, so the loop over the units runs in C.
    powers = _powers(_UNITS_FEW if len(units) <= _UNITS_FEW else _UNITS_MAX)
    value: int = sum(map(mul, units[::-1], powers)) & 0xFFFFFFFF
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
