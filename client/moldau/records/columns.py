"""Records as columns, in the memory layout of Apache Arrow, built without an object per record.

A consumer of millions of records (Spark, pandas) hands these buffers to ``pyarrow.Array.from_buffers`` as they are:
integers are in native byte order, offsets are 32-bit, validity is a bitmap with the least significant bit first. This
module imports no Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryColumn:
    """A column of byte strings, some of them null. Invariant: ``offsets`` holds length + 1 int32, ascending from 0.

    The columns of rows to encode (``RowColumns``) may be views of foreign memory, and their offsets may begin later.
    """

    length: int
    null_count: int
    validity: Buffer  # ceil(length / 8) bytes; bit i of byte i // 8 is 1 where the value is present
    offsets: Buffer
    data: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Records of one partition as columns; row i of each column belongs to one record.

    ``header_offsets`` holds length + 1 int32: the headers of row i are the rows from ``header_offsets[i]`` to
    ``header_offsets[i + 1]`` of ``header_keys`` (always valid UTF-8, never null) and ``header_values``.
    """

    length: int
    offsets: bytes  # int64 each
    timestamps: bytes  # int64 each, milliseconds since the Unix epoch
    keys: BinaryColumn
    values: BinaryColumn
    header_offsets: bytes
    header_keys: BinaryColumn
    header_values: BinaryColumn
