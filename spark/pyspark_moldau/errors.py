"""Makes Spark show the message of a source's error first, instead of a Python traceback.

Spark's Python workers send the formatted traceback of an exception to the JVM, unless ``SPARK_HIDE_TRACEBACK`` is set
at that moment; then they send the message alone. A worker ends after its first exception, so setting the variable just
before the exception leaves the worker changes nothing for others.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from moldau.protocol.errors import KafkaError
from moldau.runtime.config import ConfigError
from pyspark_moldau.client_options import OptionError
from pyspark_moldau.versions import UnsupportedSparkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"

P = ParamSpec("P")
T = TypeVar("T")


class DataLossError(RuntimeError):
    """Records that the query should have read are gone."""


class ReadTimeoutError(RuntimeError):
    """The cluster did not answer, or had no leader, for ``kafka.default.api.timeout.ms``."""


class DamagedBatchError(RuntimeError):
    """A record batch fails its checksum, or is malformed."""


class SinkError(RuntimeError):
    """Rows cannot be written; the first line names what is wrong and the remedy."""


USER_ERRORS: Final = (
    OptionError,
    DataLossError,
    DamagedBatchError,
    ReadTimeoutError,
    SinkError,
    KafkaError,
    ConfigError,
    UnsupportedSparkError,
)
"""Errors whose message says what to do; a traceback adds nothing for the user."""


def message_first(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates what Spark calls in a Python worker: the message of an expected error becomes the first line."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except USER_ERRORS:
            _hide_traceback()
            raise

    return call


def message_first_while_read(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Decorates a generator as ``message_first`` decorates a function."""
    assert inspect.isgeneratorfunction(function), "a generator function is expected"

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
        except USER_ERRORS:
            _hide_traceback()
            raise

    return call


def _hide_traceback() -> None:
    """Sets the variable in Spark's worker processes only, not in a driver that calls a reader itself."""
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    if specification is not None and specification.name.startswith("pyspark."):
        os.environ[HIDE_TRACEBACK] = "1"
