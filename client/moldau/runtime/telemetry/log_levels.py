"""Levels of this process's loggers while it runs, by Kafka's names (KIP-412).

The narrow way by which an administrator changes them: the root logger and those of Moldau, nothing else of ``logging``.
A change lasts until it is taken back or the process ends.
"""

from __future__ import annotations

import logging
from typing import Final

ROOT: Final = "root"
LEVELS: Final = {"OFF": 60, "FATAL": 50, "ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 5}
"""Kafka's levels, from the most silent to the most talkative, and the numbers that ``logging`` has for them."""
_PREFIX: Final = "moldau"


class LogLevels:
    """The levels of this process's loggers, including inherited ones."""

    def __init__(self) -> None:
        """Nothing is changed yet."""
        self._before: dict[str, int] = {}
        """Levels that were replaced, by the name of the logger."""

    def names(self) -> list[str]:
        """Returns the loggers that can be changed: the root, and those of Moldau with those above them."""
        found = {ROOT: None, _PREFIX: None}
        for name in list(logging.Logger.manager.loggerDict):
            parts = name.split(".")
            if parts[0] == _PREFIX:
                found.update(dict.fromkeys(".".join(parts[:count]) for count in range(1, len(parts) + 1)))
        return sorted(found)

    def level(self, name: str) -> str:
        """Returns the level in force."""
        number = _logger(name).getEffectiveLevel()
        return next((level for level, least in LEVELS.items() if number >= least), "TRACE")

    def set(self, name: str, level: str) -> None:
        """Sets one of ``LEVELS``.

        Raises:
            KeyError: there is no such level.
        """
        number = LEVELS[level]
        logger = _logger(name)
        self._before.setdefault(name, logger.level)
        logger.setLevel(number)

    def reset(self, name: str) -> None:
        """Gives a logger the level back that it had before the first change; no effect without one."""
        if name in self._before:
            _logger(name).setLevel(self._before.pop(name))

    def reset_all(self) -> None:
        """Gives each changed logger the level back that it had before: for nodes that end before their process does."""
        for name in list(self._before):
            self.reset(name)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


PROCESS_LOG_LEVELS: Final = LogLevels()
"""Shared by all nodes of this process, as its loggers are."""
