"""SQL expressions of job files: their errors name the section they stand in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark_moldau.jobs.errors import JobConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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


def aliased(names: Iterable[str]) -> list[str]:
    """Returns names as SQL, quoted."""
    return [f"`{name}`" for name in names]
