"""Goal: a connection knows which of its requests wait, and how long its client must pause.

Method: the handler of a connection, and what makes its answers, over stand-ins.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.messages.metadata import MetadataResponse
from moldau.runtime.net.serving.answers import CloseConnection
from moldau_broker.server.data_path.connection import VERIFYING_MAX, BrokerConnection
from moldau_broker.server.data_path.handler_answers import Exchange
from moldau_broker.server.data_path.produce import VerifiedProduce
from moldau_broker.server.replicas.delayed import Operation

VERSION = 12
UNUSED: Any = None


def handler_of(produce: Any = None) -> BrokerConnection:
    services: Any = SimpleNamespace(quotas=None, context=SimpleNamespace(authorizer=None), produce=produce)
    connection: Any = SimpleNamespace(peer_address=("client", 1))
    return BrokerConnection(services, connection, UNUSED)


@pytest.mark.parametrize("period", [1, 2, 3, 50])
def test_what_waits_is_remembered_and_what_has_ended_is_not(period: int) -> None:
    """The end of the connection abandons what waits; what has ended must not fill the memory."""
    handler, waiting = handler_of(), []
    for number in range(500):
        operation = Operation()
        handler._remember(operation)
        if number % period:
            waiting.append(operation)
        else:
            operation.finish()
        assert all(each in handler._waiting for each in waiting)
        assert len(handler._waiting) <= len(waiting) + 64


def test_requests_that_are_verified_make_room_for_others() -> None:
    """Only those that wait at the same time are bounded; behind one that waits, the next ones must wait too."""
    waits: list[bool] = []

    def handle(*_: object, **options: Any) -> Any:
        waits.append(options["is_verifying"])
        return VerifiedProduce(UNUSED, b"", 0, VERSION, 1, None, 0), None

    handler = handler_of(SimpleNamespace(handle=handle))
    frame = memoryview(bytes(20))

    def produce() -> Any:
        return handler.produce(frame, VERSION, None, None)

    for _ in range(3 * VERIFYING_MAX):
        produce().on_done()
    assert not any(waits)
    waits.clear()
    first, *_ = [produce() for _ in range(VERIFYING_MAX)]
    assert waits == [False] + [True] * (VERIFYING_MAX - 1)
    with pytest.raises(CloseConnection):
        produce()
    first.on_done()
    produce()


def test_an_answer_names_the_longest_pause() -> None:
    """A controller may have throttled a forwarded request; a client that obeys the field pauses long enough."""
    for announced_ms, pause_ms in product((0, 50, 300), (None, 0, 100)):
        paused: list[int] = []
        quotas: Any = SimpleNamespace(pause=lambda _, pause_ms, paused=paused: paused.append(pause_ms))
        toll: Any = None if pause_ms is None else SimpleNamespace(due=lambda pause_ms=pause_ms, **_: pause_ms)
        exchange = Exchange(api=UNUSED, call=UNUSED, body=b"", quotas=quotas, throttle=UNUSED, toll=toll)
        response = MetadataResponse(throttle_time_ms=announced_ms)
        exchange.settle(response)
        assert response.throttle_time_ms == max(announced_ms, pause_ms or 0)
        assert paused == [announced_ms] * (announced_ms > 0)
