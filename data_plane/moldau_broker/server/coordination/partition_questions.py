"""Questions of a partition leader about transactions, in one AddPartitionsToTxn for each coordinator at a time.

Many producers may begin transactions at once. While a request to a coordinator is in flight, further questions to the
same broker wait and then leave together (KIP-890). No task of its own is needed: the first waiting question sends for
all, and the next one takes over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTransaction
    from moldau.protocol.schema import Response
    from moldau.values import BrokerId

    Codes = dict[tuple[str, int], ErrorCode]
    Send = Callable[[BrokerId, AddPartitionsToTxnRequest], Awaitable[Response]]

TRANSACTIONS_MAX = 500
"""Transactions of one request."""
WAITING_MAX = 10_000
"""Questions that wait for one broker; a client retries further ones. Connections bound their held requests, too."""
TRANSPORT_FAILURES = (OSError, trio.TooSlowError, KafkaError, DecodeError)


@dataclass(slots=True, eq=False)
class _Question:
    """One transaction that a request asks about. Invariant: ``codes`` is set once."""

    transaction: AddPartitionsToTxnTransaction
    codes: Codes | None = None

    def fail(self, code: ErrorCode) -> None:
        topics = self.transaction.topics
        self.codes = {(topic.name, index): code for topic in topics for index in topic.partitions}


class PartitionQuestions:
    """Asks coordinators about partitions of transactions, at most one request to each broker at a time."""

    def __init__(self, send: Send) -> None:
        """``send`` sends a request to the coordinator of a broker and returns the response."""
        self._send = send
        self._waiting: dict[BrokerId, list[_Question]] = {}
        self._turns: dict[BrokerId, trio.Lock] = {}

    async def ask(self, broker_id: BrokerId, transaction: AddPartitionsToTxnTransaction) -> Codes:
        """Asks about one transaction; returns a code for each of its partitions.

        Every code is NETWORK_EXCEPTION if no coordinator answered.
        """
        question = _Question(transaction)
        waiting = self._waiting.setdefault(broker_id, [])
        if len(waiting) >= WAITING_MAX:
            question.fail(ErrorCode.NETWORK_EXCEPTION)
            assert question.codes is not None
            return question.codes
        waiting.append(question)
        try:
            async with self._turns.setdefault(broker_id, trio.Lock()):
                while question.codes is None:
                    await self._send_waiting(broker_id, waiting)
        finally:
            if question in waiting:
                waiting.remove(question)
        return question.codes

    async def _send_waiting(self, broker_id: BrokerId, waiting: list[_Question]) -> None:
        """Sends the waiting questions, each transactional id once, and sets their answers."""
        taken: dict[str, _Question] = {}
        for question in waiting:
            if len(taken) < TRANSACTIONS_MAX:
                taken.setdefault(question.transaction.transactional_id, question)
        request = AddPartitionsToTxnRequest(transactions=[question.transaction for question in taken.values()])
        try:
            response = await self._send(broker_id, request)
        except TRANSPORT_FAILURES:
            for question in taken.values():
                question.fail(ErrorCode.NETWORK_EXCEPTION)
        else:
            assert isinstance(response, AddPartitionsToTxnResponse)
            _set_answers(taken, response)
        for question in taken.values():
            if question in waiting:  # its task may have been cancelled meanwhile
                waiting.remove(question)


def _set_answers(taken: dict[str, _Question], response: AddPartitionsToTxnResponse) -> None:
    """Gives each question its codes; a partition without an answer counts as unanswered."""
    for question in taken.values():
        question.fail(ErrorCode.NETWORK_EXCEPTION if not response.error_code else ErrorCode.of(response.error_code))
    for result in response.results_by_transaction:
        asked = taken.get(result.transactional_id)
        if asked is None or asked.codes is None:
            continue
        for topic in result.topic_results:
            for partition in topic.results_by_partition:
                key = (topic.name, partition.partition_index)
                if key in asked.codes:
                    asked.codes[key] = ErrorCode.of(partition.partition_error_code)
