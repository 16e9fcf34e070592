"""The ``.aux`` object of a remote segment: the files beside its ``.log``, each with its checksum.

    magic 4 ("MRSA") | version 2 (1) | number of parts 2
    for each part: length 4 | CRC-32C 4                    in the order of the fields of ``SegmentParts``
    CRC-32C of all before 4
    the parts, one after the other

All numbers are big-endian and unsigned.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.records.checksum import crc32c
from moldau_broker.log.values import SegmentParts
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError

if TYPE_CHECKING:
    from moldau.values import Buffer

_MAGIC = b"MRSA"
_VERSION = 1
_HEAD = struct.Struct(">4sHH")
_PART = struct.Struct(">II")
_CRC = struct.Struct(">I")
_COUNT = len(SegmentParts._fields)
_HEADER_BYTES = _HEAD.size + _COUNT * _PART.size + _CRC.size
_HINTS = ("offset_index", "time_index")
"""Parts that only save time: a search without them reads more of the ``.log``."""


def encode_auxiliary(parts: SegmentParts) -> bytes:
    """Returns the content of ``.aux``."""
    header = _HEAD.pack(_MAGIC, _VERSION, _COUNT) + b"".join(_PART.pack(len(part), crc32c(part)) for part in parts)
    return b"".join((header, _CRC.pack(crc32c(header)), *parts))


def decode_auxiliary(data: Buffer, name: str = "") -> SegmentParts:
    """Returns the parts of an ``.aux`` whose bytes are all sound; ``name`` of the object stands in the errors.

    Raises:
        CorruptRemoteSegmentError: A byte is damaged, the object is cut or too long, or of an unknown version.
    """
    parts, damage = _decode(data, name)
    if damage:
        raise damage[0]
    return parts


def decode_for_reading(data: Buffer, name: str = "") -> tuple[SegmentParts, list[CorruptRemoteSegmentError]]:
    """Returns as ``decode_auxiliary``, with an empty index in place of a damaged one, and the damage for the log.

    Readers find their batches without an index, in more time. A log must not begin from such parts.

    Raises:
        CorruptRemoteSegmentError: Another part is damaged, or the object as a whole.
    """
    parts, damage = _decode(data, name)
    for error in damage:
        if not error.reason.startswith(_HINTS):
            raise error
    return parts, damage


def _decode(data: Buffer, name: str) -> tuple[SegmentParts, list[CorruptRemoteSegmentError]]:
    """Returns the parts, damaged ones empty, with an error for each; the reason begins with the part's name."""
    if len(data) < _HEADER_BYTES:
        raise CorruptRemoteSegmentError(name, len(data), f"fewer than the {_HEADER_BYTES} bytes of a header")
    magic, version, count = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptRemoteSegmentError(name, 0, f"no auxiliary object of a segment: it begins with {magic!r}")
    if version != _VERSION:
        raise CorruptRemoteSegmentError(name, 4, f"version {version} is unknown, expected {_VERSION}")
    covered = _HEADER_BYTES - _CRC.size
    with memoryview(data) as view:
        if count != _COUNT or _CRC.unpack_from(data, covered) != (crc32c(view[:covered]),):
            raise CorruptRemoteSegmentError(name, covered, "the header does not have its checksum")
        position = _HEADER_BYTES
        found: list[bytes] = []
        damage: list[CorruptRemoteSegmentError] = []
        for index, field in enumerate(SegmentParts._fields):
            length, crc = _PART.unpack_from(data, _HEAD.size + index * _PART.size)
            part = bytes(view[position : position + length])
            if len(part) < length:
                raise CorruptRemoteSegmentError(name, len(data), f"{field} of {length} bytes is cut")
            if crc32c(part) != crc:
                damage.append(CorruptRemoteSegmentError(name, position, f"{field} does not have its checksum"))
                part = b""
            found.append(part)
            position += length
    if position != len(data):
        raise CorruptRemoteSegmentError(name, position, f"{len(data) - position} bytes follow the last part")
    return SegmentParts(*found), damage
