"""The JSON files of Kafka's tools: an object with ``"version": 1`` and a list ``partitions``. Pure."""

from __future__ import annotations

import json
from typing import Final

from moldau_cli.errors import UsageError

BYTE_ORDER_MARK: Final = "\ufeff"
"""Spreadsheets and editors of Windows begin files with it; it cannot be seen, and belongs to no name."""


def partition_entries(text: str, origin: str) -> list[object]:
    """Returns the entries of ``partitions``; ``origin`` names the file in errors.

    A file without ``version`` counts as version 1, as Kafka's tools read it.

    Raises:
        UsageError: the text is not JSON, or not such an object.
    """
    try:
        document = json.loads(text.removeprefix(BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{origin} is not JSON: {error}") from error
    entries = document.get("partitions") if isinstance(document, dict) else None
    if not isinstance(entries, list) or document.get("version", 1) != 1:
        raise UsageError(f'{origin} must hold "version": 1 and a list "partitions"')
    return entries
