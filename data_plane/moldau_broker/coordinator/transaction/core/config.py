"""The limits of the transaction coordinator, with Kafka's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau.runtime.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits of transactions; times in milliseconds."""

    timeout_max_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 3_600_000
    expiration_check_interval_ms: int = 3_600_000
    append_timeout_ms: int = 5_000
    """How long a request waits for its commit before it is answered with a retriable error."""
    retry_backoff_ms: int = 1_000
    """How long the coordinator waits before it retries one of its own writes that the log refused."""
    appends_pending_max: int = 10_000
    load_bytes_max: int = 5 * 1024 * 1024
    expired_per_round_max: int = 1_000
    expired_rounds_pause_ms: int = 10_000
    """The pause before the next round if more ids have expired: clients may use a new id for each transaction."""

    @classmethod
    def of(cls, config: Config) -> TransactionConfig:
        """Reads the broker's configuration."""
        return cls(
            timeout_max_ms=config.get_int("transaction.max.timeout.ms"),
            id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
            expiration_check_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
            load_bytes_max=config.get_int("transaction.state.log.load.buffer.size"),
        )
