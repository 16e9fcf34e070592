"""Chooses the implementation of the record loops: typed Cython where it was built, else its twin in Python.

Everything else imports the loops from here. ``IMPLEMENTATION`` names the one that serves. ``MOLDAU_PURE_PYTHON=1`` in
the environment makes the twin serve also where the extension was built (``moldau.implementation``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.records._codec import (
        IMPLEMENTATION,
        ColumnBuilder,
        PartitionSlot,
        PendingRecord,
        Record,
        RecordAppender,
        RecordPlace,
        RecordWalker,
        RecordWriter,
        RowColumns,
        TopicRoute,
        decode_records,
        find_timestamp,
        group_rows,
        murmur2,
    )
else:
    try:
        from moldau.records._codec import (
            IMPLEMENTATION,
            ColumnBuilder,
            Record,
            RecordWalker,
            RecordWriter,
            RowColumns,
            decode_records,
            find_timestamp,
            group_rows,
            murmur2,
        )
    except ImportError:
        from moldau.records.pure.codec import (
            IMPLEMENTATION,
            ColumnBuilder,
            Record,
            RecordWalker,
            RecordWriter,
            RowColumns,
            decode_records,
            find_timestamp,
            group_rows,
            murmur2,
        )

    try:
        from moldau.records._codec import PartitionSlot, PendingRecord, RecordAppender, RecordPlace, TopicRoute
    except ImportError:  # no extension, or one of an earlier version
        from moldau.records.pure.append import PartitionSlot, PendingRecord, RecordAppender, RecordPlace, TopicRoute

__all__ = [
    "IMPLEMENTATION",
    "ColumnBuilder",
    "PartitionSlot",
    "PendingRecord",
    "Record",
    "RecordAppender",
    "RecordPlace",
    "RecordWalker",
    "RecordWriter",
    "RowColumns",
    "TopicRoute",
    "decode_records",
    "find_timestamp",
    "group_rows",
    "murmur2",
]
