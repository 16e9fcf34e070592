"""Says why a command waits, if no broker answers, or the brokers reach no controller that leads.

Without a leader of the quorum, brokers hold the requests that a controller must decide until these time out. An
election, or a broker that answers again, may end the wait at any time, so the command goes on, and the user learns
what it waits for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_cli import output
from moldau_cli.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from moldau import Admin

R = TypeVar("R")

FIRST_LOOK_S: Final = 1.0
"""Commands that are done by then cost the cluster no look."""
SILENCE_S: Final = 2.5
"""How long the brokers may take to describe the cluster at a look, until a note says that none answers.

A client asks another server after a second, so two of them may hang while the others answer.
"""
ANSWER_S: Final = 15.0
"""How long a command waits for the first answer of any broker, as long as lists wait for a silent one."""
LOOK_S: Final = 3.0
"""How long a look may take; brokers answer a healthy cluster's in milliseconds."""
NEXT_LOOK_S: Final = 10.0
ANSWERS: Final = " answers: "
"""Precedes the reason where the client says that it has asked all servers."""
NO_LEADER: Final = (
    "the brokers reach no controller that leads the quorum, so nothing can be changed: start controllers until a "
    "majority runs that has its data; the command waits, and Ctrl-C ends it"
)
SILENT: Final = (
    "no broker answers: brokers hang, or this machine does not reach them; the command waits, and Ctrl-C ends it"
)


async def noting_a_wait(
    work: Callable[[], Awaitable[R]],
    text: str,
    note: Callable[[str], None] = output.note,
    *,
    after_s: float = FIRST_LOOK_S,
) -> R:
    """Runs ``work`` and returns its result; if it takes ``after_s``, writes ``text``, which says what it waits for.

    An exception of ``work`` comes as it is, in no group.
    """

    async def later() -> None:
        await trio.sleep(after_s)
        note(text)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            result = await work()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        only = group.exceptions[0]
    else:
        return result
    raise only


async def explaining_waits(
    work: Callable[[], Awaitable[R]],
    open_admin: Callable[[], AbstractAsyncContextManager[Admin]],
    note: Callable[[str], None] = output.note,
    *,
    answer_s: float = ANSWER_S,
    unanswered: str = "no broker answers",
    looks: trio.CancelScope | None = None,
) -> R:
    """Runs ``work`` and returns its result; if it takes long, writes why it may wait.

    That is one note if no broker answers, and one if no controller leads.

    Args:
        work: The command.
        open_admin: Opens an admin client with connections of its own, because a broker that waits for a controller
            answers nothing else on the same connection.
        note: Writes the note.
        answer_s: How long ``work`` may take if no broker answers from its start.
        unanswered: The text of the error then.
        looks: ``work`` cancels it when it needs no more notes, because it reports silent brokers itself.

    Raises:
        CommandError: no broker has answered for ``answer_s`` since the start. A broker that hangs later is waited for.
    """

    async def look() -> None:
        with looks or trio.CancelScope():
            await _look_until_noted(open_admin, note, answer_s, unanswered)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        result = await work()
        nursery.cancel_scope.cancel()
    return result


async def _look_until_noted(
    open_admin: Callable[[], AbstractAsyncContextManager[Admin]],
    note: Callable[[str], None],
    answer_s: float,
    unanswered: str,
) -> None:
    began_s = trio.current_time()
    await trio.sleep(FIRST_LOOK_S)
    is_first, noted = True, None
    while noted != NO_LEADER:
        try:
            async with open_admin() as admin:
                found = await reason_to_wait(admin)
                if is_first and found == SILENT:
                    note(noted := SILENT)
                    await _first_answer(admin, began_s + answer_s, unanswered)
        except (KafkaError, OSError):
            return  # the command itself meets the same, and reports it
        if found not in (None, noted):
            note(noted := found)
        is_first = False
        await trio.sleep(NEXT_LOOK_S)


async def _first_answer(admin: Admin, until_s: float, unanswered: str) -> None:
    """Waits until a broker answers.

    Raises:
        CommandError: none has by ``until_s``; the text has the reason of one that can be reached and cannot be used.
    """
    left_s = until_s - trio.current_time()
    asking = admin if math.isinf(left_s) else admin.within(max(1, round(left_s * 1000)))
    try:
        await asking.describe_cluster()
    except KafkaError as error:
        if trio.current_time() < until_s - 0.01 or error.code is not ErrorCode.REQUEST_TIMED_OUT:
            raise
        reason = error.message.partition(ANSWERS)[2]
        raise CommandError(f"{unanswered}; {reason}" if reason else unanswered) from error


async def reason_to_wait(admin: Admin) -> str | None:
    """Returns the note that says why a command may wait: ``SILENT``, ``NO_LEADER``, or None if there is no reason.

    Raises:
        KafkaError: the broker refuses to describe the quorum.
        OSError: no broker can be reached.
    """
    with trio.move_on_after(SILENCE_S) as patience:
        await admin.describe_cluster()
    if patience.cancelled_caught:
        return SILENT
    with trio.move_on_after(LOOK_S):
        try:
            return NO_LEADER if (await admin.describe_quorum()).leader_id < 0 else None
        except KafkaError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
    return NO_LEADER
