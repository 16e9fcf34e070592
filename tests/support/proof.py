"""Divides the values of a long test between ``make test`` and ``make test-proof``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable


SHARE_OF_EXAMPLES: Final = 8
"""``make test`` runs one of this many drawn examples."""
ALL_EXAMPLES: Final = "ALL_EXAMPLES"
"""The variable of the environment with which all are run: by ``make test-proof``, and by trials of generated bugs."""


def all_examples() -> bool:
    """Returns whether a test takes all its examples."""
    return bool(os.environ.get(ALL_EXAMPLES))


def examples(most: int) -> int:
    """Returns how many examples a test draws; ``most`` where all are run.

    Tests that do not draw them with Hypothesis are marked ``drawn``, by which ``make test-proof`` finds them.
    """
    return most if all_examples() else -(-most // SHARE_OF_EXAMPLES)


def proof_beyond(quick: int, values: Iterable[object]) -> list[object]:
    """Returns the values for ``parametrize``: all but the first ``quick`` run in ``make test-proof`` only.

    A tuple stands for the values of several parameters.
    """
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=[pytest.mark.proof] * (place >= quick))
        for place, value in enumerate(values)
    ]
