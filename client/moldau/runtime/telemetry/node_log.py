"""The log of a node: text or one JSON object a line, with a limit on lines that repeat.

A fault that lasts can make a node write the same line thousands of times a second. So identical lines (same logger,
level, event and fields) are limited, and, far more generously, all lines of one event. The line ``lines-left-out``
counts the others. It appears with the first line after the window of ten seconds, or when the node ends.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from moldau.runtime.telemetry.core.repeats import LeftOut, RepeatLimiter
from moldau.runtime.telemetry.log import EventLine, LineFormatter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW_MS: Final = 10_000.0
EVENT_FACTOR: Final = 100
"""All lines of one event together may be so many times the identical ones: a broker logs each of its partitions."""
LEFT_OUT: Final = "lines-left-out"
RESERVED: Final = ("time", "level", "logger", "event", "exception", "process")
"""Names of a JSON line's own values; a field of the same name gets an underscore at its end."""

_Key = tuple[str, int, str]


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in one line of ASCII.

    It has ``time`` (UTC, ISO 8601, milliseconds), ``level``, ``logger``, ``event``, the fields of the event by their
    names, and ``exception`` with a traceback. Numbers and booleans keep their types; other values are texts. The event
    of a library's record is its message. ``process`` is the node's id, if several nodes share the stream.
    """

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self._process = {} if process is None else {"process": process}

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        document: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            **self._process,
        }
        line = event_line(record)
        document["event"] = record.getMessage() if line is None else line.event
        for name, value in ({} if line is None else line.fields).items():
            document[f"{name}_" if name in RESERVED else name] = _plain(value)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document)


class NodeLogHandler(logging.StreamHandler[TextIO]):
    """Writes a node's log to a stream."""

    def __init__(
        self,
        stream: TextIO,
        log_format: str,
        *,
        repeats_max: int,
        monotonic_ms: Callable[[], float],
        process: int | None = None,
    ) -> None:
        """``log_format`` is ``text`` or ``json``; ``repeats_max`` is 0 for no limit on repeated lines.

        ``process`` is the node's id on each line, if the nodes of one machine share the stream.
        """
        super().__init__(stream)
        self.log_format = log_format
        self.process = process
        node = "" if process is None else f" [{process}]"
        text = f"%(asctime)s.%(msecs)03d{node} %(levelname)s %(name)s %(message)s"
        as_text = LineFormatter(text, datefmt="%Y-%m-%dT%H:%M:%S")
        self.setFormatter(JsonFormatter(process) if log_format == "json" else as_text)
        self._monotonic_ms = monotonic_ms
        limits = () if repeats_max == 0 else (repeats_max, repeats_max * EVENT_FACTOR)
        self._limiters = [RepeatLimiter[_Key](lines_max=limit, window_ms=WINDOW_MS) for limit in limits]

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``; the caller holds the handler's lock."""
        now_ms = self._monotonic_ms()
        passes = True
        try:
            keys = _keys(record)
        except (KeyError, TypeError, ValueError):  # a library gave arguments that do not fit its text
            self.handleError(record)
            return
        for limiter, key in zip(self._limiters, keys, strict=False):
            # A line that the first limiter leaves out does not count for the second.
            passes, due = limiter.admit(key, now_ms) if passes else (False, limiter.ended(now_ms))
            self._report(due)
        if passes:
            super().emit(record)

    def close(self) -> None:
        """Writes what was left out since the last windows ended; the stream stays open."""
        self.acquire()
        try:
            for limiter in self._limiters:
                self._report(limiter.finish(self._monotonic_ms()))
            self.flush()
        finally:
            self.release()
        super().close()

    def _report(self, due: Sequence[LeftOut[_Key]]) -> None:
        for one in due:
            logger, level, text = one.key
            fields = {"count": one.count, "window_ms": round(one.window_ms), "line": text}
            super().emit(
                logging.LogRecord(logger, level, "", 0, "%s", (EventLine(LEFT_OUT, dict(fields)),), exc_info=None)
            )


def event_line(record: logging.LogRecord) -> EventLine | None:
    """Returns the event of a record that an ``EventLogger`` made; None for a library's record."""
    match record.args:
        case (EventLine() as line,):
            return line
        case _:
            return None


def _keys(record: logging.LogRecord) -> tuple[_Key, _Key]:
    """Returns what identical lines share, and what all lines of an event share."""
    line = event_line(record)
    event = str(record.msg) if line is None else line.event
    return (record.name, record.levelno, record.getMessage()), (record.name, record.levelno, event)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int) else str(value)
