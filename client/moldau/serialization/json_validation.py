"""Compiles JSON Schemas with ``fastjsonschema``, which by itself would fetch references and change the values.

A ``$ref`` to another document is looked up among the references of the registry, by its name. Nothing is fetched from
the address in it: a schema is data of other people, and could name any address.

``fastjsonschema`` does not look at keywords that later drafts than 7 added. ``items`` has another meaning beside one of
them, ``prefixItems``, so both get their names of draft 7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.serialization.core.subjects import document_of
from moldau.serialization.core.values import SerializationError

try:
    import fastjsonschema
except ImportError as error:
    raise ImportError("JsonSchemaSerde needs fastjsonschema: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from moldau.serialization.core.registry_requests import Schema

_WRONG_SCHEMA: Final = (
    fastjsonschema.JsonSchemaDefinitionException,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of ``fastjsonschema`` for a document that is no schema."""


class _Schemes(Mapping[str, Callable[[str], Any]]):
    """A handler of each scheme of addresses, so that ``fastjsonschema`` opens none itself."""

    def __init__(self, references: Mapping[str, Any]) -> None:
        self._references = references

    def __getitem__(self, scheme: str) -> Callable[[str], Any]:
        return self._find

    def __contains__(self, scheme: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def _find(self, address: str) -> Any:  # noqa: ANN401 - a JSON document
        # Names may end alike, as point.json and v1/point.json do.
        name = max((each for each in self._references if f"/{address}".endswith(f"/{each}")), key=len, default=None)
        if name is None:
            raise SerializationError(f"the JSON Schema refers to {address}, which is none of its references")
        return self._references[name]


def compiled(
    document: Any,  # noqa: ANN401 - a JSON document
    references: Iterable[tuple[str, Schema]] = (),
    *,
    with_formats: bool = True,
) -> Callable[[Any], None]:
    """Returns a function that raises ``ValueError`` for a value that does not fit, and does not change the value.

    ``with_formats`` checks the ``format`` of texts, which JSON Schema leaves to the reader.

    Raises:
        SerializationError: it is no JSON Schema, or refers to a document that is not among the references.
    """
    try:
        known = {name: _of_draft_7(document_of(schema.text)[0]) for name, schema in references}
        validate = fastjsonschema.compile(
            _of_draft_7(document), handlers=_Schemes(known), use_default=False, use_formats=with_formats
        )
    except SerializationError:
        raise
    except IndentationError as error:  # fastjsonschema makes code of it, and Python has a limit there
        raise SerializationError("the JSON Schema is nested too deeply to be compiled") from error
    except re.error as error:  # Java's registry takes patterns such as \p{L}, which Python's re does not know
        pattern = re.sub(r"\\Z$", "$", str(error.pattern))  # fastjsonschema has changed its end
        raise SerializationError(
            f"the JSON Schema has the pattern {pattern!r}, which Python's re does not read: {error}; "
            "write it in another way, or use a pydantic model"
        ) from error
    except _WRONG_SCHEMA as error:
        raise SerializationError(f"the JSON Schema is wrong: {error}") from error

    def check(value: Any) -> None:  # noqa: ANN401 - a JSON value
        try:
            validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            raise ValueError(error.message) from error
        except ArithmeticError as error:  # multipleOf makes a float of each number, and may be 0
            raise ValueError(f"a number cannot be checked: {error}") from error

    return check


def _of_draft_7(document: Any) -> Any:  # noqa: ANN401 - a JSON document
    """Returns a schema in which the items of a tuple have their names of draft 7; older drafts know no other ones."""
    if isinstance(document, dict) and "draft-0" in str(document.get("$schema")):
        return document
    return _with_tuples(document)


def _with_tuples(part: Any) -> Any:  # noqa: ANN401 - a JSON value
    if isinstance(part, list):
        return [_with_tuples(each) for each in part]
    if not isinstance(part, dict):
        return part
    changed = {name: _with_tuples(each) for name, each in part.items()}
    if isinstance(part.get("prefixItems"), list):  # else it may be the name of a property
        changed |= {"items": changed["prefixItems"], "additionalItems": changed.get("items", True)}
    return changed
