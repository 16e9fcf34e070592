"""Signatures and documentation of the cleaner's loops; ``_cleaning.pyx`` and ``pure.cleaning`` both obey them.

The table of keys is one buffer of entries of 24 bytes: a key's 16-byte xxh3 hash, then the offset of its last record
plus one, big-endian (0: the entry is empty). A key's entry is looked for at hash[0:8] modulo the number of entries,
then in 32 jumps of 1 + hash[8:16] modulo (that number - 1), then entry by entry. Each jump is a probe.
"""

from mmap import mmap

Buffer = bytes | bytearray | memoryview

def map_keys(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    first_offset: int,
    table: bytearray | mmap,
    used: int,
    used_max: int,
) -> tuple[int, int, bool]:
    """Notes the keys of the ``count`` records in ``buffer[start:end]`` (uncompressed) from ``first_offset`` on.

    ``used`` entries of the table are in use, more than ``used_max`` are never. Returns how many are now, the probes,
    and whether all keys found room: it stops before the first that did not. Records without a key are passed over.
    Raises ``CorruptRecordError``; the keys before the broken record have been noted then.
    """

def select_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    latest_offset: int,
    keeps_tombstones: bool,
    table: bytearray | mmap,
) -> tuple[bytes, int, bool, int]:
    """Tells which of the ``count`` records in ``buffer[start:end]`` (uncompressed) stay.

    Those above ``latest_offset``, up to which the table knows everything; and those with a key whose last offset in
    the table is not above theirs, unless they are tombstones and ``keeps_tombstones`` is False. Returns a byte for each
    record (1: stays), how many stay, whether a tombstone is among them, and the probes. Raises ``CorruptRecordError``.
    """
