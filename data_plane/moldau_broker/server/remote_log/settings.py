"""The configuration of a broker's remote log manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.runtime.tasks.supervision import BackoffPolicy

if TYPE_CHECKING:
    from moldau.runtime.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSettings:
    """Names are Kafka's without ``remote.log.manager.`` and with ``_`` for ``.``."""

    task_interval_ms: float = 30_000.0
    """Period of the work for one partition."""
    unfinished_delete_delay_ms: float = 3_600_000.0
    """Age at which objects are deleted that no segment, or no topic, has."""
    backoff: BackoffPolicy = field(default_factory=BackoffPolicy)
    """Pauses of a partition after failures of the store."""

    @classmethod
    def from_config(cls, config: Config) -> RemoteLogSettings:
        """Reads the static keys."""
        return cls(
            task_interval_ms=float(config.get_int("remote.log.manager.task.interval.ms")),
            unfinished_delete_delay_ms=float(config.get_int("remote.log.unfinished.delete.delay.ms")),
            backoff=BackoffPolicy(
                initial_ms=float(config.get_int("remote.log.manager.task.retry.backoff.ms")),
                max_ms=float(config.get_int("remote.log.manager.task.retry.backoff.max.ms")),
                jitter=config.get_double("remote.log.manager.task.retry.jitter"),
            ),
        )
