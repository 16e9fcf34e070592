"""Version ranges of messages and fields, written as in Kafka's own notation: ``"3"``, ``"0-4"``, ``"9+"``."""

from dataclasses import dataclass

VERSION_MAX = 0x7FFF


@dataclass(frozen=True, slots=True)
class VersionRange:
    """An inclusive range of versions; empty when ``first > last``."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == VERSION_MAX:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NO_VERSIONS = VersionRange(1, 0)


def parse_versions(text: str | None) -> VersionRange:
    """Reads ``"none"``, ``"N"``, ``"N-M"`` or ``"N+"``.

    Raises:
        ValueError: the text is none of these.
    """
    if text is None or text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return VersionRange(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return VersionRange(int(first), int(last or first))
