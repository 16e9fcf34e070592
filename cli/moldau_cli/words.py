"""Words of the command line that several commands read."""

from __future__ import annotations

from moldau_cli.errors import UsageError


def parse_settings(pairs: list[str], *, may_repeat: bool = True) -> dict[str, str]:
    """Parses ``KEY=VALUE`` words; the last one of a key counts.

    Raises:
        UsageError: a word has no ``=`` or no key, or a key is there twice and must not be.
    """
    settings: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"expected KEY=VALUE, not {pair!r}")
        if not may_repeat and key.strip() in settings:
            raise UsageError(f"{key.strip()} is given twice")
        settings[key.strip()] = value.strip()
    return settings
