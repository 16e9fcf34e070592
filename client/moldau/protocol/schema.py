"""Message tables: classes whose bodies are field specifications.

`Struct` is the base of nested parts, `Request`, `Response` and `Data` of whole messages. The metaclass turns a table
into a slotted, keyword-only value class with Kafka's defaults, equality by value and a readable ``repr``; one class
serves all versions. The compiler (`moldau.protocol.compiler`) reads ``__fields__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from moldau.protocol.field import FieldSpec
from moldau.protocol.versions import NO_VERSIONS, VersionRange, parse_versions

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

_UNSET = object()


def _build_init(name: str, specs: dict[str, FieldSpec]) -> Callable[..., None]:
    """Writes ``__init__``: straight-line assignments, since decoding constructs thousands of these."""
    scope: dict[str, Any] = {"_unset": _UNSET}
    parameters: list[str] = []
    body: list[str] = []
    for index, (key, spec) in enumerate(specs.items()):
        if spec.kind == "struct" and not spec.is_array and spec.nullable == NO_VERSIONS:
            scope[f"_struct_{index}"] = spec.struct
            parameters.append(f"{key}=_unset")
            body.append(f"    self.{key} = _struct_{index}() if {key} is _unset else {key}")
        else:
            scope[f"_default_{index}"] = spec.default
            parameters.append(f"{key}=_default_{index}")
            body.append(f"    self.{key} = {key}")
    signature = ", ".join(["self", "*", *parameters]) if parameters else "self"
    source = f"def __init__({signature}):\n" + ("\n".join(body) or "    pass")
    exec(compile(source, f"<{name}.__init__>", "exec"), scope)
    init: Callable[..., None] = scope["__init__"]
    return init


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Metaclass of message tables: collects the field specifications and generates the constructor."""

    __fields__: dict[str, FieldSpec]

    def __new__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int = -1,
        versions: str | None = None,
        flexible: str | None = None,
    ) -> StructType:
        specs = {key: value for key, value in namespace.items() if isinstance(value, FieldSpec)}
        for key in namespace.get("__annotations__", {}):
            if key not in specs and not key.startswith("__"):
                raise TypeError(f"{name}.{key} is annotated but has no field specification")
        for key in specs:
            del namespace[key]
        namespace["__slots__"] = tuple(specs)
        namespace["__fields__"] = specs
        if versions is not None:
            namespace["__api_key__"] = api_key
            namespace["__versions__"] = parse_versions(versions)
            namespace["__flexible__"] = parse_versions(flexible)
        created: StructType

        def compile_first(self: object, *arguments: object, **values: object) -> None:
            created.compile_init()(self, *arguments, **values)

        namespace["__init__"] = compile_first
        created = super().__new__(cls, name, bases, namespace)
        return created

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: object) -> None:
        super().__init__(name, bases, namespace)

    def compile_init(cls) -> Callable[..., None]:
        """Compiles the constructor and makes it that of the class.

        It happens when the first value is made, because most processes use few of the hundreds of message classes.
        """
        init = _build_init(cls.__name__, cls.__fields__)
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__module__ = cls.__module__
        cls.__init__ = init  # type: ignore[misc]
        return init

    @property
    def __signature__(cls) -> inspect.Signature:
        """The fields as keyword arguments, for ``help`` and ``inspect.signature``."""
        import inspect

        signature = inspect.signature(cls.compile_init())
        return signature.replace(parameters=[each for each in signature.parameters.values() if each.name != "self"])


class Struct(metaclass=StructType):
    """A part of a message. Mutable; compares by value; not hashable."""

    __slots__ = ()
    __fields__: ClassVar[dict[str, FieldSpec]]
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, key), getattr(other, key)) for key in self.__fields__)

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={_show(getattr(self, key))}" for key in self.__fields__)
        return f"{type(self).__name__}({values})"


def _equal(left: object, right: object) -> bool:
    """Compares field values; a list and a tuple of equal elements are the same array."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_equal, left, right))
    return left == right


def _show(value: object) -> str:
    """Shows a value without dumping record bytes into a log line."""
    if isinstance(value, (memoryview, bytes, bytearray)) and len(value) > 32:
        return f"<{len(value)} bytes>"
    return repr(bytes(value)) if isinstance(value, memoryview) else repr(value)


class Message(Struct):
    """A whole message with versions of its own."""

    __slots__ = ()
    __api_key__: ClassVar[int] = -1
    __versions__: ClassVar[VersionRange] = NO_VERSIONS
    __flexible__: ClassVar[VersionRange] = NO_VERSIONS


class Request(Message):
    """A request body; ``__api_key__`` and ``__versions__`` say which."""

    __slots__ = ()


class Response(Message):
    """A response body."""

    __slots__ = ()


class Data(Message):
    """A versioned structure that travels inside records or other messages."""

    __slots__ = ()
