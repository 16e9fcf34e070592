"""Errors of the log. Each carries the Kafka code that answers the request that caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau_broker.log.values import RecordError


class LogError(KafkaError):
    """A request that the log refuses; nothing was changed."""

    def __init__(self, code: ErrorCode, message: str, *, record_errors: tuple[RecordError, ...] = ()) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class OffsetOutOfRangeError(LogError):
    """A read below the log start offset or above the log end offset."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside the log, which holds {log_start_offset} to {log_end_offset} (exclusive)",
        )
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogStorageError(LogError):
    """The disk failed below a log: its whole log directory must be taken offline."""

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {directory}: {message}")
        self.directory = directory


class CorruptLogFileError(Exception):
    """A file of the log does not hold what its format demands; the loader rebuilds or truncates."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
