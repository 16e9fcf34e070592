"""Avro values in Confluent's wire format, decoded by ``fastavro``.

With a registry, each value is decoded by the schema with its id and resolved to the schema of the file, as Avro defines
it. Without one, all values must have been written with the schema of the file. ``avro_logical`` says what becomes of
logical types.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import LOGICAL_READERS
from fastavro.schema import SchemaParseException, UnknownType

from moldau.serialization.core.avro_defaults import with_default_values
from moldau.serialization.core.avro_depth import DepthCheck
from moldau.serialization.core.avro_schemas import linked
from pyspark_moldau.jobs.errors import JobConfigError, JobError, PoisonError
from pyspark_moldau.jobs.payloads.avro_logical import Alignment, Schema, logical_of
from pyspark_moldau.jobs.payloads.avro_references import whole
from pyspark_moldau.jobs.payloads.framing import split_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REGISTRY_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
SCHEMAS_MAX: Final = 1000
"""Writer schemas, and unknown ids, that a process keeps."""
UNKNOWN_S: Final = 5.0
"""How long an id counts as unknown after the registry has said so.

The registry may know it later. A process that does not ask again would leave records out of the table that the query
for dead letters, in another process, takes for good: they would be nowhere.
"""
NOT_FOUND: Final = (40401, 40402, 40403)
"""The codes in a registry's answer for a subject, a version and a schema. Any web server says 404 where there is no
registry, and no record is at fault."""

DECIMAL_DIGITS_MAX: Final = 38
"""The largest precision of a decimal column in Spark."""

_DAMAGED: Final = (
    OSError,
    http.client.HTTPException,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    SchemaParseException,
    UnknownType,
)
"""Errors of an answer that is cut off, or is not a registry's, or holds no schema."""

_WRONG_SCHEMA: Final = (ValueError, LookupError, TypeError, RecursionError, SchemaParseException, UnknownType)
"""Errors of a schema file that is no schema, or lacks a part of one."""

_PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
}


class Registry:
    """Reads writer schemas from a schema registry by their ids.

    ``login`` is ``user:password`` or empty; ``align`` makes of a schema what values are read with.
    """

    def __init__(self, url: str, login: str = "", align: Callable[[Schema], Schema] = lambda found: found) -> None:
        self._url = url
        self._login = login
        self._align = align
        self._known: dict[int, Schema] = {}
        self._unknown: dict[int, float] = {}

    def schema(self, schema_id: int) -> Schema:
        """Returns the parsed schema.

        Raises:
            PoisonError: The registry has no such id, or no Avro schema under it.
            JobError: The registry does not answer; the task fails, and Spark tries it again.
        """
        found = self._known.get(schema_id)
        if found is None and time.monotonic() >= self._unknown.get(schema_id, 0.0):
            found = self._fetch(schema_id)
            if len(self._known) + len(self._unknown) >= SCHEMAS_MAX:
                self._known.clear()
                self._unknown.clear()
            if found is None:
                self._unknown[schema_id] = time.monotonic() + UNKNOWN_S
            else:
                self._known[schema_id] = found
        if found is None:
            raise PoisonError(f"the registry has no Avro schema with id {schema_id}")
        return found

    def _fetch(self, schema_id: int) -> Schema | None:
        path = f"schemas/ids/{schema_id}"
        document = self._answer(path)
        if document is None or (document.get("schemaType") or "AVRO") != "AVRO":
            return None
        try:
            found = whole(document, self._referred)
            fastavro.parse_schema(found)
            aligned: Schema = linked(fastavro.parse_schema(self._align(found)))
            return aligned
        except _DAMAGED as error:
            raise self._damaged(path, error) from error

    def _referred(self, path: str) -> dict[str, Any]:
        found = self._answer(path)
        if found is None:
            raise JobError(f"registry: {self._url}/{path}, to which a schema refers, does not exist")
        return found

    def _answer(self, path: str) -> dict[str, Any] | None:
        """Returns the registry's answer for a path; None if it has nothing there."""
        address = f"{self._url}/{path}"
        try:
            request = urllib.request.Request(address)
            if self._login:  # not for another host to which the answer may lead
                given = base64.b64encode(self._login.encode()).decode("ascii")
                request.add_unredirected_header("Authorization", f"Basic {given}")
            with urllib.request.urlopen(request, timeout=REGISTRY_TIMEOUT_S) as answer:
                document = json.loads(answer.read(ANSWER_BYTES_MAX))
            return {**document}
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                is_unknown = error.code == 404 and _code_of(error) in NOT_FOUND
            if is_unknown:
                return None
            hints = {
                404: "; check the address, and that it is a registry",
                401: "; its login is user:password@ in the address",
            }
            hint = hints.get(error.code, "")
            raise JobError(f"registry: {address} answers {error.code}{hint}") from error
        except _DAMAGED as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: str, error: Exception) -> JobError:
        return JobError(f"registry: {self._url}/{path}: {error}; check the address, and that it is a registry")


def _code_of(error: urllib.error.HTTPError) -> object:
    """Returns the registry's own code of a refusal; None if the answer is not a registry's."""
    try:
        return json.loads(error.read(ANSWER_BYTES_MAX)).get("error_code")
    except (OSError, ValueError, AttributeError):
        return None


class AvroDecoder:
    """Decodes values in Confluent's wire format to one schema."""

    def __init__(self, schema: bytes, registry: str = "", login: str = "") -> None:
        try:
            document = json.loads(schema)
            parsed = fastavro.parse_schema(document)
            if not isinstance(parsed, dict) or parsed.get("type") != "record":
                raise JobConfigError("the Avro schema must be a record: its fields become the columns")
            self.type = _type_of(parsed, {}, ())
            alignment = Alignment(parsed)
            aligned = linked(fastavro.parse_schema(alignment.aligned(document)))
            self._schema = with_default_values(aligned, LOGICAL_READERS)
        except _WRONG_SCHEMA as error:
            raise JobConfigError(f"the schema file is no Avro schema: {error!r}") from error
        self._registry = Registry(registry, login, alignment.aligned) if registry else None
        self._depths: dict[int, tuple[Schema, DepthCheck]] = {}

    def decode(self, value: bytes) -> object:
        """Returns one value as the struct's Python form.

        Raises:
            PoisonError: It is not in the wire format, or not of the schema.
            JobError: The registry does not answer.
        """
        schema_id, body = split_frame(value)
        writer = self._registry.schema(schema_id) if self._registry else self._schema
        stream = io.BytesIO(body)
        try:
            self._depth_of(schema_id, writer).check_bytes(body)
            found = fastavro.schemaless_reader(stream, writer, self._schema)
        except Exception as error:
            raise PoisonError(f"not of the Avro schema: {error!r}") from error
        if left := len(body) - stream.tell():
            raise PoisonError(f"not of the Avro schema: {left} bytes are left")
        return found

    def _depth_of(self, schema_id: int, writer: Schema) -> DepthCheck:
        known, depth = self._depths.get(schema_id, (None, None))
        if depth is None or known is not writer:
            depth = DepthCheck(writer)
            if len(self._depths) >= SCHEMAS_MAX:
                self._depths.clear()
            self._depths[schema_id] = writer, depth
        return depth


def _type_of(schema: Schema, named: dict[str, pa.DataType], within: tuple[str, ...]) -> pa.DataType:
    """Returns the Arrow type. ``named`` holds the types by name, ``within`` the records that are being read."""
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise JobConfigError(f"Avro union {schema!r}: only a union of null and one other type can be a column")
        return _type_of(kinds[0], named, within)
    if isinstance(schema, str):
        return _named(schema, named, within)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type_of(kind, named, within)
    logical = logical_of(schema)
    name = schema.get("name", "")  # a full one, because fastavro parsed the schema
    if logical == "decimal":
        if schema["precision"] > DECIMAL_DIGITS_MAX:
            raise JobConfigError(f"Avro decimal {name}: Spark has no more than {DECIMAL_DIGITS_MAX} digits: {schema!r}")
        found = pa.decimal128(schema["precision"], schema.get("scale", 0))
        return _keep(named, name, found) if kind == "fixed" else found
    if logical is not None:
        return _LOGICAL[logical]
    if kind == "record":
        fields = [pa.field(each["name"], _type_of(each["type"], named, (*within, name))) for each in schema["fields"]]
        return _keep(named, name, pa.struct(fields))
    if kind == "enum":
        return _keep(named, name, pa.string())
    if kind == "fixed":
        return _keep(named, name, pa.binary())
    if kind == "array":
        return pa.list_(_type_of(schema["items"], named, within))
    if kind == "map":
        return pa.map_(pa.string(), _type_of(schema["values"], named, within))
    return _named(kind, named, within)


def _keep(named: dict[str, pa.DataType], name: str, found: pa.DataType) -> pa.DataType:
    named[name] = found
    return found


def _named(name: str, named: Mapping[str, pa.DataType], within: tuple[str, ...]) -> pa.DataType:
    if name in _PRIMITIVE:
        return _PRIMITIVE[name]
    if name in named:
        return named[name]
    if name in within:
        raise JobConfigError(f"the Avro record {name} contains itself; Spark has no such column type")
    raise JobConfigError(f"the Avro type {name} cannot be a column")
