"""How the disk of a machine behaves, and misbehaves: the model of its faults.

Faults change the profile while the world runs; the port (``disk``) asks it before everything that it does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class DiskProfile:
    """How a disk behaves; faults change it while the world runs. Times in seconds."""

    capacity_bytes: int = 1 << 32
    offload_delay_min: float = 0.000_05
    offload_delay_jitter: float = 0.000_5  # mean of an exponential distribution on top
    stall_probability: float = 0.001
    stall_max: float = 0.05
    write_error_probability: float = 0.0  # EIO
    read_error_probability: float = 0.0  # EIO
    unreadable_paths: tuple[str, ...] = ("/",)  # where reads may fail
    sync_error_probability: float = 0.0  # EIO; the pages count as not written
    failing_paths: tuple[str, ...] = ()  # directories on a device that is gone: EIO for all they hold
    full_paths: tuple[str, ...] = ()  # directories on a device without space: ENOSPC where a file grows

    def is_failing(self, path: str) -> bool:
        """Whether ``path`` is on a device that is gone."""
        return _is_below(path, self.failing_paths)

    def is_unreadable(self, path: str) -> bool:
        """Whether reads of ``path`` may fail."""
        return _is_below(path, self.unreadable_paths)

    def is_full(self, path: str) -> bool:
        """Whether ``path`` is on a device without space."""
        return _is_below(path, self.full_paths)


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)
