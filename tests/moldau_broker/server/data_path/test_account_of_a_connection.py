"""Goal: a connection knows which of its requests wait, and how long its client must pause.

Method: the handler of a connection, and what makes its answers, over stand-ins.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.fetch import FetchRequest
from moldau.protocol.messages.metadata import MetadataResponse
from moldau.runtime.net.serving.answers import CloseConnection
from moldau.values import LeaderEpoch, Offset
from moldau_broker.replication.fetch_session import FetchContext
from moldau_broker.server.data_path.connection import VERIFYING_MAX, BrokerConnection, CheckedProduce
from moldau_broker.server.data_path.fetch import FetchOperation
from moldau_broker.server.data_path.handler_answers import Exchange
from moldau_broker.server.data_path.produce import VerifiedProduce
from moldau_broker.server.data_path.record_checks import RequestChecks
from moldau_broker.server.remote_reading.reads import ReadKey, RemoteRead
from moldau_broker.server.replicas.delayed import Operation, ProduceOperation, ProduceWait
from moldau_broker.server.replicas.replica_waits import ReplicaWaits
from support.cluster.broker_cluster import frame

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


def test_a_closed_connection_leaves_nothing_that_waits() -> None:
    """Else thousands of connections that come and go fill the purgatories, which refuse the requests of others then."""
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    waits = ReplicaWaits(clock, 10, lambda _: 0)
    handler = handler_of()
    context: Any = handler._services.context
    context.replicas = SimpleNamespace(waits=waits)
    context.share_partitions = SimpleNamespace(connection_closed=lambda _: None)
    services: Any = handler._services
    services.quotas, services.listener_name = SimpleNamespace(forget=lambda _: None), "PLAINTEXT"
    for waiters in (waits.produces, waits.settles):
        produce = ProduceOperation({UNUSED: ProduceWait(LeaderEpoch(1), Offset(5), 0)}, lambda _: ())
        produce.delayed, produce.waiters = waiters.watch(produce, (UNUSED,), 30_000), waiters
        handler._remember(produce)
    fetch = FetchOperation(UNUSED, UNUSED, FetchContext(), None, None)
    fetch.delayed = waits.fetches.watch(fetch, (UNUSED,), 30_000)
    read = RemoteRead(ReadKey(UNUSED, 1, 0, False), 100)
    fetch.wait_for([read])
    handler._remember(fetch)
    purgatories = [each.purgatory for each in (waits.produces, waits.settles, waits.fetches)]
    assert [len(each) for each in purgatories] == [1, 1, 1]
    handler.closed()
    assert [len(each) for each in purgatories] == [0, 0, 0]
    assert not read._waiters, "the store may take minutes"


def test_another_login_has_its_own_rights() -> None:
    """A peer may log in again on its connection; all requests from then on are judged by what it is now."""
    made: list[Any] = []

    def permissions(identity: Any) -> Any:
        made.append(SimpleNamespace(identity=identity, acls=acls, basis=object(), api=None, refresh=lambda: None))
        return made[-1]

    acls = object()
    first, second = SimpleNamespace(name="a"), SimpleNamespace(name="a")
    handler = handler_of()
    services, bases = handler._services, list[Any]()
    error = FetchContext(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    services.context.authorizer = SimpleNamespace(permissions=permissions)
    services.context.metadata = SimpleNamespace(image=SimpleNamespace(acls=acls))
    services.context.environment = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0))
    services.context.sessions = SimpleNamespace(
        open=lambda *_, **fields: bases.append(fields["basis"]) or error, ended=()
    )
    services.fetch = SimpleNamespace(max_bytes=1, encode_error=lambda *_: ())
    fetch = memoryview(frame(FetchRequest(max_wait_ms=0, session_id=7, session_epoch=1), VERSION)[4:])
    for identity, count in ((first, 1), (first, 1), (second, 2), (second, 2), (first, 3)):
        handler._peer = SimpleNamespace(identity=identity)
        handler._fetch(fetch, VERSION, None)
        assert handler._rights() is made[-1]
        assert (len(made), bases[-1]) == (count, made[-1].basis)


@pytest.mark.parametrize("replica_id", [-1, 2])
def test_only_fetches_of_followers_pay_nothing(replica_id: int) -> None:
    """Replication has throttles of its own (KIP-73); a follower that pauses would leave the in-sync replicas."""
    handler, paid, waived = handler_of(), list[Any](), list[bool]()
    services = handler._services
    image = SimpleNamespace(acls=None, brokers={2: SimpleNamespace(broker_epoch=-1)})
    services.listener_name, services.context.broker_id = "PLAINTEXT", 1
    services.context.metadata = SimpleNamespace(image=image, inter_broker_listener="PLAINTEXT")
    services.context.environment = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 0.0))
    services.context.sessions = SimpleNamespace(open=lambda *_, **__: FetchContext(), ended=())
    services.fetch = SimpleNamespace(max_bytes=1, start=lambda *arguments: paid.append(arguments[4]) or ((), None))
    toll: Any = SimpleNamespace(waive=lambda: waived.append(True), fetch_bytes_max=None)
    asked = FetchRequest(replica_id=replica_id, max_wait_ms=0, session_id=7, session_epoch=1)
    handler._peer = SimpleNamespace(identity=None)
    handler._fetch(memoryview(frame(asked, VERSION)[4:]), VERSION, toll)
    assert (paid, waived) == (([toll], []) if replica_id < 0 else ([None], [True]))


def test_a_request_pays_once_however_its_records_are_checked() -> None:
    """One whose checks take long is handled twice: to find that out, and after the checks. Its pause stays the same."""
    paid, pauses, checks = list[int](), list[int](), RequestChecks({}, 0)

    def handle(*_: object, **options: Any) -> Any:
        pauses.append(options["throttle_time_ms"])
        return (checks if takes_long and options["checks"] is None else ()), None

    toll: Any = SimpleNamespace(due=paid.append, throttle_time_ms=7, resumed=lambda: None, ended=lambda: None)
    handler, produced = handler_of(SimpleNamespace(handle=handle)), memoryview(bytes(20))
    for takes_long in (False, True):
        answer = handler.produce(produced, VERSION, None, toll)
        assert isinstance(answer, CheckedProduce) is takes_long
        assert paid == [20]
        assert (answer.handle() if isinstance(answer, CheckedProduce) else answer) == ()
        assert (paid, set(pauses)) == ([20], {7})
        paid.clear()
