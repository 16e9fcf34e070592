"""Imports the shortcuts in typed Cython if they were built; see ``_wire.pyi`` and ``moldau.implementation``."""

from __future__ import annotations

try:
    from moldau.protocol.hot._wire import (
        read_fetch,
        read_fetch_answer,
        read_one_produce,
        read_produce,
        write_fetch,
        write_produce,
    )
except ImportError:
    from moldau.protocol.hot.pure import (
        read_fetch,
        read_fetch_answer,
        read_one_produce,
        read_produce,
        write_fetch,
        write_produce,
    )

__all__ = ["read_fetch", "read_fetch_answer", "read_one_produce", "read_produce", "write_fetch", "write_produce"]
