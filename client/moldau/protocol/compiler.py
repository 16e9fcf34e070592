"""Compiles a message table into straight-line Python that encodes and decodes one version of it.

For each (class, version) one module text is generated and executed once; `codec_for` keeps the result. What a general
interpreter of tables would decide per field per message is decided here once: which fields the version has, which
neighbours of fixed size can be read by a single ``struct`` call, whether lengths are compact varints (KIP-482).

Safety of decoding. Input is untrusted. Every length is compared with the bytes that are left before anything is
allocated; the count of an array is accepted only if that many elements of the smallest possible size fit. Each loop
turn consumes at least one byte and nesting is as deep as the table, so time and memory are linear in the input. The
caller may also bound the entries: the elements of all arrays together, since a frame of megabytes holds millions of the
smallest ones. A string counts as one more entry for each `STRING_BYTES_PER_ENTRY` bytes.
Malformed input surfaces inside the generated code as `DecodeError`, ``IndexError`` (a byte past the end),
``struct.error`` (a number past the end) or ``UnicodeDecodeError``; `codec` turns them all into `DecodeError`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from moldau.protocol.field import FieldSpec
from moldau.protocol.schema import Message, Struct
from moldau.protocol.versions import NO_VERSIONS
from moldau.values import ZERO_UUID

Decoder = Callable[[memoryview, int, list[int]], tuple[Any, int]]
Encoder = Callable[[Any, list[Any]], None]

_FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
}

_INDENT = "    "
_ZERO_UUID_BYTES = bytes(16)


class ProtocolError(ValueError):
    """Bytes or a message that do not follow the protocol."""


class DecodeError(ProtocolError):
    """The bytes are not a valid message of the version: truncated, a length beyond the end, null where none may be."""


class TooManyEntriesError(DecodeError):
    """The message holds more entries than its reader allows; the rest was not read."""


ENTRIES_UNBOUNDED = 1 << 31
"""More than any frame holds."""


class EncodeError(ProtocolError):
    """The message cannot be written: a number out of range, null where none may be, a string too long."""


class UnsupportedVersionError(ProtocolError):
    """The message has no such version."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The compiled functions of one message class at one version.

    ``decode(buffer, position, left) -> (message, position after it)``, where ``left`` holds the number of entries that
    may still be read; ``encode(message, out)`` appends buffers to ``out``. Both raise whatever the generated code
    raises; use `moldau.protocol.codec.encode` and `decode` for the checked forms.
    """

    decode: Decoder
    encode: Encoder
    source: str


TAGGED_FIELDS_MAX = 64
"""In one section; messages have at most a handful, and a peer must not make others step over millions."""


def check_tagged_count(count: int) -> None:
    """Checks the number of fields that a tagged section announces.

    Raises:
        DecodeError: it exceeds ``TAGGED_FIELDS_MAX``.
    """
    if count > TAGGED_FIELDS_MAX:
        raise DecodeError(f"a tagged section announces {count} fields; at most {TAGGED_FIELDS_MAX} are allowed")


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 32 bits; returns the value and the position after it."""
    result = 0
    shift = 0
    while True:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result > 0xFFFFFFFF:
                raise DecodeError(f"a varint at byte {position} exceeds 32 bits")
            return result, position
        shift += 7
        if shift > 28:
            raise DecodeError(f"a varint at byte {position} is longer than 5 bytes")


_UVARINTS = tuple(bytes((value,)) for value in range(128))


def uvarint(value: int) -> bytes:
    """Encodes an unsigned varint."""
    if value < 0x80:
        return _UVARINTS[value]
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uuid(buffer: memoryview, position: int) -> UUID:
    """Reads 16 bytes."""
    raw = bytes(buffer[position : position + 16])
    if len(raw) != 16:
        raise DecodeError(f"a UUID needs 16 bytes, {len(raw)} are left")
    return ZERO_UUID if raw == _ZERO_UUID_BYTES else UUID(bytes=raw)


def _short(what: str, length: int, buffer: memoryview, position: int) -> DecodeError:
    return DecodeError(f"{what}: {length} announced, {len(buffer) - position} bytes are left")


def _is_null(what: str) -> DecodeError:
    return DecodeError(f"{what} may not be null")


def _too_many(what: str, left: int) -> TooManyEntriesError:
    return TooManyEntriesError(f"{what}: {-left} entries more than are allowed")


def _negative(what: str, length: int) -> DecodeError:
    return DecodeError(f"{what}: negative length {length}")


def _tag_size(tag: int, expected: int, actual: int) -> DecodeError:
    return DecodeError(f"tagged field {tag} announces {expected} bytes but holds {actual}")


def _long_string(what: str, length: int) -> DecodeError:
    return DecodeError(f"{what}: a string of {length} bytes; at most 32767 are allowed")


def _null_value(what: str) -> EncodeError:
    return EncodeError(f"{what} may not be null in this version")


def _too_long(what: str, length: int) -> EncodeError:
    return EncodeError(f"{what} is {length} bytes long; at most 32767 fit")


STRING_BYTES_MAX = 32767
STRING_BYTES_PER_ENTRY = 256
"""Names have up to 249 bytes. Handlers hash, look up and quote a name, which takes time by its length."""
_CUT_MARK = b"..."


def is_message_field(key: str) -> bool:
    """Returns whether a string field holds a text for people, which may be cut, and not a name or a value."""
    return key.endswith(("error_message", "status_detail"))


def cut_message(text: bytes) -> bytes:
    """Cuts a UTF-8 text to the size of a string field, at the end of a character, and adds an ellipsis.

    Error texts quote the peer's bytes, with several characters for each unprintable one, and the details of a streams
    group's status name its members and topics. A text that does not fit must not close a connection that other requests
    share, nor that of another member.
    """
    return text[: STRING_BYTES_MAX - len(_CUT_MARK)].decode(errors="ignore").encode() + _CUT_MARK


FREE_TEXTS = ("rack_id", "committed_metadata")
"""String fields that a client fills with any bytes, and that name nothing on the broker."""


def free_text(data: memoryview) -> str:
    """Returns a client's own text, such as its id; bytes that are not UTF-8 become U+FFFD, as in Java.

    Raises:
        DecodeError: no string field would take the text that comes of it.
    """
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        text = str(data, "utf-8", "replace")
        if len(text.encode()) > STRING_BYTES_MAX:
            raise DecodeError(f"a string is not UTF-8: {error}") from error
        return text


def fields_in(cls: type[Struct], version: int) -> list[tuple[str, FieldSpec]]:
    """Returns the fields that a version carries, in wire order (tagged ones included)."""
    return [(key, spec) for key, spec in cls.__fields__.items() if version in spec.versions]


def minimum_size(cls: type[Struct], version: int, flexible: bool) -> int:
    """Returns the fewest bytes an encoded struct can have."""
    total = 1 if flexible else 0
    for _, spec in fields_in(cls, version):
        if spec.tag is None:
            total += _minimum_field_size(spec, version, flexible)
    return total


def _minimum_field_size(spec: FieldSpec, version: int, flexible: bool) -> int:
    if spec.is_array or spec.kind == "bytes":
        return 1 if flexible else 4
    return _minimum_element_size(spec, version, flexible)


def _minimum_element_size(spec: FieldSpec, version: int, flexible: bool) -> int:
    if spec.kind in _FIXED:
        return _FIXED[spec.kind][1]
    if spec.kind == "uuid":
        return 16
    if spec.kind == "string":
        return 1 if flexible else 2
    if spec.kind == "bytes":
        return 1 if flexible else 4
    assert spec.struct is not None
    if version in spec.nullable:
        return 1
    return minimum_size(spec.struct, version, flexible)


class _Generator:
    """Writes the source of one codec. ``scope`` holds the names that the source refers to."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            "Struct_unpack": struct.unpack_from,
            "Struct_pack": struct.pack,
            "read_uvarint": read_uvarint,
            "check_tagged_count": check_tagged_count,
            "uvarint": uvarint,
            "UVARINTS": _UVARINTS,
            "read_uuid": read_uuid,
            "short": _short,
            "is_null": _is_null,
            "negative": _negative,
            "too_many": _too_many,
            "tag_size": _tag_size,
            "long_string": _long_string,
            "null_value": _null_value,
            "too_long": _too_long,
            "cut_message": cut_message,
            "free_text": free_text,
        }
        self.names: dict[type[Struct], str] = {}
        self.temporaries = 0

    def temporary(self) -> str:
        self.temporaries += 1
        return f"n{self.temporaries}"

    def constant(self, value: object) -> str:
        name = f"constant_{len(self.scope)}"
        self.scope[name] = value
        return name

    def packer(self, formats: str, method: str) -> str:
        name = f"{method}_{formats.replace('?', 'z')}"
        self.scope.setdefault(name, getattr(struct.Struct(">" + formats), method))
        return name

    def add_struct(self, cls: type[Struct]) -> str:
        known = self.names.get(cls)
        if known is not None:
            return known
        name = f"{cls.__name__}_{len(self.names)}"
        self.names[cls] = name
        self.scope[name] = cls
        fields = fields_in(cls, self.version)
        for _, spec in fields:
            if spec.struct is not None:
                self.add_struct(spec.struct)
        plain = [(key, spec) for key, spec in fields if spec.tag is None]
        tagged = [(key, spec) for key, spec in fields if spec.tag is not None]
        assert not tagged or self.flexible, f"{cls.__name__} has tagged fields in a version without a tagged section"
        self.lines += self.decode_function(name, plain, tagged)
        self.lines += self.encode_function(name, plain, tagged)
        return name

    # Decoding

    def decode_function(
        self, name: str, plain: list[tuple[str, FieldSpec]], tagged: list[tuple[str, FieldSpec]]
    ) -> list[str]:
        lines = [f"def decode_{name}(buffer, position, left):"]
        index = 0
        while index < len(plain):
            run: list[tuple[str, str]] = []
            while index < len(plain) and plain[index][1].kind in _FIXED and not plain[index][1].is_array:
                run.append((plain[index][0], _FIXED[plain[index][1].kind][0]))
                index += 1
            if run:
                formats = "".join(letter for _, letter in run)
                targets = "".join(f"v_{key}, " for key, _ in run)
                unpack = self.packer(formats, "unpack_from")
                lines.append(f"    {targets}= {unpack}(buffer, position)")
                lines.append(f"    position += {struct.calcsize('>' + formats)}")
            else:
                key, spec = plain[index]
                self.decode_value(lines, _INDENT, spec, f"v_{key}", f"{name.rpartition('_')[0]}.{key}")
                index += 1
        arguments = [f"{key}=v_{key}" for key, _ in plain]
        if tagged:
            lines.append("    tagged = {}")
        if self.flexible:
            self.decode_tagged_section(lines, name, tagged)
        if tagged:
            arguments.append("**tagged")
        lines.append(f"    return {name}({', '.join(arguments)}), position")
        return lines

    def decode_tagged_section(self, lines: list[str], name: str, tagged: list[tuple[str, FieldSpec]]) -> None:
        lines += [
            "    count = buffer[position]",
            "    position += 1",
            "    if count:",
            "        if count > 127: count, position = read_uvarint(buffer, position - 1)",
            "        check_tagged_count(count)",
            "        for _ in range(count):",
            "            tag, position = read_uvarint(buffer, position)",
            "            size, position = read_uvarint(buffer, position)",
            "            if size > len(buffer) - position: raise short('tagged field', size, buffer, position)",
            "            end = position + size",
        ]
        branch = "if"
        inner = _INDENT * 4
        for key, spec in tagged:
            lines.append(f"            {branch} tag == {spec.tag}:")
            branch = "elif"
            if spec.kind in _FIXED and not spec.is_array:
                letter, size = _FIXED[spec.kind]
                lines.append(f"{inner}value, = {self.packer(letter, 'unpack_from')}(buffer, position)")
                lines.append(f"{inner}position += {size}")
            else:
                self.decode_value(lines, inner, spec, "value", f"{name.rpartition('_')[0]}.{key}")
            lines.append(f"{inner}if position != end: raise tag_size(tag, size, position + size - end)")
            lines.append(f"{inner}tagged[{key!r}] = value")
        lines.append("            position = end")

    def decode_length(self, lines: list[str], indent: str, target: str, short_prefix: bool) -> None:
        """Reads a length into ``target``; null becomes -1."""
        if self.flexible:
            lines += [
                f"{indent}{target} = buffer[position]",
                f"{indent}position += 1",
                f"{indent}if {target} > 127: {target}, position = read_uvarint(buffer, position - 1)",
                f"{indent}{target} -= 1",
            ]
            return
        letter, size = ("h", 2) if short_prefix else ("i", 4)
        lines.append(f"{indent}{target}, = {self.packer(letter, 'unpack_from')}(buffer, position)")
        lines.append(f"{indent}position += {size}")

    def decode_value(self, lines: list[str], indent: str, spec: FieldSpec, target: str, what: str) -> None:
        nullable = self.version in spec.nullable
        if spec.is_array:
            self.decode_array(lines, indent, spec, target, what)
        elif spec.kind in ("string", "bytes"):
            self.decode_bytes(lines, indent, spec.kind, nullable, target, what)
        elif spec.kind == "uuid":
            lines.append(f"{indent}{target} = read_uuid(buffer, position)")
            lines.append(f"{indent}position += 16")
        else:
            assert spec.struct is not None
            struct_name = self.names[spec.struct]
            if nullable:
                lines += [
                    f"{indent}if buffer[position] > 127:",
                    f"{indent}    {target} = None",
                    f"{indent}    position += 1",
                    f"{indent}else: {target}, position = decode_{struct_name}(buffer, position + 1, left)",
                ]
            else:
                lines.append(f"{indent}{target}, position = decode_{struct_name}(buffer, position, left)")

    def decode_bytes(self, lines: list[str], indent: str, kind: str, nullable: bool, target: str, what: str) -> None:
        length = self.temporary()
        self.decode_length(lines, indent, length, kind == "string")
        self.decode_null(lines, indent, nullable, length, target, what)
        if kind == "string" and self.flexible:
            lines.append(f"{indent}    if {length} > 32767: raise long_string({what!r}, {length})")
        if kind == "string":
            lines.append(f"{indent}    if {length} >= {STRING_BYTES_PER_ENTRY}:")
            lines.append(f"{indent}        left[0] -= {length} // {STRING_BYTES_PER_ENTRY}")
            lines.append(f"{indent}        if left[0] < 0: raise too_many({what!r}, left[0])")
        data = f"buffer[position:position + {length}]"
        value = data
        if kind == "string":
            value = f"free_text({data})" if what.rpartition(".")[2] in FREE_TEXTS else f"str({data}, 'utf-8')"
        lines += [
            f"{indent}    if {length} > len(buffer) - position: raise short({what!r}, {length}, buffer, position)",
            f"{indent}    {target} = {value}",
            f"{indent}    position += {length}",
        ]

    def decode_null(self, lines: list[str], indent: str, nullable: bool, length: str, target: str, what: str) -> None:
        """Writes the branch for null and opens the branch for a value."""
        lines.append(f"{indent}if {length} < 0:")
        if not self.flexible:
            lines.append(f"{indent}    if {length} < -1: raise negative({what!r}, {length})")
        lines.append(f"{indent}    {target} = None" if nullable else f"{indent}    raise is_null({what!r})")
        lines.append(f"{indent}else:")

    def decode_array(self, lines: list[str], indent: str, spec: FieldSpec, target: str, what: str) -> None:
        length = self.temporary()
        self.decode_length(lines, indent, length, short_prefix=False)
        self.decode_null(lines, indent, self.version in spec.nullable, length, target, what)
        inner = indent + _INDENT
        smallest = _minimum_element_size(spec, self.version, self.flexible)
        assert smallest > 0, f"{what}: elements without bytes would make an array count unbounded"
        needed = length if smallest == 1 else f"{length} * {smallest}"
        lines.append(f"{inner}if {needed} > len(buffer) - position: raise short({what!r}, {length}, buffer, position)")
        lines.append(f"{inner}left[0] -= {length}")
        lines.append(f"{inner}if left[0] < 0: raise too_many({what!r}, left[0])")
        if spec.kind in _FIXED:
            letter, size = _FIXED[spec.kind]
            lines.append(f"{inner}{target} = Struct_unpack(f'>{{{length}}}{letter}', buffer, position)")
            lines.append(f"{inner}position += {length} * {size}")
            return
        elements = f"elements_{length}"
        lines.append(f"{inner}{elements} = []")
        lines.append(f"{inner}for _ in range({length}):")
        if spec.struct is not None:
            lines.append(f"{inner}    element, position = decode_{self.names[spec.struct]}(buffer, position, left)")
        else:
            element = FieldSpec(spec.kind, spec.versions, NO_VERSIONS, None, None)
            self.decode_value(lines, inner + _INDENT, element, "element", what)
        lines.append(f"{inner}    {elements}.append(element)")
        lines.append(f"{inner}{target} = tuple({elements})")

    # Encoding

    def encode_function(
        self, name: str, plain: list[tuple[str, FieldSpec]], tagged: list[tuple[str, FieldSpec]]
    ) -> list[str]:
        lines = [f"def encode_{name}(message, out):"]
        pending: list[tuple[str, str]] = []

        def flush() -> None:
            if pending:
                formats = "".join(letter for letter, _ in pending)
                values = ", ".join(value for _, value in pending)
                lines.append(f"    out.append({self.packer(formats, 'pack')}({values}))")
                pending.clear()

        for key, spec in plain:
            if spec.kind in _FIXED and not spec.is_array:
                pending.append((_FIXED[spec.kind][0], f"message.{key}"))
                continue
            flush()
            self.encode_value(lines, _INDENT, spec, f"message.{key}", "out", f"{name.rpartition('_')[0]}.{key}")
        if self.flexible and not tagged:
            pending.append(("B", "0"))
        flush()
        if tagged:
            self.encode_tagged_section(lines, name, tagged)
        if len(lines) == 1:
            lines.append("    pass")
        return lines

    def encode_tagged_section(self, lines: list[str], name: str, tagged: list[tuple[str, FieldSpec]]) -> None:
        lines.append("    section = []")
        for key, spec in sorted(tagged, key=lambda item: item[1].tag or 0):
            what = f"{name.rpartition('_')[0]}.{key}"
            nullable = self.version in spec.nullable
            if spec.kind == "struct" and not spec.is_array and not nullable:
                assert spec.struct is not None
                default = self.constant(spec.struct())
            else:
                default = self.constant(spec.default)
            differs = f"value != {default}"
            if spec.is_array and spec.default == ():
                differs = "value is None or len(value)"
            lines += [f"    value = message.{key}", f"    if {differs}:", "        parts = []"]
            inner = _INDENT * 2
            if spec.kind in _FIXED and not spec.is_array:
                lines.append(f"{inner}parts.append({self.packer(_FIXED[spec.kind][0], 'pack')}(value))")
            else:
                self.encode_value(lines, inner, spec, "value", "parts", what)
            lines += [
                f"{inner}data = b''.join(parts)",
                f"{inner}section.append(uvarint({spec.tag}) + uvarint(len(data)) + data)",
            ]
        lines += ["    out.append(uvarint(len(section)))", "    out += section"]

    def encode_length(self, length: str, short_prefix: bool) -> str:
        if self.flexible:
            return f"UVARINTS[{length} + 1] if {length} < 127 else uvarint({length} + 1)"
        return f"{self.packer('h' if short_prefix else 'i', 'pack')}({length})"

    def encode_null(
        self, lines: list[str], indent: str, nullable: bool, out: str, what: str, short_prefix: bool
    ) -> None:
        if not nullable:
            lines.append(f"{indent}if x is None: raise null_value({what!r})")
        else:
            null = b"\0" if self.flexible else (b"\xff\xff" if short_prefix else b"\xff\xff\xff\xff")
            lines.append(f"{indent}if x is None: {out}.append({null!r})")
        lines.append(f"{indent}else:")

    def encode_value(self, lines: list[str], indent: str, spec: FieldSpec, value: str, out: str, what: str) -> None:
        nullable = self.version in spec.nullable
        if spec.is_array:
            self.encode_array(lines, indent, spec, value, out, what)
        elif spec.kind in ("string", "bytes"):
            lines.append(f"{indent}x = {value}")
            self.encode_null(lines, indent, nullable, out, what, spec.kind == "string")
            inner = indent + _INDENT
            if spec.kind == "string":
                lines.append(f"{inner}x = x.encode()")
            lines.append(f"{inner}length = len(x)")
            if spec.kind == "string" and is_message_field(what.rpartition(".")[2]):
                lines.append(f"{inner}if length > {STRING_BYTES_MAX}: x = cut_message(x); length = len(x)")
            elif spec.kind == "string":
                lines.append(f"{inner}if length > {STRING_BYTES_MAX}: raise too_long({what!r}, length)")
            lines.append(f"{inner}{out}.append({self.encode_length('length', spec.kind == 'string')})")
            lines.append(f"{inner}{out}.append(x)")
        elif spec.kind == "uuid":
            lines.append(f"{indent}{out}.append({value}.bytes)")
        else:
            assert spec.struct is not None
            struct_name = self.names[spec.struct]
            if nullable:
                lines += [
                    f"{indent}if {value} is None: {out}.append(b'\\xff')",
                    f"{indent}else:",
                    f"{indent}    {out}.append(b'\\x01')",
                    f"{indent}    encode_{struct_name}({value}, {out})",
                ]
            else:
                lines.append(f"{indent}if {value} is None: raise null_value({what!r})")
                lines.append(f"{indent}encode_{struct_name}({value}, {out})")

    def encode_array(self, lines: list[str], indent: str, spec: FieldSpec, value: str, out: str, what: str) -> None:
        lines.append(f"{indent}x = {value}")
        self.encode_null(lines, indent, self.version in spec.nullable, out, what, short_prefix=False)
        inner = indent + _INDENT
        lines.append(f"{inner}length = len(x)")
        lines.append(f"{inner}{out}.append({self.encode_length('length', False)})")
        if spec.kind in _FIXED:
            lines.append(f"{inner}if length: {out}.append(Struct_pack(f'>{{length}}{_FIXED[spec.kind][0]}', *x))")
        elif spec.struct is not None:
            lines.append(f"{inner}for y in x: encode_{self.names[spec.struct]}(y, {out})")
        else:
            element = FieldSpec(spec.kind, spec.versions, NO_VERSIONS, None, None)
            lines.append(f"{inner}for y in x:")
            self.encode_value(lines, inner + _INDENT, element, "y", out, what)


_codecs: dict[tuple[type[Message], int], Codec] = {}


def codec_for(cls: type[Message], version: int) -> Codec:
    """Returns the compiled codec of a message class at a version; compiled on first use and kept.

    Raises:
        UnsupportedVersionError: the class has no such version.
    """
    codec = _codecs.get((cls, version))
    if codec is None:
        codec = _codecs[cls, version] = _compile(cls, version)
    return codec


def _compile(cls: type[Message], version: int) -> Codec:
    if version not in cls.__versions__:
        raise UnsupportedVersionError(f"{cls.__name__} has versions {cls.__versions__}, not {version}")
    generator = _Generator(version, version in cls.__flexible__)
    name = generator.add_struct(cls)
    source = "\n".join(generator.lines) + "\n"
    exec(compile(source, f"<{cls.__name__} v{version}>", "exec"), generator.scope)
    return Codec(generator.scope[f"decode_{name}"], generator.scope[f"encode_{name}"], source)
