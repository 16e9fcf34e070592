"""Errors of the log. Each carries the Kafka code that answers the request that caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.ports.descriptors import is_shortage

if TYPE_CHECKING:
    from moldau_broker.log.values import RecordError


class LogError(KafkaError):
    """The log refused a request and changed nothing."""

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


class OffsetInRemoteStorageError(LogError):
    """A read below the local log start offset: the store may have the offset, this disk does not."""

    def __init__(self, offset: int, local_log_start_offset: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
            f"offset {offset} is below {local_log_start_offset}, where the log begins on this disk",
        )
        self.offset = offset
        self.local_log_start_offset = local_log_start_offset


class LogStorageError(LogError):
    """The disk failed below a log: its whole log directory must be taken offline."""

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {directory}: {message}")
        self.directory = directory


class DescriptorsShortError(LogStorageError):
    """The process has too few file descriptors left for the request.

    The disk works, and its directory stays online: the same request succeeds once other files or connections close.
    """

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(directory, f"file descriptors are short: {message}")


def storage_failure(directory: str, message: str, error: OSError) -> LogStorageError:
    """Returns the error for a log in ``directory``; a shortage of descriptors does not fail the directory."""
    kind = DescriptorsShortError if is_shortage(error) else LogStorageError
    return kind(directory, f"{message} failed: {error}")


class CorruptLogFileError(Exception):
    """A file of the log violates its format; the loader rebuilds or truncates it."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path}: byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason
