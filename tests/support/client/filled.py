"""Messages whose fields all have values of their own, made from the message tables."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau.protocol.field import FieldSpec

READ = 1 << 3
"""The bit of AclOperation.READ."""
REPLACED: dict[str, object] = {
    "error_code": 0,
    "error_message": None,
    "throttle_time_ms": 0,
    "authorized_operations": READ,
    "cluster_authorized_operations": READ,
    "topic_authorized_operations": READ,
}


def filled(struct: Any, given: Mapping[str, object], numbers: Iterator[int] | None = None) -> Any:
    """Returns a message whose fields have values of their own, except those that ``given`` names.

    For an array of structures ``given`` has the number of entries. Errors are absent, and READ is the operation.
    """
    numbers = itertools.count(9000, -1) if numbers is None else numbers
    known = REPLACED | dict(given)
    return struct(**{name: _value(name, spec, known, numbers) for name, spec in struct.__fields__.items()})


def _value(name: str, spec: FieldSpec, given: Mapping[str, Any], numbers: Iterator[int]) -> Any:
    if name in given and not (spec.struct and isinstance(given[name], int)):
        value = given[name]
        return next(value) if isinstance(value, itertools.cycle) else value
    one: Any = {
        "string": lambda: f"{name} {next(numbers):04}",
        "bool": lambda: True,
        "bytes": lambda: b"%d" % next(numbers),
        "int8": lambda: next(numbers) % 100,
        "uuid": lambda: UUID(int=next(numbers)),
        "float64": lambda: float(next(numbers)),
        "struct": lambda: filled(spec.struct, given, numbers),
    }.get(spec.kind, lambda: next(numbers))
    return [one() for _ in range(given.get(name, 2) if spec.struct else 2)] if spec.is_array else one()
