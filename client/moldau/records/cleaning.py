"""Chooses the implementation of the cleaner's loops: typed Cython where it was built, else its twin in Python.

The log's cleaner imports them from here. They work on batches and records, and know nothing of logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.records._cleaning import map_keys, select_records
else:
    try:
        from moldau.records._cleaning import map_keys, select_records
    except ImportError:
        from moldau.records.pure.cleaning import map_keys, select_records

__all__ = ["map_keys", "select_records"]
