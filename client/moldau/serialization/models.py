"""Typed values with ``pydantic``: models, dataclasses, TypedDicts, and any other type that pydantic validates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from moldau.serialization.core.values import T

try:
    from pydantic import TypeAdapter, ValidationError
except ImportError as error:
    raise ImportError("models need pydantic: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.serialization.core.values import SerializationContext


def adapter_of(model: type[T]) -> TypeAdapter[T]:
    """Returns pydantic's adapter of a type.

    Raises:
        TypeError: pydantic cannot validate the type.
    """
    try:
        return TypeAdapter(model)
    except Exception as error:
        raise TypeError(f"pydantic has no validation for {model!r}: {error}") from error


def json_of(adapter: TypeAdapter[T], value: T) -> bytes:
    """Returns the JSON text of a value after the adapter has read it back; fields with an alias are written under it.

    Pydantic takes an object of a model or a dataclass as it is, whatever its fields hold, and writes NaN as null.

    Raises:
        ValueError: the value, or its JSON text, does not fit the type: each reader would refuse the record.
    """
    text = adapter.dump_json(adapter.validate_python(value), by_alias=True)
    _read_back(adapter.validate_json, text)
    return text


def plain_of(adapter: TypeAdapter[T], value: T) -> Any:  # noqa: ANN401 - types of Python
    """Returns a value as types of Python, of which the adapter can make it again.

    Raises:
        ValueError: the value does not fit the type, although it is an object of it.
    """
    plain = adapter.dump_python(value, by_alias=True)
    _read_back(adapter.validate_python, plain)
    return plain


def _read_back(read: Callable[[Any], object], written: object) -> None:
    """Reads what is to be written. A model may write other fields than it reads (``exclude``, ``serialization_alias``).

    Raises:
        ValueError: a value does not fit.
    """
    try:
        read(written)
    except ValidationError as error:
        if any(each["type"] not in ("missing", "extra_forbidden") for each in error.errors()):
            raise


class ModelSerde(Generic[T]):
    """Writes objects of a type as JSON, and reads them with validation. No registry takes part."""

    def __init__(self, model: type[T]) -> None:
        """Takes the type.

        Raises:
            TypeError: pydantic cannot validate it.
        """
        self._adapter = adapter_of(model)

    def serialize(self, value: T, context: SerializationContext) -> bytes:
        """Returns the JSON text of a value, which is validated.

        Fields with an alias are written under it, because pydantic reads them by it.
        """
        return json_of(self._adapter, value)

    def deserialize(self, data: bytes, context: SerializationContext) -> T:
        """Returns the validated value."""
        return self._adapter.validate_json(data)


def json_schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Returns the JSON Schema of an adapter's type."""
    return adapter.json_schema()
