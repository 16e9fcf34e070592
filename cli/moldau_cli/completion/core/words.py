"""Makes words of an unfinished command line, without the options that any command takes. Pure."""

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


def rejoined(words: list[str]) -> list[str]:
    """Joins the words of a line that bash has divided at colons and equals signs, which it passes as words.

    Behind an option, such a word is the option's value: a separator, as in ``-K :``.
    """
    found: list[str] = []
    goes_on = False
    for word in words:
        divides = bool(word) and not word.strip(":=")
        if found and ((goes_on and word) or (divides and _may_contain(found[-1], word))):
            found[-1] += word
            goes_on = divides
        else:
            found.append(word)
            goes_on = False
    return found


def _may_contain(word: str, divider: str) -> bool:
    """Returns whether a divider that follows may belong to a word: to ``--name`` as its ``=``, and to all values."""
    if not word.startswith("-"):
        return True
    return "=" in word or (word.startswith("--") and divider.startswith("="))


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
