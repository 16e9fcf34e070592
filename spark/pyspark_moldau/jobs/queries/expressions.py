"""SQL expressions of job files: their errors name the section they stand in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.errors import JobConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark_moldau.jobs.config.settings import Section


@contextmanager
def checked_sql(place: str) -> Iterator[None]:
    """Turns Spark's complaint about an expression into one line.

    Raises:
        JobConfigError: Spark refuses an expression.
    """
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        line = next((line for line in str(error).splitlines() if line.strip()), "wrong expression")
        raise JobConfigError(f"{place} an expression is wrong: {line.strip()}") from error


def check_names(section: Section, own: Sequence[str], **tables: Mapping[str, object]) -> None:
    """Checks that the names in a job's tables differ from each other, and from those that every result has.

    Raises:
        JobConfigError: Two are equal, or differ in case only: Spark takes these for the same.
    """
    seen = {name.lower(): "the job itself" for name in own}
    for table, names in tables.items():
        for name in names:
            if name.lower() in seen:
                raise section.error(
                    f"{table}.{name}", f"{seen[name.lower()]} has a column of this name; give this one another name"
                )
            seen[name.lower()] = f"{table}.{name}"


def aliased(names: Iterable[str]) -> list[str]:
    """Returns names as SQL, quoted."""
    return ["`" + name.replace("`", "``") + "`" for name in names]
