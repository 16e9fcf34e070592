"""The check of a batch as producers usually send it, in one pass."""

from collections.abc import Callable

from moldau.records.batch import BatchHeader

def check_plain_batch(
    records: memoryview,
    make: type[BatchHeader],
    checksum: Callable[[memoryview], int],
    size_max: int,
    earliest: int,
    latest: int,
    needs_keys: bool,
    /,
) -> BatchHeader | None:
    """Checks header, CRC-32C and records of exactly one batch of at most ``size_max`` bytes.

    Returns its header (``make``) if it is without compression and without faults, and its greatest timestamp is the one
    in the header. Returns None for any other bytes, which says nothing about them: the caller checks them step by step.
    Timestamps, besides -1, lie between ``earliest`` and ``latest``; ``needs_keys`` makes a missing key a fault.
    """
