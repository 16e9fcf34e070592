"""Configuration providers: values of a file that stand elsewhere, so that the file itself holds no secret.

    ${env:NAME}             an environment variable
    ${file:PATH:KEY}        a key of a properties file
    ${dir:DIRECTORY:FILE}   the whole content of a file, as secrets are mounted into containers

Kafka has the same three and wants them declared with ``config.providers``; here they need no declaration. Only texts of
the operator are resolved (files, command lines): never a value that came over the network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import ConfigError
from moldau.runtime.config.text import parse_properties
from moldau.runtime.sasl.core.jaas import parse_jaas

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

BYTES_MAX: Final = 1 << 20
_REFERENCE: Final = re.compile(r"\$\{(env|file|dir):([^}]*)\}")
_LOOKED_UP: Final = "\ue000"
"""Stands for a reference in a JAAS text, where the signs of a path would have a meaning."""


def resolve(given: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Returns ``given`` with its references replaced; a value may hold several.

    Raises:
        ConfigError: a variable, file or key does not exist.
    """
    problems: list[str] = []
    resolved: dict[str, object] = {}
    for name, value in given.items():
        try:
            resolved[name] = _resolve_value(value, environ)
        except (ValueError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            problems.append(f"{name} = {_shown(value)}: {reason}")
    if problems:
        raise ConfigError(problems)
    return resolved


def _shown(value: object) -> str:
    """Returns the references of a value without the text between them, which may be secret."""
    return " ".join(match[0] for match in _REFERENCE.finditer(str(value)))


def _resolve_value(value: object, environ: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_resolve_value(element, environ) for element in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return _REFERENCE.sub(lambda match: _looked_up(match[1], match[2], environ), value)


def _looked_up(provider: str, path: str, environ: Mapping[str, str]) -> str:
    if provider == "env":
        if path not in environ:
            raise ValueError(f"there is no environment variable {path}")
        return environ[path]
    place, colon, key = path.rpartition(":")
    if not colon or not place or not key:
        form = "${file:PATH:KEY}" if provider == "file" else "${dir:DIRECTORY:FILE}"
        raise ValueError(f"must be {form}")
    if provider == "dir":
        if "/" in key or key in (".", ".."):
            raise ValueError(f"{key} must be the name of a file in {place}")
        return _read(Path(place) / key).rstrip("\r\n")
    found = parse_properties(_read(Path(place)), place)
    if key not in found:
        raise ValueError(f"{place} has no key {key}")
    return found[key]


def _read(path: Path) -> str:
    if path.stat().st_size > BYTES_MAX:
        raise ValueError(f"{path} has more than {BYTES_MAX} bytes")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


def files_of_secrets(given: Mapping[str, object], file_name: str, secrets: Collection[str]) -> list[str]:
    """Returns the files that hold the secrets of a configuration file, itself among them if it holds any as text.

    Text around a reference is no secret, except for a password of its own in a JAAS text, whose other options may be
    references. ``given`` are the unresolved values of the file, ``secrets`` the names of those that are secret.
    """
    found: dict[str, None] = {}
    for name in secrets:
        value = given.get(name)
        text = value if isinstance(value, str) else ""
        for match in _REFERENCE.finditer(text):
            place, _, key = match[2].rpartition(":")
            if match[1] == "file":
                found[place] = None
            elif match[1] == "dir":
                found[str(Path(place) / key)] = None
        if _holds_secret(text):
            found[file_name] = None
    return list(found)


def _holds_secret(text: str) -> bool:
    if not _REFERENCE.search(text):
        return bool(text)
    try:
        modules = parse_jaas(_REFERENCE.sub(_LOOKED_UP, text))
    except ValueError:
        return False
    options = [option for module in modules for option in module.options.items()]
    return any(
        value and _LOOKED_UP not in value and (name.startswith("user_") or name in ("password", "clientSecret"))
        for name, value in options
    )
