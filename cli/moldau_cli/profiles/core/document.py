"""The file of profiles as values: parsed, checked, changed and written as TOML. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.text import toml_document
from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_KEYS: Final = {"bootstrap", "command-config", "settings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A cluster with a name.

    ``command_config`` is the path of a file with client configuration keys, empty for none. ``settings`` are further
    keys, as the user wrote them: references such as ``${env:NAME}`` are resolved when they are used.
    """

    name: str
    bootstrap: str
    command_config: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """All profiles by name. Invariant: ``current`` is empty or the name of one."""

    current: str = ""
    by_name: Mapping[str, Profile] = field(default_factory=dict)

    def get(self, name: str, origin: str) -> Profile:
        """Returns a profile; ``origin`` says where its name stands.

        Raises:
            UsageError: there is none.
        """
        if name not in self.by_name:
            known = f"known are {', '.join(sorted(self.by_name))}" if self.by_name else "moldau profile add makes one"
            raise UsageError(f"{origin}: there is no profile {name!r}; {known}")
        return self.by_name[name]

    def with_profile(self, profile: Profile) -> Profiles:
        """Returns the profiles with one added or replaced; the first one becomes the current one."""
        return Profiles(current=self.current or profile.name, by_name={**self.by_name, profile.name: profile})

    def without(self, name: str) -> Profiles:
        """Returns the profiles without one; if it was the current one, none is."""
        left = {each: profile for each, profile in self.by_name.items() if each != name}
        return Profiles(current="" if self.current == name else self.current, by_name=left)

    def using(self, name: str) -> Profiles:
        """Returns the profiles with another current one, or none."""
        return replace(self, current=name)


def check_name(name: str) -> str:
    """Returns a name that a profile may have.

    Raises:
        UsageError: it has other characters than letters, digits, dots, hyphens and underscores.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"a profile's name has letters, digits, dots, hyphens and underscores, not {name!r}")
    return name


def parse_profiles(text: str, origin: str) -> Profiles:
    """Parses the file; ``origin`` names it in errors.

    Raises:
        UsageError: the text has another form.
    """
    try:
        document = toml_document(text)
    except ValueError as error:
        raise UsageError(f"{origin} is not TOML: {error}") from error
    current, tables = document.get("current", ""), document.get("profiles", {})
    if not isinstance(current, str) or not isinstance(tables, dict) or document.keys() - {"current", "profiles"}:
        raise UsageError(f"{origin}: expected the keys current and profiles")
    found = {name: _profile(name, table, origin) for name, table in tables.items()}
    if current and current not in found:
        raise UsageError(f"{origin}: current names {current!r}, which is no profile")
    return Profiles(current=current, by_name=found)


def _profile(name: str, table: object, origin: str) -> Profile:
    place = f"{origin}: profile {name}"
    if not isinstance(table, dict) or not isinstance(table.get("bootstrap"), str) or not table["bootstrap"]:
        raise UsageError(f"{place} needs bootstrap")
    if unknown := sorted(table.keys() - _KEYS):
        raise UsageError(f"{place}: unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    settings, config = table.get("settings", {}), table.get("command-config", "")
    if not isinstance(settings, dict) or not all(isinstance(each, str) for each in (config, *settings.values())):
        raise UsageError(f"{place}: command-config and all settings must be texts")
    return Profile(name=check_name(name), bootstrap=table["bootstrap"], command_config=config, settings=settings)


def write_profiles(profiles: Profiles) -> str:
    """Returns the text of the file.

    Raises:
        UsageError: a value has control characters.
    """
    lines = ["# Written by moldau profile. Settings may hold secrets: keep this file to yourself."]
    lines.append(f"current = {_quoted(profiles.current)}")
    for name, profile in sorted(profiles.by_name.items()):
        lines += ["", f"[profiles.{_quoted(name)}]", f"bootstrap = {_quoted(profile.bootstrap)}"]
        if profile.command_config:
            lines.append(f"command-config = {_quoted(profile.command_config)}")
        if profile.settings:
            lines += ["", f"[profiles.{_quoted(name)}.settings]"]
            lines += [f"{_quoted(key)} = {_quoted(value)}" for key, value in sorted(profile.settings.items())]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Returns a basic string of TOML, which a string of JSON is unless it has control characters."""
    if any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in text):
        raise UsageError(f"control characters cannot be kept in a profile: {text!r:.40}")
    return json.dumps(text, ensure_ascii=False)
