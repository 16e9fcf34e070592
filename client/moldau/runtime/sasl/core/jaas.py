"""JAAS texts in Kafka's form: ``org.example.PlainLoginModule required username="a" password="b";``. Pure.

Kafka reads such a text with Java's ``StreamTokenizer``: values stand in double or single quotes with backslash escapes,
or are plain words; ``/* */`` and ``//`` begin comments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}
"""Mechanisms of each login module; Kafka's packages in front of the names are understood and not needed."""

_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|/\*.*?\*/)|(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<sign>[=;])"""
    r"""|(?P<word>[^\s=;"'/]+|/)""",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
"""A character by its number in octal digits, or by a letter; any other character stands for itself."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
_WANTED: Final = (
    'it must be like: org.apache.kafka.common.security.plain.PlainLoginModule required username="..." password="...";'
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoginModule:
    """One login module with its options. Options hold passwords: they are never shown."""

    name: str  # without package
    options: Mapping[str, str]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The SASL mechanisms that the module serves."""
        return MODULES[self.name]

    def users(self) -> dict[str, str]:
        """Returns the passwords of the ``user_<name>`` options."""
        return {name[len("user_") :]: value for name, value in self.options.items() if name.startswith("user_")}


def parse_jaas(text: str) -> tuple[LoginModule, ...]:
    """Parses the login modules of a text.

    Raises:
        ValueError: the text has another form. The message quotes nothing of it but module and option names.
    """
    tokens = _tokens(text)
    modules: list[LoginModule] = []
    at = 0
    while at < len(tokens):
        end = next((i for i in range(at, len(tokens)) if tokens[i] == ("sign", ";")), None)
        if end is None:
            raise ValueError(f"a login module does not end with a semicolon; {_WANTED}")
        modules.append(_module(tokens[at:end]))
        at = end + 1
    if not modules:
        raise ValueError(f"it names no login module; {_WANTED}")
    return tuple(modules)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"a quoted value does not end; {_WANTED}")
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "quoted":
            tokens.append(("value", _ESCAPE.sub(_unescaped, match[0][1:-1])))
        elif kind != "blank":
            tokens.append((kind, match[0]))
    return tokens


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 8)) if match[1][0] in "01234567" else _ESCAPES.get(match[1], match[1])


def _module(tokens: list[tuple[str, str]]) -> LoginModule:
    if len(tokens) < 2 or tokens[0][0] != "word" or tokens[1][0] != "word":
        raise ValueError(_WANTED)
    name = tokens[0][1].rpartition(".")[2]
    if name not in MODULES:
        known = ", ".join(MODULES)
        raise ValueError(f"login module {name[:60]} is not served, only {known}")
    if tokens[1][1].lower() not in _FLAGS:
        raise ValueError(f"{name} is not followed by 'required'; {_WANTED}")
    options: dict[str, str] = {}
    rest = tokens[2:]
    while rest:
        if len(rest) < 3 or rest[0][0] != "word" or rest[1] != ("sign", "=") or rest[2][0] == "sign":
            raise ValueError(f'an option of {name} is not name="value"; {_WANTED}')
        if rest[0][1] in options:
            raise ValueError(f"option {rest[0][1][:60]} of {name} is given twice")
        options[rest[0][1]] = rest[2][1]
        rest = rest[3:]
    return LoginModule(name=name, options=options)


def module_for(modules: tuple[LoginModule, ...], mechanism: str) -> LoginModule | None:
    """Returns the first module that serves a mechanism."""
    return next((module for module in modules if mechanism in module.mechanisms), None)
