"""The columns of the rows: which there are, of which Spark type, and which of them a query wants."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from pyspark_moldau.client_options import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Columns of Spark's Kafka source, in its order, with Spark's names of their types."""

_IN_DDL: Final = {"timestamp": "timestamp_ltz"}
"""Names that DDL always reads as a type: ``timestamp`` is another one under ``spark.sql.timestampType``."""

USUAL: Final = tuple(name for name in TYPES if name != "headers")


def ddl(columns: Sequence[str]) -> str:
    """Returns the schema of rows with these columns, as Spark reads it."""
    return ", ".join(f"{name} {_IN_DDL.get(TYPES[name], TYPES[name])}" for name in columns)


def parse_columns(text: str | None, *, headers: bool) -> tuple[str, ...]:
    """Returns the columns of the option ``columns``, or the usual ones; ``headers`` is ``includeHeaders``.

    Raises:
        OptionError: a name is unknown or comes twice.
    """
    if text is None:
        return tuple(TYPES) if headers else USUAL
    known = {name.lower(): name for name in TYPES}
    columns = []
    for given in (part.strip() for part in text.split(",")):
        name = known.get(given.lower())
        if name is None:
            near = difflib.get_close_matches(given.lower(), list(known), 1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise OptionError(f"columns: {given!r} is not one of {', '.join(TYPES)}{hint}")
        if name in columns:
            raise OptionError(f"columns: {name} comes twice")
        columns.append(name)
    return tuple(columns)


def check_schema(fields: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the columns of a schema that a query sets with ``.schema(...)``: pairs of name and type.

    Raises:
        OptionError: a column has another name or type than the source's.
    """
    for name, kind in fields:
        if TYPES.get(name) != kind:
            raise OptionError(
                f"schema: column {name} {kind} is not one of the source's; leave .schema() away, or use columns of: "
                f"{ddl(list(TYPES))}"
            )
    return tuple(name for name, _ in fields)
