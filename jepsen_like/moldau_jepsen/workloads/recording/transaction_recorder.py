"""Records the transactions of a client in the history: sends, polls, and the outcome.

A transaction is one operation of the history. If a client could not finish a transaction, it can never be committed if
the client had not requested the commit (FAIL); otherwise the outcome is open (INFO).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from moldau.producer.core.transaction_errors import TransactionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.history import Kind, Poll, Send, Status
from moldau_jepsen.workloads.recording.payload import send_payload
from moldau_jepsen.workloads.recording.recorder import acknowledgements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau.producer import Delivery, Producer
    from moldau_jepsen.history import MicroOperation, TopicPartition
    from moldau_jepsen.workloads.recording.recorder import Recorder

TRANSACTION_TIMEOUT_MS = 5_000
"""The coordinator ends what a crashed client left open after this time, if no successor does."""


def transactional_config(transactional_id: str, bootstrap: str, given: Mapping[str, object]) -> dict[str, object]:
    """Returns the producer's keys for a client whose transactions are recorded; ``given`` holds those of the run."""
    return {
        "linger.ms": 1,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        "max.block.ms": 10_000,
        **given,
        "transactional.id": transactional_id,
        "bootstrap.servers": bootstrap,
    }


class Content(NamedTuple):
    """The content of a record beside its number."""

    partition: TopicPartition
    said: bytes = b""
    says: tuple[int, ...] = ()
    """The same as the history has it."""


@dataclass(slots=True)
class OpenTransaction:
    """The open transaction of a client."""

    begun_ms: float
    parts: list[MicroOperation] = field(default_factory=list)
    """Sends, their offsets not filled in, and polls, in the order in which they were begun."""
    deliveries: list[Delivery] = field(default_factory=list)
    """Of the sends, in their order; a send that was not handed over has none."""
    committing: bool = False
    rebalanced: bool = False
    """Whether partitions may have moved since the poll before that of this transaction."""

    @property
    def has_read(self) -> bool:
        """Returns whether a poll returned records."""
        return any(isinstance(part, Poll) for part in self.parts)


class TransactionRecorder:
    """Sends and ends transactions, and adds them to the history."""

    def __init__(self, recorder: Recorder) -> None:
        """``recorder`` gives out values and takes the operations."""
        self._recorder = recorder

    async def send(self, producer: Producer, transaction: OpenTransaction, content: Content) -> None:
        """Sends a new value; a send that fails is a part of the transaction too."""
        value = self._recorder.new_value(content.partition)
        payload = self._recorder.payload(value, content.said)
        transaction.parts.append(Send(content.partition, value, None, payload.digest, content.says))
        transaction.deliveries.append(await send_payload(producer, content.partition, payload))

    async def abort(self, process: int, producer: Producer, transaction: OpenTransaction, error: str) -> None:
        """Aborts: by choice, or because of an ``error``."""
        transaction.committing = False  # an abortable error says that it is not committed
        await persist(producer.abort_transaction)
        self.report(process, transaction, Status.FAIL if error else Status.OK, aborted=True, error=error)

    def report(
        self, process: int, transaction: OpenTransaction, status: Status, *, aborted: bool = False, error: str = ""
    ) -> None:
        """Adds the transaction, which has just ended; a committed one with the offsets of its sends."""
        parts: list[MicroOperation] = []
        deliveries = iter(transaction.deliveries)
        for part in transaction.parts:
            if isinstance(part, Poll):
                parts.append(part)
                continue
            delivery, offset = next(deliveries, None), None
            if status is Status.OK and not aborted and delivery is not None and delivery.is_done:
                found = delivery.result().offset
                offset = found if found >= 0 else None
            parts.append(part._replace(offset=offset))
        self._recorder.operation(
            process,
            Kind.TRANSACTION,
            status,
            transaction.begun_ms,
            *parts,
            aborted=aborted,
            rebalanced=transaction.rebalanced,
            error=error,
            leads=acknowledgements(transaction.deliveries),
        )

    def record_unfinished(self, process: int, transactions: Sequence[OpenTransaction], why: str) -> None:
        """Adds transactions that their client could not finish."""
        for transaction in transactions:
            status = Status.INFO if transaction.committing else Status.FAIL
            self.report(process, transaction, status, aborted=status is Status.FAIL, error=why)


async def persist(call: Callable[[], Awaitable[None]], gives_up: Callable[[], bool] = lambda: False) -> None:
    """Repeats a call of the transactional producer after each time-out, until it has an outcome.

    The errors of the call pass through; its time-out does so only if ``gives_up`` returns True."""
    while True:
        try:
            await call()
        except KafkaError as error:
            is_late = error.code is ErrorCode.REQUEST_TIMED_OUT and not isinstance(error, TransactionError)
            if not is_late or gives_up():
                raise
        else:
            return
