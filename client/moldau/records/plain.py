"""Chooses between the check in one pass in typed Cython and none; see ``_plain.pyi`` and ``moldau.implementation``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.records._plain import check_plain_batch
else:
    try:
        from moldau.records._plain import check_plain_batch
    except ImportError:
        from moldau.records.pure.plain import check_plain_batch

__all__ = ["check_plain_batch"]
