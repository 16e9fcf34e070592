"""The production ``Environment``: clocks, sockets and files of the operating system."""

from __future__ import annotations

import random
import resource
import time
from contextlib import suppress

from moldau.runtime.ports.descriptors import UNLIMITED
from moldau.runtime.ports.environment import Environment
from moldau.runtime.ports.real_disk import RealDisk
from moldau.runtime.ports.real_network import RealConnection, RealNetwork

__all__ = ["RealClock", "RealConnection", "RealDisk", "RealNetwork", "raise_open_files_limit", "real_environment"]

OPEN_FILES_WANTED = 1 << 20


class RealClock:
    """The clocks of the machine."""

    __slots__ = ()

    def monotonic_ms(self) -> float:
        """Milliseconds of CLOCK_MONOTONIC."""
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)


def raise_open_files_limit() -> int:
    """Increases the process's limit of open files up to ``OPEN_FILES_WANTED``; returns the new limit.

    Most shells start with 1,024, for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a lower bound that getrlimit does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def real_environment(seed: int | None = None) -> Environment:
    """Returns the environment of the operating system.

    Random numbers come from the system and cannot be predicted; ``seed`` fixes them.
    """
    numbers = random.SystemRandom() if seed is None else random.Random(seed)
    return Environment(clock=RealClock(), random=numbers, network=RealNetwork(), disk=RealDisk())
