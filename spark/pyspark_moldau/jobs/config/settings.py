"""Reads sections of a TOML file with checks: types, choices, and names that no section knows."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from pyspark_moldau.jobs.errors import JobConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PATTERN: Final = re.compile(r"[*?\[\]{}\\]")


class Section:
    """One table of the file. Each key is taken once; ``finish`` refuses the keys that are left.

    ``name`` is the table's name for messages, for example ``source.payload``.
    """

    def __init__(self, file: str, name: str, values: Mapping[str, object]) -> None:
        self._file = file
        self.name = name
        self._values = dict(values)
        self._known: list[str] = []

    def error(self, key: str, text: str) -> JobConfigError:
        """Returns the error that names file, section and key. What stands outside of all sections is one itself."""
        place = f"[{self.name}] {key}" if self.name else key if key.startswith("[") else f"[{key}]"
        return JobConfigError(f"{self._file}: {place}: {text}")

    def has(self, key: str) -> bool:
        """Returns whether the key is still there to be taken."""
        self._known.append(key)
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """Takes a string; without a default it must be given, and it must not be empty.

        Raises:
            JobConfigError: it is absent or not a string.
        """
        value = self._take(key, default)
        if not isinstance(value, str) or (not value and default != ""):
            raise self.error(key, f"expected a string, got {value!r}")
        return value

    def path(self, key: str, folder: Path) -> Path:
        """Takes a path of a file system, relative to ``folder``.

        Raises:
            JobConfigError: it is absent, or a URL: ``s3a://bucket/table`` would become a folder beside the job's file.
        """
        value = self.text(key)
        if _URL.match(value):
            raise self.error(
                key,
                f"{value!r} is a URL; jobs keep tables and state in folders that the driver and all workers share, so "
                "give the path of one (a mount), or write a query of your own for such a store",
            )
        return folder / value

    def table_path(self, key: str, folder: Path) -> Path:
        """Takes the path of a table, which Spark must be able to read.

        Raises:
            JobConfigError: as ``path``; or it has a colon and a character of Spark's patterns of names. Spark looks for
                the folders of such a path one by one, and takes the part before the colon for the scheme of a URL.
        """
        path = self.path(key, folder)
        found = _PATTERN.search(str(path))
        if ":" in str(path) and found is not None:
            raise self.error(
                key, f"{path}: Spark reads no path with both ':' and {found[0]!r} in it; rename the folder"
            )
        return path

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """Takes one of some words.

        Raises:
            JobConfigError: it is absent or another word.
        """
        value = self.text(key, default)
        if value not in choices:
            raise self.error(key, f"expected one of {', '.join(choices)}, got {value!r}")
        return value

    def number(self, key: str, default: int, *, at_least: int, at_most: int) -> int:
        """Takes an integer within bounds.

        Raises:
            JobConfigError: it is something else.
        """
        value = self._take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= at_most:
            raise self.error(key, f"expected an integer from {at_least} to {at_most}, got {value!r}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Takes true or false.

        Raises:
            JobConfigError: it is something else.
        """
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {value!r}")
        return value

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """Takes a list of strings.

        Raises:
            JobConfigError: it is absent, empty without a default, or something else.
        """
        value = self._take(key, None if default is None else list(default))
        is_list = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
        if not is_list or (not value and default is None):
            raise self.error(key, f"expected a list of strings, got {value!r}")
        assert isinstance(value, list)
        return tuple(value)

    def mapping(self, key: str, *, required: bool = True) -> dict[str, str]:
        """Takes a table of strings; numbers and booleans become Kafka's and Spark's text for them.

        Raises:
            JobConfigError: it is absent or something else.
        """
        value = self._take(key, None if required else {})
        if not isinstance(value, dict) or (required and not value):
            raise self.error(key, f"expected a table of names and values, got {value!r}")
        found = {}
        for name, each in value.items():
            found[name] = self._plain(key, name, each)
        return found

    def dotted(self, key: str) -> dict[str, str]:
        """Takes a table of strings whose names may have dots, quoted or not; an absent table is empty.

        In TOML ``sasl.mechanism = "PLAIN"`` is a table in a table, and ``"sasl.mechanism" = "PLAIN"`` is not. Lists of
        strings become Kafka's comma-separated text. Errors show no values, because values may be secret.

        Raises:
            JobConfigError: it is something else, or a name is given in both forms.
        """
        found: dict[str, str] = {}
        rest = [("", self._take(key, {}))]
        while rest:
            name, value = rest.pop()
            if isinstance(value, dict):
                rest += [(f"{name}.{part}" if name else part, each) for part, each in value.items()]
            elif not name:
                raise self.error(key, f"expected a table of names and values, got a {type(value).__name__}")
            elif name in found:
                raise self.error(key, f"{name} is given twice")
            else:
                found[name] = self._plain(key, name, value)
        return found

    def _plain(self, key: str, name: str, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return ",".join(value)
        raise self.error(key, f"{name}: expected a string or a number, got a {type(value).__name__}")

    def section(self, key: str, *, required: bool = True) -> Section:
        """Takes a table as a section; an absent one is empty unless it is required.

        Raises:
            JobConfigError: it is absent or not a table.
        """
        value = self._take(key, None if required else {})
        if not isinstance(value, dict):
            raise self.error(key, f"expected a table, got {value!r}")
        return Section(self._file, f"{self.name}.{key}" if self.name else key, value)

    def finish(self) -> None:
        """Refuses keys that were not taken.

        Raises:
            JobConfigError: with the nearest known key.
        """
        for key in self._values:
            near = difflib.get_close_matches(key, self._known, 1)
            hint = f"did you mean {near[0]}?" if near else "known here: " + ", ".join(sorted(set(self._known)))
            raise self.error(key, f"unknown key; {hint}")

    def _take(self, key: str, default: object) -> object:
        self._known.append(key)
        value = self._values.pop(key, default)
        if value is None:
            near = difflib.get_close_matches(key, self._values, 1)
            raise self.error(key, f"must be given; is {near[0]} meant?" if near else "must be given")
        return value
