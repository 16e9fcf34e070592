"""The names that a topic can have."""

from __future__ import annotations

import re
from typing import Final

from moldau.protocol.errors import ErrorCode
from moldau_quorum.controller.context import RefusedError

TOPIC_NAME_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Checks that a topic can have this name.

    Raises:
        RefusedError: INVALID_TOPIC_EXCEPTION.
    """
    if not name:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, "a topic name cannot be empty")
    if name in (".", ".."):
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic cannot be named {name!r}")
    if len(name) > TOPIC_NAME_MAX:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic name has at most {TOPIC_NAME_MAX} characters, not {len(name)}"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r} has characters other than letters, digits, '.', '_' and '-'",
        )
