"""How the columns of a table change over time: new columns and new fields come at the end, nothing else changes.

Every column may be null, because files that were written before a column existed have no value for it.
"""

from __future__ import annotations

from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from pyspark_moldau.jobs.errors import JobError


def merged_schema(table: StructType, rows: StructType) -> StructType:
    """Returns the columns of a table after rows with the columns ``rows`` were added.

    Raises:
        JobError: A column has another type than in the table.
    """
    return _merged_fields(table, rows, "")


def all_nullable(kind: DataType) -> DataType:
    """Returns the type with each part allowed to be null."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, all_nullable(each.dataType), True) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(all_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(all_nullable(kind.keyType), all_nullable(kind.valueType), True)
    return kind


def alike_fields(kind: DataType, path: str = "") -> tuple[str, str] | None:
    """Returns the places of two fields of one struct whose names differ in case only; None if there are none."""
    if isinstance(kind, ArrayType):
        return alike_fields(kind.elementType, f"{path}[]")
    if isinstance(kind, MapType):
        return alike_fields(kind.keyType, f"{path} (keys)") or alike_fields(kind.valueType, f"{path} (values)")
    seen: dict[str, str] = {}
    for field in kind.fields if isinstance(kind, StructType) else ():
        place = f"{path}.{field.name}" if path else field.name
        if field.name.lower() in seen:
            return seen[field.name.lower()], place
        seen[field.name.lower()] = place
        if (found := alike_fields(field.dataType, place)) is not None:
            return found
    return None


def _merged_fields(table: StructType, rows: StructType, path: str) -> StructType:
    new = {field.name: field.dataType for field in rows.fields}
    known = {field.name.lower(): field.name for field in table.fields}
    for name in new:
        if (other := known.get(name.lower(), name)) != name:
            raise JobError(
                f"column {path}{name} of the new rows is {path}{other} in the table, and Spark takes them for one; "
                f"name it {other} in the job"
            )
    fields = []
    for field in table.fields:
        kind = field.dataType
        if field.name in new:
            kind = _merged(kind, new.pop(field.name), f"{path}{field.name}")
        fields.append(StructField(field.name, all_nullable(kind), True))
    return StructType([*fields, *(StructField(name, all_nullable(kind), True) for name, kind in new.items())])


def _merged(table: DataType, rows: DataType, path: str) -> DataType:
    if isinstance(table, StructType) and isinstance(rows, StructType):
        return _merged_fields(table, rows, f"{path}.")
    if isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        return ArrayType(_merged(table.elementType, rows.elementType, f"{path}[]"), True)
    if isinstance(table, MapType) and isinstance(rows, MapType):
        return MapType(
            _merged(table.keyType, rows.keyType, f"{path} (keys)"),
            _merged(table.valueType, rows.valueType, f"{path} (values)"),
            True,
        )
    if table != rows:
        raise JobError(
            f"column {path} is {table.simpleString()} in the table and {rows.simpleString()} in its new rows; "
            "cast it in the job, give it another name, or load all into an empty folder with a new checkpoint"
        )
    return table
