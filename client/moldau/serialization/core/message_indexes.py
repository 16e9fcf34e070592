"""The indexes of a Protobuf message in its file, which Confluent's wire format carries. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor


def message_indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Returns the indexes of a message in its file, the outermost message first."""
    outer = descriptor.containing_type
    if outer is not None:
        return (*message_indexes(outer), outer.nested_types.index(descriptor))
    return (list(descriptor.file.message_types_by_name).index(descriptor.name),)
