"""How the disk of a machine behaves, and misbehaves: the model of its faults.

Faults change the profile while the world runs; the port (``disk``) asks it before everything that it does, and tells
it what it made of that. Faults overlap: while several last, each value is that of the worst of them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY_BYTES = 1 << 32
ROOT = ("/",)


class Hit(enum.Enum):
    """What was done to an operation."""

    SLOWED = "slowed"
    WRITE = "write"  # EIO
    READ = "read"  # EIO
    SYNC = "sync"  # EIO
    DEVICE = "device"  # EIO, because the device is gone
    FULL = "full"  # ENOSPC


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trouble:
    """What one fault does to a disk while it lasts; the defaults do nothing. Fields as in ``DiskProfile``."""

    struck: Callable[[], None]
    """Called whenever it has failed or slowed an operation, perhaps together with others."""
    capacity_bytes: int = CAPACITY_BYTES
    offload_delay_jitter: float = 0.0
    stall_probability: float = 0.0
    stall_max: float = 0.0
    write_error_probability: float = 0.0
    read_error_probability: float = 0.0
    unreadable_paths: tuple[str, ...] = ROOT
    sync_error_probability: float = 0.0
    failing_paths: tuple[str, ...] = ()
    full_paths: tuple[str, ...] = ()

    def explains(self, hit: Hit, path: str) -> bool:
        """Whether such a thing can be its work."""
        match hit:
            case Hit.SLOWED:
                return self.offload_delay_jitter > 0.0 or self.stall_probability > 0.0
            case Hit.WRITE:
                return self.write_error_probability > 0.0
            case Hit.READ:
                return self.read_error_probability > 0.0 and is_below(path, self.unreadable_paths)
            case Hit.SYNC:
                return self.sync_error_probability > 0.0
            case Hit.DEVICE:
                return is_below(path, self.failing_paths)
            case Hit.FULL:
                return self.capacity_bytes < CAPACITY_BYTES or is_below(path, self.full_paths)


@dataclass(slots=True, kw_only=True)
class DiskProfile:
    """How a disk behaves; faults change it while the world runs. Times in seconds."""

    capacity_bytes: int = CAPACITY_BYTES
    offload_delay_min: float = 0.000_05
    offload_delay_jitter: float = 0.000_5  # mean of an exponential distribution on top
    stall_probability: float = 0.001
    stall_max: float = 0.05
    write_error_probability: float = 0.0  # EIO, also of new, changed and removed names
    read_error_probability: float = 0.0  # EIO
    unreadable_paths: tuple[str, ...] = ROOT  # where reads may fail
    sync_error_probability: float = 0.0  # EIO; see ``platters`` for what becomes of the pages
    failing_paths: tuple[str, ...] = ()  # directories on a device that is gone: EIO for all they hold
    full_paths: tuple[str, ...] = ()  # directories on a device without space: ENOSPC where a file or directory grows
    troubles: list[Trouble] = field(default_factory=list)  # that last now

    def begin(self, trouble: Trouble) -> None:
        """A fault begins."""
        self.troubles.append(trouble)
        self._add_up()

    def end(self, trouble: Trouble) -> None:
        """A fault ends, and only what it did; no effect if it has ended already."""
        if trouble in self.troubles:
            self.troubles.remove(trouble)
            self._add_up()

    def end_all(self) -> None:
        """The disk works again."""
        self.troubles.clear()
        self._add_up()

    def _add_up(self) -> None:
        all_of: tuple[DiskProfile | Trouble, ...] = (DiskProfile(), *self.troubles)
        self.capacity_bytes = min(each.capacity_bytes for each in all_of)
        self.offload_delay_jitter = max(each.offload_delay_jitter for each in all_of)
        self.stall_probability = max(each.stall_probability for each in all_of)
        self.stall_max = max(each.stall_max for each in all_of)
        self.write_error_probability = max(each.write_error_probability for each in all_of)
        self.read_error_probability = max(each.read_error_probability for each in all_of)
        self.sync_error_probability = max(each.sync_error_probability for each in all_of)
        self.failing_paths = tuple(path for each in self.troubles for path in each.failing_paths)
        self.full_paths = tuple(path for each in self.troubles for path in each.full_paths)
        unreadable = [path for each in self.troubles if each.read_error_probability for path in each.unreadable_paths]
        self.unreadable_paths = tuple(unreadable) or ROOT

    def tell(self, hit: Hit, path: str) -> None:
        """An operation on ``path`` has failed, or been slowed."""
        for trouble in self.troubles:
            if trouble.explains(hit, path):
                trouble.struck()

    def read_error_of(self, path: str) -> float:
        """The probability with which a read of ``path`` fails."""
        if not is_below(path, self.unreadable_paths):
            return 0.0
        found = [each.read_error_probability for each in self.troubles if each.explains(Hit.READ, path)]
        return max(found, default=self.read_error_probability)

    def is_failing(self, path: str) -> bool:
        """Whether ``path`` is on a device that is gone."""
        return is_below(path, self.failing_paths)

    def is_full(self, path: str) -> bool:
        """Whether ``path`` is on a device without space."""
        return is_below(path, self.full_paths)


def is_below(path: str, directories: tuple[str, ...]) -> bool:
    """Whether ``path`` is one of the directories or in one of them."""
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)
