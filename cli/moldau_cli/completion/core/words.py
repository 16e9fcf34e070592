"""Takes the options that any command takes out of an unfinished command line, as the entry point does. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FLAGS: Final = ("--json",)
VALUES: Final = ("--command-config", "--profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A command line without its global options.

    ``words`` are the words before the one that is typed, ``typed`` is that one. ``found`` holds the values of global
    options. ``awaits`` is the global option whose value is typed, empty if another word is.
    """

    words: list[str]
    typed: str
    found: dict[str, str] = field(default_factory=dict)
    awaits: str = ""


def without_globals(words: list[str], typed: str) -> Unfinished:
    """Returns the command line without global options, up to ``--``."""
    end = words.index("--") if "--" in words else len(words)
    rest: list[str] = []
    found: dict[str, str] = {}
    awaits = ""
    for word in words[:end]:
        name, equals, value = word.partition("=")
        if awaits:
            found[awaits], awaits = word, ""
        elif name in VALUES:
            if equals:
                found[name] = value
            else:
                awaits = name
        elif word not in FLAGS:
            rest.append(word)
    name, equals, value = typed.partition("=")
    if end == len(words) and not awaits and equals and name in VALUES:
        return Unfinished(words=rest, typed=value, found=found, awaits=name)
    return Unfinished(words=rest + words[end:], typed=typed, found=found, awaits=awaits if end == len(words) else "")
