"""Why a mirror ends instead of trying again."""

from __future__ import annotations


class MirrorStoppedError(Exception):
    """A source is not mirrored any longer, and trying again would not help.

    ``is_usage`` is set if the mirror's configuration is the reason.
    """

    def __init__(self, text: str, *, is_usage: bool = False) -> None:
        super().__init__(text)
        self.is_usage = is_usage
