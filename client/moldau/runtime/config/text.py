"""Texts that hold a configuration: Java properties, TOML, environment variables. Pure: texts in, mappings out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.config.nearest import nearest_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.config.declaration import ConfigSchema

ENVIRONMENT_PREFIX = "MOLDAU_"
OTHER_VARIABLES = frozenset(
    {
        "MOLDAU_BENCH_DIR",
        "MOLDAU_BOOTSTRAP",
        "MOLDAU_CONSOLE_TOKEN",
        "MOLDAU_FAULT_FIRST_SEED",
        "MOLDAU_FAULT_SEEDS",
        "MOLDAU_PROFILE",
        "MOLDAU_PURE_PYTHON",
        "MOLDAU_QUORUM_FIRST_SEED",
        "MOLDAU_QUORUM_SEEDS",
    }
)
"""Variables of commands, tests and benchmarks, which nodes inherit from them."""
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END: Final = re.compile(r"\r\n|[\r\n]")
"""Java knows no other ends of lines, unlike ``str.splitlines``: a password may hold U+2028."""
_BLANKS: Final = " \t\f"
_HEXADECIMAL: Final = re.compile("[0-9A-Fa-f]{4}")
_BYTE_ORDER_MARK: Final = "\ufeff"
"""Editors of Windows begin files with it; it cannot be seen, and no name begins with it."""
_PAIR: Final = re.compile(r"[\ud800-\udbff][\udc00-\udfff]")
"""Two escapes that stand for one character above U+FFFF, as Java writes it."""


def parse_config_text(text: str, file_name: str) -> dict[str, object]:
    """Parses a configuration file by its name: TOML where it ends in ``.toml``, else Java properties."""
    if file_name.endswith(".toml"):
        return parse_toml(text, file_name)
    return dict(parse_properties(text, file_name))


def parse_toml(text: str, file_name: str = "TOML") -> dict[str, object]:
    """Parses TOML. Tables are joined by dots: ``[log]`` with ``dirs = [...]`` is ``log.dirs``.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    try:
        document = toml_document(text)
    except ValueError as error:
        raise ConfigError([f"{file_name}: not TOML: {error}"]) from None
    return flattened(document, file_name)


def toml_document(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML text, which may begin with a byte order mark.

    Raises:
        ValueError: it is no TOML, is nested too deeply, or has a number of thousands of digits.
    """
    import tomllib  # costs a node without TOML several milliseconds at its start

    try:
        return tomllib.loads(text.removeprefix(_BYTE_ORDER_MARK))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def flattened(table: Mapping[str, object], file_name: str) -> dict[str, object]:
    """Returns a table of TOML with the names of inner tables joined by dots.

    Raises:
        ConfigError: two names become the same, or a value is not allowed.
    """
    flat: dict[str, object] = {}
    _flatten("", table, flat, file_name)
    return flat


def _flatten(prefix: str, table: Mapping[str, object], flat: dict[str, object], file_name: str) -> None:
    for name, value in table.items():
        full = prefix + name
        if isinstance(value, dict):
            _flatten(full + ".", value, flat, file_name)
        elif full in flat:
            raise ConfigError([f"{file_name}: {full} is given twice"])
        elif isinstance(value, list) and any(isinstance(element, dict | list) for element in value):
            raise ConfigError([f"{file_name}: {full} must be a plain list"])
        elif isinstance(value, bool | int | float | str | list):
            flat[full] = value
        else:
            raise ConfigError([f"{file_name}: {full} = {value}: dates and times are no configuration values"])


def parse_properties(text: str, file_name: str = "properties") -> dict[str, str]:
    """Parses Java properties: ``key=value``, ``key: value``, ``#`` and ``!`` comments, continued lines, escapes.

    Raises:
        ConfigError: a key is given twice, or an escape is broken.
    """
    properties: dict[str, str] = {}
    lines = iter(enumerate(_LINE_END.split(text.removeprefix(_BYTE_ORDER_MARK)), 1))
    for number, line in lines:
        logical = line.lstrip(_BLANKS)
        if not logical or logical[0] in "#!":
            continue
        while _ends_with_odd_backslashes(logical):
            logical = logical[:-1] + next(lines, (0, ""))[1].lstrip(_BLANKS)
        key, value = _split(logical)
        try:
            name = _unescape(key)
            content = _unescape(value).rstrip()
        except ValueError as error:
            raise ConfigError([f"{file_name}, line {number}: {error}"]) from None
        if name in properties:
            raise ConfigError([f"{file_name}, line {number}: {name} is given twice"])
        properties[name] = content
    return properties


def _ends_with_odd_backslashes(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    at = 0
    while at < len(line) and line[at] not in f"=:{_BLANKS}":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:at], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at : at + 4]
            if not _HEXADECIMAL.fullmatch(digits):
                raise ValueError(f"\\u{digits} is no Unicode escape")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), "".join(out))


def environment_name(key: str) -> str:
    """Returns the environment variable that overrides ``key``: ``log.dirs`` is ``MOLDAU_LOG_DIRS``."""
    return ENVIRONMENT_PREFIX + key.upper().replace(".", "_")


def _variables(schema: ConfigSchema) -> dict[str, str]:
    """Returns the key that each variable overrides."""
    return {environment_name(key): key for key in (*schema.keys, *schema.unserved)}


def environment_overrides(schema: ConfigSchema, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the keys of ``schema`` that ``environ`` sets."""
    return {key: environ[variable] for variable, key in _variables(schema).items() if variable in environ}


def unknown_variables(schema: ConfigSchema, environ: Mapping[str, str]) -> list[str]:
    """Returns an error for each ``MOLDAU_`` variable without a key in ``schema``; it names the nearest variable.

    A misspelt variable would give a node another configuration than its operator intended.
    """
    known = _variables(schema)
    problems: list[str] = []
    for variable in sorted(environ):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in known or variable in OTHER_VARIABLES:
            continue
        nearest = nearest_names(tuple(known)).find(variable)
        hint = f"; did you mean {nearest}, which is {known[nearest]}?" if nearest else ""
        problems.append(f"{variable}: this environment variable stands for no {schema.name} configuration key{hint}")
    return problems
