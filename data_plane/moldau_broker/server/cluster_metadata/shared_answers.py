"""Keeps encoded answers to Metadata while the image stays the same: many clients ask the same question at one time.

A group of 500 members reads a topic with a thousand partitions. After a rebalance, or when a broker is slow, all of
them ask for its metadata. To describe and encode the topic for each of them would cost members times partitions, and
make a slow broker slower still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

    from moldau.protocol.schema import Response
    from moldau_quorum.metadata.image import MetadataImage

ANSWERS_MAX: Final = 32
"""Different questions whose answers are kept."""
DESCRIBED_MAX: Final = 20_000
"""Topics and partitions of the largest answer that is kept: about 1 MB."""


@dataclass(slots=True, eq=False)
class SharedAnswer:
    """An answer that many requests get, each with its own correlation id.

    Exactly one of ``response`` and ``frame`` is set: the first request that is answered encodes it.
    """

    response: Response | None
    frame: bytes | None = None
    """The frame with correlation id 0 and without a throttle time."""


class SharedAnswers:
    """The answers that hold for one image."""

    def __init__(self) -> None:
        self._image: MetadataImage | None = None
        self._answers: dict[Hashable, SharedAnswer] = {}

    def get(self, image: MetadataImage, key: Hashable) -> SharedAnswer | None:
        """Returns the answer to a question, if one is kept for this image."""
        return self._answers.get(key) if self._image is image else None

    def keep(self, image: MetadataImage, key: Hashable, answer: SharedAnswer, described: int) -> None:
        """Keeps an answer that was made from ``image`` alone; it has ``described`` topics and partitions."""
        if self._image is not image:
            self._image = image
            self._answers.clear()
        if described > DESCRIBED_MAX:
            return
        if len(self._answers) >= ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = answer
