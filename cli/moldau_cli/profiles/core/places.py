"""Paths in the settings of a profile. Pure: a profile serves commands of any directory, and each has another one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LOCATIONS: Final = ("ssl.keystore.location", "ssl.truststore.location", "ssl.ca.location")
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
"""The path of a ``file:`` URL has its characters escaped."""
_REFERENCE: Final = re.compile(r"\$\{(file|dir):([^:}][^}]*)\}")


def with_absolute_paths(settings: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Returns the settings with the paths of files and of references made absolute; others stay as they are."""
    return {key: _absolute(key, value, directory) for key, value in settings.items()}


def _absolute(key: str, value: str, directory: Path) -> str:
    if key in _LOCATIONS and value and not value.startswith("${"):
        value = str(directory / value)
    if key == _TOKEN_URL and value.startswith("file:") and not value.startswith(("file:/", "file:${")):
        value = f"file:{quote(str(directory))}/{value.removeprefix('file:')}"
    return _REFERENCE.sub(lambda match: f"${{{match[1]}:{directory / match[2]}}}", value)
