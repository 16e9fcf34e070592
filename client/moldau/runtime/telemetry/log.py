"""Structured log lines: an event name followed by ``key=value`` pairs, with the node's identity in front.

Formatting is lazy: a line that no handler wants costs one level check. Values with blanks or quotes are quoted, so
that a line can be split again.
"""

from __future__ import annotations

import logging


class EventLogger:
    """A ``logging.Logger`` that speaks in events. ``bind`` derives one with more context."""

    __slots__ = ("_context", "_logger")

    def __init__(self, name: str, **context: object) -> None:
        """``name`` is the logger's name; ``context`` is repeated on each line, e.g. ``node=3``."""
        self._logger = logging.getLogger(name)
        self._context = context

    @property
    def shows_details(self) -> bool:
        """Whether lines of `debug` are wanted: for callers that make many."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def bind(self, **context: object) -> EventLogger:
        """Returns a logger of the same name that adds ``context`` to each line."""
        return EventLogger(self._logger.name, **{**self._context, **context})

    def debug(self, event: str, **fields: object) -> None:
        """Logs a detail for diagnosis."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Logs a change of state that may interest an operator."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Logs an event that was handled and should not happen often."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, *, exception: BaseException | None = None, **fields: object) -> None:
        """Logs an event that a human must look at; ``exception`` adds its traceback."""
        self._log(logging.ERROR, event, fields, exception)

    def _log(self, level: int, event: str, fields: dict[str, object], exception: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", EventLine(event, {**self._context, **fields}), exc_info=exception)


class EventLine:
    """An event and its fields; it becomes text when a handler writes it."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: dict[str, object]) -> None:
        """``fields`` are shown in their order."""
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{key}={format_value(value)}" for key, value in self.fields.items())])


def format_value(value: object) -> str:
    """Returns ``value`` as one word, quoted where it would not be one.

    Unprintable characters are escaped as in Python, because clients choose their names: no value can end the line,
    move the cursor or hide text.
    """
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if text and text.isprintable() and not any(character.isspace() or character in '"=' for character in text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '\\"':
        return "\\" + character
    return character if character.isprintable() else repr(character)[1:-1]


class LineFormatter(logging.Formatter):
    """Formats records so that a line of the log always begins with its time.

    Tracebacks are indented, and their unprintable characters escaped, because an exception may quote a client's bytes.
    """

    def formatException(self, ei: object) -> str:
        """See ``logging.Formatter``."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join("    " + "".join(map(_visible, line)) for line in lines)


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
