"""Keys and values of the records in internal topics, as Kafka writes them: a 16-bit version, then the fields. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.codec import DecodeError, decode, encode
from moldau_broker.coordinator.runtime.effects import StateRecord

if TYPE_CHECKING:
    from moldau.protocol.schema import Data
    from moldau.values import Buffer

_VERSION = struct.Struct(">h")
FIELDS_AT: Final = _VERSION.size
"""Where the fields of a key or value begin."""
D = TypeVar("D", bound="Data")


def encode_versioned(message: Data, version: int) -> bytes:
    """Returns a key or value in a version."""
    return _VERSION.pack(version) + encode(message, version)


def state_record(key: Data, value: Data | None) -> StateRecord:
    """Returns the record of a key with one version and a value in version 0; without a value, its tombstone."""
    data = None if value is None else encode_versioned(value, 0)
    return StateRecord(encode_versioned(key, key.__versions__.first), data)


def versioned_key(key: Buffer | None, coordinator: str) -> tuple[int, Buffer]:
    """Returns the version of a record's key, which says what kind of record it is, and the key.

    Raises:
        DecodeError: it has none; ``coordinator`` is for the message.
    """
    if key is None or len(key) < FIELDS_AT:
        raise DecodeError(f"a record of a {coordinator} coordinator has no versioned key")
    return _VERSION.unpack_from(key)[0], key


def decode_versioned(cls: type[D], value: Buffer) -> D:
    """Parses a value.

    Raises:
        DecodeError: its version is not known, or it is malformed.
    """
    if len(value) < FIELDS_AT:
        raise DecodeError(f"{cls.__name__} has no version")
    (version,) = _VERSION.unpack_from(value)
    if version not in cls.__versions__:
        raise DecodeError(f"{cls.__name__} of version {version} is not known")
    return decode(cls, version, value, FIELDS_AT)
