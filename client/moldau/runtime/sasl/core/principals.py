"""Principals from certificates: distinguished names and ``ssl.principal.mapping.rules`` (KIP-371). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_BLANKS: Final = " \r"
_RULE = re.compile(r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_BETWEEN = re.compile(r"\s*(?:,\s*|$)")
_FILLED = re.compile(r"\\(.)|\$(\d)")
"""The parts of a replacement that do not stand for themselves: an escaped character, and a group."""


def distinguished_name(certificate: Mapping[str, object]) -> str:
    """Returns the subject as Kafka writes it (RFC 2253): ``CN=...,OU=...``, the most specific part first.

    ``certificate`` is what ``TlsConnection.peer_certificate`` returns: a type that RFC 2253 does not name is a number,
    and its value is written already.
    """
    subject = certificate.get("subject", ())
    parts = [
        "+".join(
            f"{_SHORT_NAMES.get(key, key)}={value if key[:1].isdigit() else _escaped(value)}"
            for key, value in attributes
        )
        for attributes in (subject if isinstance(subject, tuple) else ())
    ]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    """Escapes a value as Java does, so that none can look like a further part of the name (RFC 2253 section 2.4).

    Java also escapes each ``=`` and ``#``, and every blank at both ends.
    """
    inner = value.strip(_BLANKS)
    start = value.index(inner) if inner else len(value)
    escaped = re.sub(r'([,=+<>#;"\\])', r"\\\1", inner).replace("\0", "\\00")
    return _escaped_blanks(value[:start]) + escaped + _escaped_blanks(value[start + len(inner) :])


def _escaped_blanks(blanks: str) -> str:
    return "".join(f"\\{blank}" for blank in blanks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: str = ""


class MappingRules:
    """The rules in order; the first whose pattern matches the whole name decides."""

    def __init__(self, text: str) -> None:
        """Parses ``RULE:pattern/replacement/[LU]`` and ``DEFAULT``, separated by commas.

        Raises:
            ValueError: a rule has another form, or its pattern is no regular expression.
        """
        self._rules: list[_Rule] = []
        text = text.strip()
        at = 0
        while at < len(text):
            match = _RULE.match(text, at)
            between = _BETWEEN.match(text, match.end()) if match is not None else None
            if match is None or between is None:
                raise ValueError(
                    f"{text[at : at + 60]!r} is neither DEFAULT nor RULE:pattern/replacement/ with an optional L or U"
                )
            at = between.end()
            if match[1]:
                self._rules.append(_Rule(pattern=None))
                continue
            try:
                pattern = re.compile(match[2].replace("\\/", "/"))
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"{match[2]!r} is no regular expression: {error}") from None
            replacement = match[3]
            for _, number in _FILLED.findall(replacement):
                if number and int(number) > pattern.groups:
                    raise ValueError(f"{replacement!r}: the pattern has no group {number}")
            self._rules.append(_Rule(pattern=pattern, replacement=replacement, case=match[4]))

    def apply(self, name: str) -> str | None:
        """Returns the user of a distinguished name; None if no rule fits."""
        for rule in self._rules:
            if rule.pattern is None:
                return name
            match = rule.pattern.fullmatch(name)
            if match is not None:
                found = _filled(rule.replacement, match)
                return {"L": found.lower(), "U": found.upper()}.get(rule.case, found)
        return None


def _filled(replacement: str, match: re.Match[str]) -> str:
    """Returns ``replacement`` with the groups of ``match`` in place of ``$1`` ..., and without backslashes.

    Java takes the character behind a backslash as it is: ``DOMAIN\\\\$1`` has one in front of the group.
    """
    return _FILLED.sub(lambda part: part[1] or match[int(part[2])] or "", replacement)
