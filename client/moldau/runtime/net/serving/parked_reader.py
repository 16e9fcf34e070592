"""The reader of a connection while it waits for bytes: its part in the turns of the listener.

While the reader is parked, ``turns`` receives, handles and answers in its stead. What a turn cannot finish is left to
the reader, which is woken with a ``LeftOver``: a pause, a request that takes long, bytes that the transport did not
take, memory that must be paid for, an error. Where the network reports no arrivals (TLS), the reader waits for its own
connection and no turn serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.net.receive_buffer import ReceiveBuffer
    from moldau.runtime.net.serving.answer_queue import AnswerQueue
    from moldau.runtime.net.serving.answers import Deferred, ResponsePart
    from moldau.runtime.net.serving.held import HeldBytes
    from moldau.runtime.net.serving.throttle import Throttle
    from moldau.runtime.ports.environment import Arrivals, Connection

HEAVY_BYTES = 4096
"""From this size on a request other than Produce is handled in a turn of its own: it may name thousands of things."""

REQUESTS_PER_TURN = 256
"""Requests of one connection before the others have their turn; only those without an answer can be so many."""


class RequestHandling(Protocol):
    """How a connection handles what is in its buffer; see ``ConnectionLoop``."""

    def must_wait(self) -> bool:
        """Returns whether the next request must wait."""

    def starts_heavy(self) -> bool:
        """Returns whether the next request may take long."""

    def handle_frames(self, answers: list[Sequence[ResponsePart] | Deferred], requests_max: int) -> bool:
        """Handles complete frames; returns whether there may be more."""

    def flush(self, answers: list[Sequence[ResponsePart] | Deferred]) -> None:
        """Flushes what was handled."""


class LeftOver(NamedTuple):
    """The work that a turn leaves to the reader of a connection, besides the bytes in its buffer."""

    error: Exception | None
    answers: Sequence[Sequence[ResponsePart] | Deferred] = ()
    rest: Sequence[ResponsePart] = ()
    """Bytes of the answers that the transport did not take."""
    has_more: bool = False
    """Whether the buffer may hold complete frames."""


class ParkedReader:
    """The wait of one reader. ``receive``, ``flush`` and ``answer`` are the parts of a turn, in this order."""

    __slots__ = (
        "_answers",
        "_arrivals",
        "_connection",
        "_error",
        "_fills",
        "_handled",
        "_has_more",
        "_held",
        "_left",
        "_received",
        "_requests",
        "_task",
        "_throttle",
        "is_parked",
    )

    def __init__(
        self,
        requests: RequestHandling,
        connection: Connection,
        received: ReceiveBuffer,
        answers: AnswerQueue,
        held: HeldBytes,
        throttle: Throttle,
    ) -> None:
        """Nothing waits. ``connection`` and ``throttle`` may be replaced by ``watch``."""
        self._requests = requests
        self._connection = connection
        self._received = received
        self._answers = answers
        self._held = held
        self.is_parked = False
        """Whether the reader waits for bytes and holds no view of the buffer."""
        self._task: trio.lowlevel.Task | None = None  # the reader, while turns serve it
        self._arrivals: Arrivals | None = None  # None: the reader waits for its own connection
        self._left: LeftOver | None = None
        self._handled: list[Sequence[ResponsePart] | Deferred] = []  # the answers of a turn that is not over
        self._error: Exception | None = None  # of this turn
        self._throttle = throttle
        self._fills = False  # its receive has filled the buffer
        self._has_more = False  # complete frames are left in the buffer

    def watch(self, connection: Connection, arrivals: Arrivals | None, throttle: Throttle) -> None:
        """Lets turns serve ``connection`` from now on, if ``arrivals`` can watch it; ``throttle`` is the handler's."""
        self._connection = connection
        self._throttle = throttle
        if arrivals is not None and arrivals.watch(connection, self):
            self._arrivals = arrivals

    def close(self) -> None:
        """Ends the watch, for good; called before the connection is closed."""
        if self._arrivals is not None:
            self._arrivals.forget(self._connection)
        # It refers to this reader. Without the cycle the buffers of a closed connection go at once. The collection of
        # garbage would find them after thousands of further connections, and stop all others meanwhile.
        del self._requests

    async def wait(self) -> LeftOver | None:
        """Waits until the reader has something to do; it has found nothing to receive just before."""
        self.is_parked = True
        try:
            if self._arrivals is None:
                await self._connection.wait_readable()
            else:
                await self._wait_for_turn()
        finally:
            self.is_parked = False
        left, self._left = self._left, None
        return left

    async def _wait_for_turn(self) -> None:
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self, left: LeftOver | None) -> None:
        assert self._task is not None, "the reader waits"
        task, self._task = self._task, None
        self.is_parked = False
        self._left = left
        trio.lowlevel.reschedule(task)

    def receive(self, now_ms: float) -> int:
        """Receives and handles what has arrived, without a flush.

        Returns the number of bytes; -1 if there is nothing to complete, because the reader runs or nothing had arrived.
        """
        if self._task is None:
            return -1  # the reader receives once more before it waits again
        requests, received = self._requests, self._received
        if (self._throttle.until_ms or self._answers.pending) and requests.must_wait():
            self._wake(None)
            return -1
        try:
            view = received.view
            count = self._connection.receive_into_nowait(view[received.end :] if received.end else view)
        except BlockingIOError:
            return -1
        except Exception as error:  # noqa: BLE001 - the reader raises it
            self._wake(LeftOver(error))
            return -1
        if not count:
            self._wake(None)  # the reader finds the end of the stream too
            return -1
        received.end += count
        self._fills = received.end == len(received.buffer)
        received.arrived_ms = now_ms
        if received.end - received.start >= HEAVY_BYTES and requests.starts_heavy():
            self._has_more = True
            return count
        try:
            self._has_more = requests.handle_frames(self._handled, REQUESTS_PER_TURN)
        except Exception as error:  # noqa: BLE001 - the reader raises it
            self._error = error
        return count

    def flush(self) -> None:
        """Flushes what was handled."""
        try:
            self._requests.flush(self._handled)
        except Exception as error:  # noqa: BLE001 - the reader raises it
            self._error = error

    def answer(self) -> None:
        """Sends the answers and ends the turn; leaves to the reader what has to wait."""
        answers, self._handled = self._handled, []
        error, self._error = self._error, None
        has_more, self._has_more = self._has_more, False
        if self._task is None:
            return  # the connection was ended meanwhile
        if error is not None:
            self._wake(LeftOver(error, answers))
            return
        try:
            rest = self._answers.leave(answers)
        except Exception as failed:  # noqa: BLE001 - the reader raises it
            self._wake(LeftOver(failed))
            return
        held = self._held
        # Bytes that did not fit into the buffer were announced already.
        if rest or has_more or self._fills or (held.held and held.unpaid > 0) or self._received.make_room():
            self._wake(LeftOver(None, answers, rest, has_more=has_more))
