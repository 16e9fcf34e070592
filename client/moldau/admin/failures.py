"""Errors of the admin client's calls, and their construction from error codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from moldau.protocol.schema import Response

K = TypeVar("K")

ABSENT: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""Codes for topics that do not exist. They are final where the controller answers, which knows each topic at once."""
_LISTS = ("topics", "results", "responses")
"""Fields of responses that hold an error code and a message for each entry of the request."""


class AdminError(KafkaError):
    """Reports that a call failed for some of its topics, groups or partitions.

    ``failures`` maps the name of each of them to its error. ``results`` holds what the call would have returned for the
    others, None if it returns nothing.
    """

    def __init__(self, failures: Mapping[str, KafkaError], results: object = None) -> None:
        first = next(iter(failures.values()))
        super().__init__(first.code, "; ".join(f"{name}: {error}" for name, error in failures.items()))
        self.args = (self.message,)  # each failure has its code already
        self.failures = dict(failures)
        self.results = results


def raise_failures(failures: Mapping[K, KafkaError], results: object = None) -> None:
    """Reports the elements of a request that failed, with the results of the others.

    Raises:
        AdminError: ``failures`` is not empty.
    """
    if failures:
        raise AdminError({str(name): error for name, error in failures.items()}, results)


def error_of(code: int, message: str | None = None) -> KafkaError | None:
    """Returns the error for a wire code, or None for NONE."""
    found = ErrorCode.of(code)
    return None if found is ErrorCode.NONE else KafkaError(found, message)


def reason_of(response: Response, code: ErrorCode) -> str:
    """Returns the broker's own words for ``code`` where the response has them, else the code's name and meaning."""
    parts = [response, *(part for name in _LISTS for part in getattr(response, name, ()))]
    for part in parts:
        if getattr(part, "error_code", None) == code and (message := getattr(part, "error_message", None)):
            return str(message)
    return f"{code.name}: {code.message}"


def raise_error(code: int, message: str | None = None) -> None:
    """Turns an error code of the wire into an exception.

    Raises:
        KafkaError: the code is not NONE.
    """
    error = error_of(code, message)
    if error is not None:
        raise error


def raise_group_error(code: int, group_id: str, message: str | None = None) -> None:
    """Turns a group's error code into an exception that names the group.

    Raises:
        KafkaError: the code is not NONE.
    """
    error = group_error_of(code, group_id, message)
    if error is not None:
        raise error


def group_error_of(code: int, group_id: str, message: str | None = None) -> KafkaError | None:
    """Returns the error for a group's wire code, with a text that names the group, or None for NONE."""
    found = ErrorCode.of(code)
    return None if found is ErrorCode.NONE else KafkaError(found, f"group {group_id}: {message or found.message}")


def only_passing(codes: Iterable[int], *, final: Collection[ErrorCode] = ()) -> ErrorCode | None:
    """Returns the first code if nothing was done, so that all of it may be repeated; else None.

    Then each code is a retriable failure, and none is in ``final``.
    """
    found = [ErrorCode.of(code) for code in codes]
    return found[0] if found and all(code.retriable and code not in final for code in found) else None


def first_retriable(codes: Iterable[int], *, final: Collection[ErrorCode] = ()) -> ErrorCode | None:
    """Returns the first failure's code if all failures are retriable, else None.

    ``final`` are codes that do not count: another attempt would find the same.
    """
    failed = [ErrorCode.of(code) for code in codes if code and code not in final]
    return failed[0] if failed and all(code.retriable for code in failed) else None
