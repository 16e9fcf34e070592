"""Models the performance and the faults of a machine's disk.

Faults change the profile while the world runs. The port (``disk``) reads the profile before each operation and reports
operations that it failed or delayed. While several faults overlap, each value is the worst of theirs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY_BYTES = 1 << 32
ROOT = ("/",)
OPEN_FILES_MAX = 1 << 20


class DiskFaultKind(enum.Enum):
    """The way in which an operation failed."""

    SLOWED = "slowed"
    WRITE = "write"  # EIO
    READ = "read"  # EIO
    SYNC = "sync"  # EIO
    DEVICE = "device"  # EIO, because the device is gone
    HANG = "hang"  # no error: the call does not return
    FULL = "full"  # ENOSPC
    DESCRIPTORS = "descriptors"  # EMFILE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trouble:
    """The effects of one fault on a disk while it lasts; the defaults have none. Fields as in ``DiskProfile``."""

    on_effect: Callable[[], None]
    """Called after each operation that this fault failed or delayed, perhaps together with other faults."""
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
    hanging_paths: tuple[str, ...] = ()
    open_files_max: int = OPEN_FILES_MAX

    def explains(self, hit: DiskFaultKind, path: str) -> bool:
        """Returns whether this fault can have caused such a failure on ``path``."""
        match hit:
            case DiskFaultKind.SLOWED:
                return self.offload_delay_jitter > 0.0 or self.stall_probability > 0.0
            case DiskFaultKind.WRITE:
                return self.write_error_probability > 0.0
            case DiskFaultKind.READ:
                return self.read_error_probability > 0.0 and is_below(path, self.unreadable_paths)
            case DiskFaultKind.SYNC:
                return self.sync_error_probability > 0.0
            case DiskFaultKind.DEVICE:
                return is_below(path, self.failing_paths)
            case DiskFaultKind.HANG:
                return is_below(path, self.hanging_paths)
            case DiskFaultKind.FULL:
                return self.capacity_bytes < CAPACITY_BYTES or is_below(path, self.full_paths)
            case DiskFaultKind.DESCRIPTORS:
                return self.open_files_max < OPEN_FILES_MAX


@dataclass(slots=True, kw_only=True)
class DiskProfile:
    """The behaviour of a disk; faults change it while the world runs. Times in seconds."""

    capacity_bytes: int = CAPACITY_BYTES
    offload_delay_min: float = 0.000_05
    offload_delay_jitter: float = 0.000_5  # mean of an exponential distribution on top
    stall_probability: float = 0.001
    stall_max: float = 0.05
    write_error_probability: float = 0.0  # EIO, also of new, changed and removed names
    read_error_probability: float = 0.0  # EIO
    unreadable_paths: tuple[str, ...] = ROOT  # where reads may fail
    sync_error_probability: float = 0.0  # EIO; ``virtual_disk`` explains the effect on the pages
    failing_paths: tuple[str, ...] = ()  # directories on a failed device: EIO for everything in them
    full_paths: tuple[str, ...] = ()  # directories on a device without space: ENOSPC where a file or directory grows
    hanging_paths: tuple[str, ...] = ()  # directories on a device that answers no sync
    open_files_max: int = OPEN_FILES_MAX  # of each process on the machine: EMFILE where one opens more
    troubles: list[Trouble] = field(default_factory=list)  # the current faults

    def begin(self, trouble: Trouble) -> None:
        """Adds the effects of a fault."""
        self.troubles.append(trouble)
        self._add_up()

    def end(self, trouble: Trouble) -> None:
        """Removes the effects of one fault; does nothing if it has ended already."""
        if trouble in self.troubles:
            self.troubles.remove(trouble)
            self._add_up()

    def end_all(self) -> None:
        """Removes the effects of all faults."""
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
        self.open_files_max = min(each.open_files_max for each in all_of)
        self.failing_paths = tuple(path for each in self.troubles for path in each.failing_paths)
        self.full_paths = tuple(path for each in self.troubles for path in each.full_paths)
        self.hanging_paths = tuple(path for each in self.troubles for path in each.hanging_paths)
        unreadable = [path for each in self.troubles if each.read_error_probability for path in each.unreadable_paths]
        self.unreadable_paths = tuple(unreadable) or ROOT

    def report(self, hit: DiskFaultKind, path: str) -> None:
        """Reports a failed or delayed operation on ``path`` to the faults that explain it."""
        for trouble in self.troubles:
            if trouble.explains(hit, path):
                trouble.on_effect()

    def read_error_of(self, path: str) -> float:
        """Returns the probability with which a read of ``path`` fails."""
        if not is_below(path, self.unreadable_paths):
            return 0.0
        found = [each.read_error_probability for each in self.troubles if each.explains(DiskFaultKind.READ, path)]
        return max(found, default=self.read_error_probability)

    def is_failing(self, path: str) -> bool:
        """Returns whether ``path`` is on a failed device."""
        return is_below(path, self.failing_paths)

    def is_hanging(self, path: str) -> bool:
        """Returns whether a sync of ``path`` does not return."""
        return is_below(path, self.hanging_paths)

    def is_full(self, path: str) -> bool:
        """Returns whether ``path`` is on a device without space."""
        return is_below(path, self.full_paths)


def is_below(path: str, directories: tuple[str, ...]) -> bool:
    """Returns whether ``path`` is one of the directories or is below one of them."""
    return bool(directories) and any(
        path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories
    )
