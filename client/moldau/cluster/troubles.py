"""The schedule of reports about a client's lasting troubles: at once, then periodically. Pure."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

S = TypeVar("S")

REMIND_MS = 60_000.0
"""A trouble that lasts is reported again after this time."""

TOPIC_NAME_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


class InvalidTopicError(KafkaError):
    """Reports that a name is not a valid topic name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"invalid topic name {name!r}: a name has 1 to {TOPIC_NAME_MAX} letters, digits, '.', '_' and '-', "
            "and is neither '.' nor '..'",
        )
        self.name = name


def check_topic_names(names: Iterable[str]) -> None:
    """Checks names of topics.

    Raises:
        InvalidTopicError: names the first invalid one.
    """
    for name in names:
        if len(name) > TOPIC_NAME_MAX or name in (".", "..") or _LEGAL_NAME.fullmatch(name) is None:
            raise InvalidTopicError(name)


class Troubles(Generic[S]):
    """Remembers the reported troubles. Invariant: it holds only subjects of the last call of ``due``."""

    __slots__ = ("_reported",)

    def __init__(self) -> None:
        self._reported: dict[S, tuple[object, float]] = {}  # subject: cause, and time of the next report

    def due(self, now_ms: float, *troubles: tuple[S, object], grace_ms: float = 0.0) -> list[S]:
        """Takes all present troubles as (subject, cause); returns the subjects to report now.

        A trouble is reported when it has lasted for ``grace_ms``, then every ``REMIND_MS``, and when its cause changes.
        """
        before, self._reported = self._reported, {}
        reported: list[S] = []
        for subject, cause in troubles:
            known, due_ms = before.get(subject, (None, math.nan))
            if known != cause:
                due_ms = now_ms + grace_ms
            if now_ms >= due_ms:
                reported.append(subject)
                due_ms = now_ms + REMIND_MS
            self._reported[subject] = (cause, due_ms)
        return reported
