"""The requests of a schema registry's REST interface, and their answers. Pure.

Each request knows its method, path and body, and how to read the answer. ``SchemaRegistry`` sends it and keeps the
answers of the requests whose answer never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moldau.serialization.core.values import RegistryError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_NOT_FOUND = 40403
ID_MAX = 2**32 - 1
"""The wire format has four bytes for a schema's id."""


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one names: the name used there, and the subject and version where it is registered."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """The text of a schema, its type (AVRO, PROTOBUF or JSON), and the schemas it refers to."""

    text: str
    type: str = "AVRO"
    references: tuple[SchemaReference, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Returns the body of a request."""
        document: dict[str, Any] = {"schema": self.text}
        if self.type != "AVRO":
            document["schemaType"] = self.type
        if self.references:
            document["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
            ]
        return document


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id. Subject and version are known where the request named the subject.

    ``has_write_rules`` says that writers must carry out rules of a data contract, such as encryption of fields.
    """

    id: int
    schema: Schema
    subject: str | None = None
    version: int | None = None
    has_write_rules: bool = False


def schema_of(document: Any) -> Schema:  # noqa: ANN401 - a JSON document
    """Returns the schema in an answer.

    Raises:
        LookupError, TypeError, ValueError: The document is none of a schema registry.
    """
    if not isinstance(document, dict):
        raise TypeError(f"an object is expected, not {type(document).__name__}")
    references = tuple(
        SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in document.get("references") or ()
    )
    return Schema(str(document["schema"]), str(document.get("schemaType") or "AVRO"), references)


def _registered(document: Any) -> RegisteredSchema:  # noqa: ANN401 - a JSON document
    schema = schema_of(document)
    return RegisteredSchema(
        _schema_id(document), schema, str(document["subject"]), int(document["version"]), _has_write_rules(document)
    )


def _schema_id(document: Mapping[str, Any]) -> int:
    found = document["id"]
    if type(found) is not int or not 0 <= found <= ID_MAX:
        raise ValueError(f"the schema's id is {found!r}")
    return found


def _has_write_rules(document: Mapping[str, Any]) -> bool:
    rules = document.get("ruleSet") or {}
    if rules.get("enableAt") not in (None, "ALL", "CLIENT"):
        return False
    return any(
        each.get("mode") in ("WRITE", "WRITEREAD") and not each.get("disabled")
        for kind in ("domainRules", "encodingRules")
        for each in rules.get(kind) or ()
    )


def _segment(name: str) -> str:
    """Returns a name as one segment of a path, from which HTTP clients would remove ``.`` and ``..``."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


@dataclass(frozen=True, slots=True)
class RegisterSchema:
    """Registers a schema under a subject; the answer has the id of an equal schema if there is one."""

    subject: str
    schema: Schema
    normalize: bool = False
    method = "POST"

    @property
    def path(self) -> str:
        """The path of the request."""
        return f"/subjects/{_segment(self.subject)}/versions{'?normalize=true' if self.normalize else ''}"

    def body(self) -> dict[str, Any] | None:
        """Returns the body of the request."""
        return self.schema.to_document()

    def answer(self, document: Any) -> RegisteredSchema:  # noqa: ANN401 - a JSON document
        """Returns the answer of the registry."""
        return RegisteredSchema(_schema_id(document), self.schema, self.subject)


@dataclass(frozen=True, slots=True)
class LookUpSchema:
    """Asks for id and version of a schema that is registered under a subject."""

    subject: str
    schema: Schema
    normalize: bool = False
    method = "POST"

    @property
    def path(self) -> str:
        """The path of the request."""
        return f"/subjects/{_segment(self.subject)}{'?normalize=true' if self.normalize else ''}"

    def body(self) -> dict[str, Any] | None:
        """Returns the body of the request."""
        return self.schema.to_document()

    def answer(self, document: Any) -> RegisteredSchema:  # noqa: ANN401 - a JSON document
        """Returns the answer of the registry, with the references that were asked for."""
        return replace(_registered(document), schema=self.schema)


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """Asks for a version of a subject, by default the latest.

    ``with_deleted`` finds a version that was deleted softly: schemas that refer to it remain in use.
    """

    subject: str
    version: int | None = None
    with_deleted: bool = False
    method = "GET"

    @property
    def path(self) -> str:
        """The path of the request."""
        version = "latest" if self.version is None else str(self.version)
        query = "?deleted=true" if self.with_deleted else ""
        return f"/subjects/{_segment(self.subject)}/versions/{version}{query}"

    def body(self) -> dict[str, Any] | None:
        """Returns the body of the request: there is none."""
        return None

    def answer(self, document: Any) -> RegisteredSchema:  # noqa: ANN401 - a JSON document
        """Returns the answer of the registry."""
        return _registered(document)


@dataclass(frozen=True, slots=True)
class SchemaById:
    """Asks for the schema with an id."""

    id: int
    method = "GET"

    @property
    def path(self) -> str:
        """The path of the request."""
        return f"/schemas/ids/{self.id}"

    def body(self) -> dict[str, Any] | None:
        """Returns the body of the request: there is none."""
        return None

    def answer(self, document: Any) -> RegisteredSchema:  # noqa: ANN401 - a JSON document
        """Returns the answer of the registry."""
        return RegisteredSchema(self.id, schema_of(document))


Need = RegisterSchema | LookUpSchema | SubjectVersion | SchemaById
"""A request whose answer is a schema with its id."""


def error_of(status: int, document: object, request: str) -> RegistryError:
    """Returns the error that an answer reports."""
    code, message = 0, ""
    if isinstance(document, dict):
        given = document.get("error_code")
        code = given if isinstance(given, int) else 0
        message = str(document.get("message", ""))
    text = f"{request}: the schema registry answers {status}"
    if code:
        text += f" (error code {code})"
    if message:
        text += f": {message}"
    if status == 401:
        text += "; set basic.auth.user.info or bearer.auth.token"
    return RegistryError(text, status=status, code=code)
