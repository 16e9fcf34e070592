"""Divides the values of a long test between ``make test`` and ``make test-proof``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


def proof_beyond(quick: int, values: Iterable[object]) -> list[object]:
    """Returns the values for ``parametrize``: all but the first ``quick`` run in ``make test-proof`` only.

    A tuple stands for the values of several parameters.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.proof] * (place >= quick))
        for place, value in enumerate(values)
    ]
