"""Goal: idempotent producers get an id, and a request that contradicts itself is refused.

Method: the handler, with a source of ids that counts.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.init_producer_id import InitProducerIdRequest
from moldau_broker.server.handlers.producers import handle_init_producer_id


class Ids:
    """Gives 7 to all."""

    async def take(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (-1, -1, ErrorCode.NONE),
        (5, 0, ErrorCode.NONE),
        (5, -1, ErrorCode.INVALID_REQUEST),
        (-1, 0, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_producer_names_id_and_epoch_or_neither(producer_id, epoch, code):
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=1_000, producer_id=producer_id, producer_epoch=epoch
    )
    call = SimpleNamespace(version=4)
    answer = trio.run(handle_init_producer_id, SimpleNamespace(producer_ids=Ids()), request, call)
    assert (answer.error_code, answer.producer_id) == (code, 7 if code is ErrorCode.NONE else -1)
