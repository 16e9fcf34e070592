"""Confluent's wire format, as the decoders of jobs read it: damaged bytes are poison, and never an error of the job."""

from __future__ import annotations

from moldau.serialization.core import wire_format
from pyspark_moldau.jobs.errors import PoisonError


def split_frame(value: bytes) -> tuple[int, bytes]:
    """Returns the schema's id and the rest.

    Raises:
        PoisonError: The value is too short or begins with another byte.
    """
    try:
        return wire_format.split_frame(value)
    except wire_format.WireFormatError as error:
        raise PoisonError(str(error)) from error


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns the indexes of a Protobuf message and where the message begins.

    Raises:
        PoisonError: The indexes are damaged.
    """
    try:
        return wire_format.read_indexes(data)
    except wire_format.WireFormatError as error:
        raise PoisonError(str(error)) from error
