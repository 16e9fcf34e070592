"""How a broker (or a tool) talks to the active controller, wherever it is.

A ``ControllerClient`` knows the voters and keeps one connection. It guesses the active controller, and learns better
from refusals (NOT_CONTROLLER), from broken connections and from hints of the metadata follower. Requests that carry
their error code at the top go out as they are; the others (CreateTopics ...) travel in an Envelope (KIP-590), whose
own error code says whether the addressed controller is the active one.

What becomes of a request whose connection broke after it was sent is unknown. Those that may be executed twice are sent
again: questions, and the brokers' own requests, which carry epochs. A client's change is not: executed once more behind
a later change of the same thing, it would undo that one. The client is told that its change may still take effect.
Therefore a connection that is left for another controller stays open until such changes are answered: most of the time
the answer is that this controller is not the active one, and the change goes on to the one that is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.schema import Request, Response
from moldau.runtime.log import EventLogger
from moldau.runtime.rpc import PendingResponse, RpcConnection
from moldau.runtime.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from moldau.runtime.environment import Environment

R = TypeVar("R", bound=Response)

CONNECT_TIMEOUT_MS: Final = 1_000
ATTEMPT_TIMEOUT_MS: Final = 5_000
"""How long one controller may take to answer before another is tried, unless the client is told otherwise."""
RETRY_BACKOFF_MS: Final = 20
RETRY_BACKOFF_MS_MAX: Final = 500

DIRECT_APIS: Final = frozenset(
    (
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALTER_PARTITION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.DESCRIBE_QUORUM,
    )
)
"""Requests whose response carries NOT_CONTROLLER at the top."""


QUESTION_APIS: Final = frozenset(
    (
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
    )
)
"""Requests that change nothing."""
REPEATABLE_APIS: Final = DIRECT_APIS | QUESTION_APIS
"""Requests that do no harm when they are executed twice."""

SLOW_APIS: Final = frozenset((ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER))
"""Requests that may take long by right. Answers leave a connection in order, so these get connections of their own."""
SLOW_ATTEMPT_TIMEOUT_MS: Final = 65_000


@dataclass(slots=True, eq=False)
class _Attempt:
    """One try with one controller."""

    scope: trio.CancelScope
    repeatable: bool
    connection: RpcConnection | None = None
    """The shared one that it waits on."""
    sent: bool = False
    """The request went out, and no answer has told that it was not executed."""
    moved: bool = False
    """It was given up for another controller."""

    def keeps(self, connection: RpcConnection) -> bool:
        """Whether its request would be lost with the connection."""
        return self.connection is connection and self.sent and not self.repeatable


class ControllerUnavailableError(TimeoutError):
    """No active controller answered in time. Whether the request was executed is unknown."""


def parse_voters(entries: Iterable[str]) -> dict[int, tuple[str, int]]:
    """Parses ``controller.quorum.voters``: entries ``id@host:port``.

    Raises:
        ValueError: an entry is malformed, or an id appears twice.
    """
    voters: dict[int, tuple[str, int]] = {}
    for entry in entries:
        identifier, at, address = entry.strip().partition("@")
        host, colon, port = address.rpartition(":")
        if not (at and colon and host and identifier.isdecimal() and port.isdecimal()):
            raise ValueError(f"controller.quorum.voters: {entry!r} is not of the form id@host:port")
        if int(identifier) in voters:
            raise ValueError(f"controller.quorum.voters: node {identifier} is listed twice")
        if not 0 < int(port) < 65536:
            raise ValueError(f"controller.quorum.voters: port {port} of node {identifier} is outside 1..65535")
        voters[int(identifier)] = (host.strip("[]"), int(port))
    return voters


def next_voter(voters: Mapping[int, tuple[str, int]], present: int) -> int:
    """The voter to try after ``present``, which may have left: the next higher id, around the end."""
    return min(voters, key=lambda node_id: (node_id <= present, node_id))


class ControllerClient:
    """Requests to the active controller, with discovery and retry. Use from one event loop; many requests at a time."""

    def __init__(
        self,
        environment: Environment,
        voters: Mapping[int, tuple[str, int]],
        *,
        client_id: str,
        connection_lost: Callable[[], None] | None = None,
        connect: Callable[[str, int], Awaitable[RpcConnection]] | None = None,
        attempt_timeout_ms: float = ATTEMPT_TIMEOUT_MS,
    ) -> None:
        """``voters`` maps node ids to host and port. ``connection_lost`` is called when an established connection
        breaks.

        ``connect`` replaces ``RpcConnection.open``, for example to log in or to speak TLS.
        """
        if not voters:
            raise ValueError("controller.quorum.voters is empty")
        self._environment = environment
        self._voters = dict(sorted(voters.items()))
        self._client_id = client_id
        self._connection_lost = connection_lost
        self._attempt_timeout_ms = attempt_timeout_ms
        self._open = connect or self._open_plain
        self._target = environment.random.choice(list(self._voters))
        self._connection: RpcConnection | None = None
        self._under_way: dict[_Attempt, None] = {}  # in the order in which they began
        self._connecting = trio.Lock()
        self._established = Signal()
        self._log = EventLogger("moldau.controller-client", client=client_id)
        self.active_controller_id = -1
        """The controller that answered last as the active one; -1 when unknown."""

    def suggest(self, controller_id: int) -> None:
        """News of a newly elected active controller; requests under way elsewhere are moved to it.

        Call it once per election, not with old knowledge: ``MetadataFollower`` sees to that.
        """
        if controller_id in self._voters and controller_id != self._target:
            self._move_to(controller_id)

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        """Host and port of the controllers, by id."""
        return self._voters

    def update_voters(self, voters: Mapping[int, tuple[str, int]]) -> None:
        """Takes over a new set of controllers; an empty one is ignored. A connection to one that left is dropped."""
        if not voters or dict(voters) == self._voters:
            return
        self._voters = dict(sorted(voters.items()))
        if self._target not in self._voters:
            self._move_to(next(iter(self._voters)))

    async def request(
        self,
        message: Request,
        response_class: type[R],
        *,
        timeout_ms: float,
        principal: bytes | None = None,
        repeatable: bool = False,
    ) -> R:
        """Sends ``message`` to the active controller and returns its answer, whatever error codes are in it.

        ``principal`` and the client's name travel with forwarded requests (KIP-590). With ``repeatable`` the request
        may be executed twice, as those of ``REPEATABLE_APIS`` always may.

        Raises:
            ControllerUnavailableError: no active controller answered within ``timeout_ms``, or one was sent a request
                that must not be repeated and did not answer.
        """
        repeatable = repeatable or message.__api_key__ in REPEATABLE_APIS
        deadline_ms = self._environment.clock.monotonic_ms() + timeout_ms
        backoff_ms = 0.0
        attempts = 0
        while True:
            remaining_ms = deadline_ms - self._environment.clock.monotonic_ms()
            if remaining_ms <= 0:
                raise ControllerUnavailableError(
                    f"no active controller answered {type(message).__name__} within {timeout_ms:.0f} ms"
                )
            answer: R | None = None
            target = self._target
            is_slow = message.__api_key__ in SLOW_APIS
            attempt_ms = min(remaining_ms, SLOW_ATTEMPT_TIMEOUT_MS if is_slow else self._attempt_timeout_ms)
            attempt = _Attempt(trio.move_on_after(attempt_ms / 1000), repeatable)
            with self._waiting(attempt):
                ask = self._attempt_alone if is_slow else self._attempt
                answer = await ask(message, response_class, principal, attempt)
            if answer is not None:
                if target == self._target:
                    self.active_controller_id = target
                return answer
            if attempt.scope.cancelled_caught and not attempt.moved:
                self._log.warning("controller-slow", controller=target, request=type(message).__name__)
            if attempt.sent and not repeatable:
                raise ControllerUnavailableError(
                    f"controller {target} did not answer {type(message).__name__}, which may still take effect"
                )
            if target == self._target:  # else another request has moved on already
                self._next_target()
            attempts += 1
            if attempts % len(self._voters) == 0:
                backoff_ms = min(max(RETRY_BACKOFF_MS, backoff_ms * 2), RETRY_BACKOFF_MS_MAX)
                jitter = 0.5 + self._environment.random.random()
                await trio.sleep(min(backoff_ms * jitter, max(0.0, remaining_ms)) / 1000)

    def close(self) -> None:
        """Drops the connection. Requests under way that may be sent again are, the others are told that nobody knows
        what became of them.
        """
        connection, self._connection = self._connection, None
        for attempt in self._under_way:
            if attempt.connection is not None:
                attempt.connection.close()
        if connection is not None:
            connection.close()

    async def wait_disconnected(self) -> None:
        """Waits until there is a connection, and it has broken or was left; notices that while no request is under way,
        too.
        """
        await self._established.wait_until(lambda: self._connection is not None)
        connection = self._connection
        assert connection is not None
        never: PendingResponse[None] = PendingResponse(connection, -1, lambda _: None)
        with (
            self._waiting(_Attempt(trio.CancelScope(), repeatable=True, connection=connection)),
            contextlib.suppress(ConnectionError),
        ):
            await connection.drive(never)
        if connection is self._connection:
            self._drop_connection(connection)

    @contextlib.contextmanager
    def _waiting(self, attempt: _Attempt) -> Iterator[None]:
        """Until the attempt ends, in its scope; the last that waits on a connection that was left closes it."""
        self._under_way[attempt] = None
        try:
            with attempt.scope:
                yield
        finally:
            del self._under_way[attempt]
            connection = attempt.connection
            if connection not in (None, self._connection) and not self._is_kept(connection):
                connection.close()

    def _is_kept(self, connection: RpcConnection) -> bool:
        return any(attempt.keeps(connection) for attempt in self._under_way)

    async def _attempt(
        self, message: Request, response_class: type[R], principal: bytes | None, attempt: _Attempt
    ) -> R | None:
        """One try with the present target; None when it is not there or not active."""
        connection: RpcConnection | None = None
        try:
            connection = attempt.connection = await self._connected()
            if message.__api_key__ in DIRECT_APIS:
                direct = await connection.request(message, timeout_ms=ATTEMPT_TIMEOUT_MS)
                if not isinstance(direct, response_class):
                    raise ConnectionError(f"{type(direct).__name__} instead of {response_class.__name__}")
                if getattr(direct, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
                    return None
                return direct
            return await self._forward(connection, message, response_class, principal, attempt)
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            self._log.debug("controller-unreachable", controller=self._target, error=error)
            self._drop_connection(connection)
            return None

    async def _attempt_alone(
        self, message: Request, response_class: type[R], principal: bytes | None, attempt: _Attempt
    ) -> R | None:
        """Like ``_attempt``, on a connection of its own, which delays nobody's answer."""
        host, port = self._voters[self._target]
        try:
            with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                connection = await self._open(host, port)
            try:
                return await self._forward(
                    connection, message, response_class, principal, attempt, SLOW_ATTEMPT_TIMEOUT_MS
                )
            finally:
                connection.close()
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            self._log.debug("controller-unreachable", controller=self._target, error=error)
            return None

    async def _forward(
        self,
        connection: RpcConnection,
        message: Request,
        response_class: type[R],
        principal: bytes | None,
        attempt: _Attempt,
        timeout_ms: float = ATTEMPT_TIMEOUT_MS,
    ) -> R | None:
        version = APIS[message.__api_key__].versions.last
        frame = encode_request(message, version, 0, self._client_id)[4:]
        envelope = EnvelopeRequest(request_data=frame, request_principal=principal, client_host_address=b"")
        attempt.sent = True
        answer = await connection.request(envelope, timeout_ms=timeout_ms)
        if not isinstance(answer, EnvelopeResponse):
            raise ConnectionError(f"{type(answer).__name__} instead of EnvelopeResponse")
        if answer.error_code != ErrorCode.NONE or answer.response_data is None:
            if answer.error_code != ErrorCode.NOT_CONTROLLER:
                self._log.warning("forwarding-refused", controller=self._target, error=answer.error_code)
            attempt.sent = False
            return None
        _, response = decode_response(response_class, version, memoryview(answer.response_data)[4:])
        return response

    async def _open_plain(self, host: str, port: int) -> RpcConnection:
        return await RpcConnection.open(self._environment, host, port, self._client_id)

    async def _connected(self) -> RpcConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.notice_end():
                target = self._target
                host, port = self._voters[target]
                with trio.fail_after(CONNECT_TIMEOUT_MS / 1000):
                    connection = await self._open(host, port)
                if target != self._target:
                    connection.close()
                    raise ConnectionError("the active controller moved meanwhile")
                self._connection = connection
                self._established.notify()
            return self._connection

    def _drop_connection(self, connection: RpcConnection | None) -> None:
        if connection is None:
            return
        connection.close()
        if connection is self._connection:
            self._connection = None
            self.active_controller_id = -1
            if self._connection_lost is not None:
                self._connection_lost()

    def _next_target(self) -> None:
        self._move_to(next_voter(self._voters, self._target))

    def _move_to(self, controller_id: int) -> None:
        self._target = controller_id
        self.active_controller_id = -1
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if not self._is_kept(connection):
            connection.close()
            return
        for attempt in self._under_way:
            if attempt.connection is connection and attempt.repeatable:
                attempt.moved = True
                attempt.scope.cancel()
