"""Errors of record bytes, and of records that a caller wants to encode."""

from __future__ import annotations


class CorruptRecordError(ValueError):
    """Bytes are not a valid record batch (length, CRC, magic, varint, compression ...).

    Kafka's answer to it is ``CORRUPT_MESSAGE``. It is the only exception that decoding hostile bytes raises.
    """


class UnsupportedMagicError(CorruptRecordError):
    """A message set of format 0 or 1, or one from the future. Kafka's answer is ``UNSUPPORTED_FOR_MESSAGE_FORMAT``."""


class OversizedRecordsError(CorruptRecordError):
    """The records of a batch decompress to more bytes than the reader allows."""


class InvalidRecordError(ValueError):
    """A record or batch is well formed but not acceptable (too large, negative timestamp, keyless ...).

    Kafka's answer to it is ``INVALID_RECORD``.
    """


REASONS = (
    "",
    "a varint runs past the end of the bytes or does not fit its type",
    "the record length is negative or exceeds the bytes of the batch",
    "the key length is below -1 or exceeds the record",
    "the value length is below -1 or exceeds the record",
    "the header count is negative or exceeds what the record can hold",
    "a header key length is negative or exceeds the record",
    "a header value length is below -1 or exceeds the record",
    "its fields do not end where its length says",
    "its offset delta is not above that of the record before, or is above the batch's last offset delta",
    "its timestamp or offset does not fit 64 bits",
    "bytes are left after the last record",
    "its offset delta is not its number in the batch",
    "the batch ends before it, but its header counts it",
)
"""Texts of the reasons that the record codecs (Cython and Python alike) report by number."""


def corrupt_record(reason: int, index: int) -> CorruptRecordError:
    """Returns the error for record number ``index`` (from 0) of a batch."""
    return CorruptRecordError(f"record {index} of the batch: {REASONS[reason]}")
