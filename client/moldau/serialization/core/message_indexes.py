"""The indexes of a Protobuf message in its file, which Confluent's wire format carries. Pure.

Another version of the file may have the message at another place, so its name there decides. A registry holds files as
``.proto`` text or as descriptors. Of a text only the messages are read: comments, strings and other blocks are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

Messages = dict[str, tuple[int, ...]]
"""The full names of the messages of a file, with their indexes."""

_TOKEN: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w.]+|\S""", re.DOTALL | re.ASCII
)


def message_indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Returns the indexes of a message in its file, the outermost message first."""
    outer = descriptor.containing_type
    if outer is not None:
        return (*message_indexes(outer), outer.nested_types.index(descriptor))
    return (list(descriptor.file.message_types_by_name).index(descriptor.name),)


def messages_of_file(file: FileDescriptorProto) -> Messages:
    """Returns the messages of a file that is given as its descriptor."""
    found: Messages = {}

    def add(messages: Iterable[DescriptorProto], scope: str, within: tuple[int, ...]) -> None:
        for number, message in enumerate(messages):
            name, at = _full(scope, message.name), (*within, number)
            found[name] = at
            add(message.nested_type, name, at)

    add(file.message_type, file.package, ())
    return found


@dataclass(slots=True)
class _Block:
    """An open pair of braces; ``at`` is None where it is none of a message. ``count`` is that of its messages."""

    name: str
    at: tuple[int, ...] | None
    count: int = 0


def messages_of_text(text: str) -> Messages:
    """Returns the messages of a file that is given as ``.proto`` text."""
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*"))]
    triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
    package = next((name for word, name, end in triples if (word, end) == ("package", ";")), "")
    found: Messages = {}
    open_blocks = [_Block(package, ())]
    for number, token in enumerate(tokens):
        outer = open_blocks[-1]
        if token == "}" and len(open_blocks) > 1:
            open_blocks.pop()
        elif token == "{" and outer.at is not None and number > 1 and tokens[number - 2] == "message":
            block = _Block(_full(outer.name, tokens[number - 1]), (*outer.at, outer.count))
            found[block.name] = (*outer.at, outer.count)
            outer.count += 1
            open_blocks.append(block)
        elif token == "{":
            open_blocks.append(_Block("", None))
    return found


def _full(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name
