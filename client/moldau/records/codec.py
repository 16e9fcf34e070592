"""Chooses the implementation of the record loops: typed Cython where it was built, else its twin in Python.

Everything else imports the loops from here. ``IMPLEMENTATION`` tells which one serves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.records._codec import (
        IMPLEMENTATION,
        ColumnBuilder,
        Record,
        RecordWriter,
        decode_records,
        murmur2,
        walk_records,
    )
else:
    try:
        from moldau.records._codec import (
            IMPLEMENTATION,
            ColumnBuilder,
            Record,
            RecordWriter,
            decode_records,
            murmur2,
            walk_records,
        )
    except ImportError:
        from moldau.records._codec_py import (
            IMPLEMENTATION,
            ColumnBuilder,
            Record,
            RecordWriter,
            decode_records,
            murmur2,
            walk_records,
        )

__all__ = ["IMPLEMENTATION", "ColumnBuilder", "Record", "RecordWriter", "decode_records", "murmur2", "walk_records"]
