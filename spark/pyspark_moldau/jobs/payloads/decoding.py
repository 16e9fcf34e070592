"""Decodes batches of values into Arrow structs, with an error text for each value that does not fit.

``decoder_of`` chooses the decoder; ``decode_values`` converts a whole batch at once and looks at single values only
where that fails, for example because a number is too large for its column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from pyspark_moldau.jobs.errors import PoisonError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark_moldau.jobs.config.job_config import PayloadConfig

ERROR_TEXT_MAX = 500
_ARROW_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)


class Decoder(Protocol):
    """Decodes values of one format and schema. ``type`` is the Arrow type of a value, a struct."""

    type: pa.DataType

    def decode(self, value: bytes) -> object:
        """Returns one value as the struct's Python form.

        Raises:
            PoisonError: it does not fit.
        """


@lru_cache(maxsize=32)
def decoder_of(payload: PayloadConfig) -> Decoder:
    """Returns the decoder of a payload; a process makes it once.

    Raises:
        JobConfigError: The schema is wrong, or has a type that cannot be a column.
    """
    if payload.format == "json":
        from pyspark_moldau.jobs.payloads.json_codec import JsonDecoder

        return JsonDecoder(payload.schema)
    if payload.format == "avro":
        from pyspark_moldau.jobs.payloads.avro_codec import AvroDecoder

        return AvroDecoder(payload.schema, payload.registry, payload.registry_login)
    from pyspark_moldau.jobs.payloads.protobuf_codec import ProtobufDecoder

    assert payload.format == "protobuf", "raw values have no decoder"
    return ProtobufDecoder(payload.schema, payload.message)


def decode_values(decoder: Decoder, values: Sequence[bytes | None]) -> tuple[pa.Array, list[str | None]]:
    """Returns the structs, and for each value None or why it could not be decoded. A null stays null."""
    found: list[object] = []
    errors: list[str | None] = []
    for value in values:
        decoded, error = None, None
        if value is not None:
            try:
                decoded = decoder.decode(value)
            except PoisonError as poison:
                error = _text(str(poison))
        found.append(decoded)
        errors.append(error)
    try:
        return pa.array(found, decoder.type), errors
    except _ARROW_ERRORS:
        for index, decoded in enumerate(found):
            try:
                pa.array([decoded], decoder.type)
            except _ARROW_ERRORS as error:
                found[index], errors[index] = None, _text(f"does not fit its column: {error}")
        return pa.array(found, decoder.type), errors


def _text(error: str) -> str:
    """Returns the text of an error as a column can hold it: half of a surrogate pair, which JSON can name, escaped."""
    return error.encode("utf-8", "backslashreplace").decode()[:ERROR_TEXT_MAX]
