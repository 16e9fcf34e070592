"""Answers of commands that ask for several things at once, some of which may fail."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

from moldau_cli import output
from moldau_cli.client.failures import from_kafka
from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from moldau import AdminError
    from moldau.protocol.errors import KafkaError

R = TypeVar("R")
T = TypeVar("T")


def refuse_repeated(what: str, names: Sequence[str]) -> None:
    """Refuses a list of names in which one stands twice.

    Raises:
        UsageError: it does.
    """
    if len(set(names)) != len(names):
        raise UsageError(f"a {what} is named twice")


@contextmanager
def answering_done(wanted: Sequence[T], answer: Callable[[Sequence[T]], None], failed: str) -> Iterator[None]:
    """Answers with those of ``wanted`` for which the block's call succeeded, also if it failed for others.

    Raises:
        CommandError: it begins with ``failed`` and has the names of the others with the reasons.
    """
    from moldau import AdminError

    try:
        yield
    except AdminError as error:
        done = [one for one in wanted if str(one) not in error.failures]
        if done:
            answer(done)
        raise _in_part(error, failed) from error
    answer(wanted)


async def answer_results(asked: Awaitable[R], answer: Callable[[R], None], failed: str) -> None:
    """Answers with the results of a call, also with those that it has for some names if it failed for others.

    Raises:
        CommandError: it begins with ``failed`` and has the names of the others with the reasons.
    """
    from moldau import AdminError

    try:
        results = await asked
    except AdminError as error:
        if error.results:
            answer(cast("R", error.results))
        raise _in_part(error, failed) from error
    answer(results)


def _in_part(error: AdminError, failed: str) -> CommandError:
    reported = from_kafka(error)
    return type(reported)(f"{failed}: {reported}")


def refuse_failures(what: str, failures: Mapping[str, KafkaError]) -> None:
    """Ends a command whose answer lacks something, after the answer.

    Raises:
        CommandError: there are ``failures``; it begins with ``what`` and names the first.
    """
    if failures:
        from moldau_cli.operations.partial import summarize_failures

        raise CommandError(f"{what}: {summarize_failures(failures)}")


def deleting(names: Sequence[str]) -> AbstractContextManager[None]:
    """Answers with those of ``names`` that the block's call has deleted; raises as ``answering_done``."""

    def answer(deleted: Sequence[str]) -> None:
        output.answer({"deleted": [*deleted]}, f"deleted {', '.join(deleted) or 'nothing'}")

    return answering_done(names, answer, "not deleted")
