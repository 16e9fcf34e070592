"""The client with which a broker or a tool sends requests to the active controller.

A ``ControllerClient`` knows the voters and keeps one connection. It guesses the active controller and corrects the
guess after refusals (NOT_CONTROLLER), broken connections and hints of the metadata follower. Requests whose response
has a top-level error code are sent as they are; the others (CreateTopics ...) are sent in an Envelope (KIP-590), whose
own error code says whether the addressed controller is the active one.

If the connection breaks after a request was sent, the outcome of the request is unknown. The client repeats requests
that may be executed twice: reads, and the brokers' own requests, which carry epochs. It does not repeat a change of a
Kafka client: executed again after a later change of the same resource, it would undo the later change. The Kafka client
gets an error instead, since its change may still take effect. For the same reason, a connection that is left for
another controller stays open until such changes are answered: usually the answer is that this controller is not the
active one, and the change is then sent to the one that is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

from moldau.protocol.api import APIS, ApiKey
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_response, encode_request
from moldau.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from moldau.protocol.schema import Request, Response
from moldau.runtime.net.pending import PendingResponse
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.setup_times import SetupTimes
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.broker_side.reachability import named
from moldau_quorum.controller.dispatch import READS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from moldau.runtime.ports.environment import Environment

R = TypeVar("R", bound=Response)

ATTEMPT_TIMEOUT_MS: Final = 5_000
"""Default time that one controller may take to answer before the client tries another."""
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
"""Requests whose response has NOT_CONTROLLER as its top-level error code."""

READ_APIS: Final = frozenset((*READS, ApiKey.DESCRIBE_CLUSTER))
"""Requests that change nothing."""
REPEATABLE_APIS: Final = (DIRECT_APIS - {ApiKey.UNREGISTER_BROKER}) | READ_APIS
"""Requests that may be executed twice.

UnregisterBroker is not among them: a Kafka client sends it, and it names no broker epoch.

An AlterPartition names the partition epoch that it changes (KIP-497). If the first attempt took effect, the epoch is
above it, so the controller refuses the second one with INVALID_UPDATE_VERSION and changes nothing. The leader takes
that for an outdated view: it waits for the metadata, which holds the change of the first attempt.
"""

SLOW_APIS: Final = frozenset((ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER))
"""Requests that may take long. A connection answers in order, so each of these gets a connection of its own."""
SLOW_ATTEMPT_TIMEOUT_MS: Final = 65_000


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt with one controller."""

    scope: trio.CancelScope
    repeatable: bool
    connection: RpcConnection | None = None
    """The shared connection that the attempt waits on."""
    sent: bool = False
    """Whether the request was sent and no answer has said that it was not executed."""
    moved: bool = False
    """Whether the attempt was cancelled in favour of another controller."""

    def keeps(self, connection: RpcConnection) -> bool:
        """Returns whether closing the connection would lose a request that must not be repeated."""
        return self.connection is connection and self.sent and not self.repeatable


class ForwardedClient(NamedTuple):
    """The principal that sent a forwarded request."""

    principal: bytes
    """As in an Envelope, like ``address``."""
    address: bytes
    client_id: str | None = None
    version: int | None = None
    """The version in which the request is forwarded; None for the highest."""


class ControllerUnavailableError(TimeoutError):
    """No active controller answered in time. The request may or may not have been executed."""


def next_voter(voters: Mapping[int, tuple[str, int]], present: int) -> int:
    """Returns the voter to try after ``present``: the next higher id, then the lowest.

    ``present`` need not be a voter any more.
    """
    return min(voters, key=lambda node_id: (node_id <= present, node_id))


class ControllerClient:
    """Sends requests to the active controller, with discovery and retry.

    Use a client from one event loop; it handles many concurrent requests.
    """

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
        """Takes the voters: host and port by node id.

        ``connection_lost`` is called when an established connection breaks. ``connect`` replaces
        ``RpcConnection.open``, for example to log in or to use TLS.

        Raises:
            ValueError: ``voters`` is empty.
        """
        if not voters:
            raise ValueError("controller.quorum.voters is empty")
        self._environment = environment
        self._voters = dict(sorted(voters.items()))
        self._client_id = client_id
        self._connection_lost = connection_lost
        self._attempt_timeout_ms = attempt_timeout_ms
        self._open = connect or self._open_plain
        self._setup_times = SetupTimes(environment)
        self._target = environment.random.choice(list(self._voters))
        self._connection: RpcConnection | None = None
        self._under_way: dict[_Attempt, None] = {}  # in the order in which they began
        self._connecting = trio.Lock()
        self._established = Signal()
        self._log = EventLogger("moldau.controller-client", client=client_id)
        self._last_cause = ""  # why the last failed attempt failed, for error messages
        self.active_controller_id = -1
        """The controller that last answered as the active one; -1 if unknown."""

    def suggest(self, controller_id: int) -> None:
        """Makes a newly elected controller the target, and moves requests in progress to it.

        Call it once per election and never with the result of an older one; ``MetadataFollower`` ensures both.
        """
        if controller_id in self._voters and controller_id != self._target:
            self._move_to(controller_id)

    @property
    def voters(self) -> Mapping[int, tuple[str, int]]:
        """Host and port of the controllers, by id."""
        return self._voters

    def update_voters(self, voters: Mapping[int, tuple[str, int]]) -> None:
        """Replaces the set of controllers and leaves the connection to a removed one; ignores an empty set."""
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
        client: ForwardedClient | None = None,
        repeatable: bool = False,
    ) -> R:
        """Sends ``message`` to the active controller and returns its response, with or without error codes.

        ``client`` is the sender, for requests that are forwarded (KIP-590); None for this node's own. With
        ``repeatable`` the request may be executed twice, as requests of ``REPEATABLE_APIS`` always may.

        Raises:
            ControllerUnavailableError: no active controller answered within ``timeout_ms``, or the controller did not
                answer a request that must not be repeated.
        """
        repeatable = repeatable or message.__api_key__ in REPEATABLE_APIS
        deadline_ms = self._environment.clock.monotonic_ms() + timeout_ms
        backoff_ms = 0.0
        attempts = 0
        while True:
            remaining_ms = deadline_ms - self._environment.clock.monotonic_ms()
            if remaining_ms <= 0:
                raise ControllerUnavailableError(
                    f"no active controller answered {type(message).__name__} within {timeout_ms:.0f} ms "
                    f"(controllers {named(self._voters)}{self._last_cause})"
                )
            answer: R | None = None
            target = self._target
            is_slow = message.__api_key__ in SLOW_APIS
            attempt_ms = min(remaining_ms, SLOW_ATTEMPT_TIMEOUT_MS if is_slow else self._attempt_timeout_ms)
            attempt = _Attempt(trio.move_on_after(attempt_ms / 1000), repeatable)
            with self._waiting(attempt):
                ask = self._attempt_alone if is_slow else self._attempt
                answer = await ask(message, response_class, client, attempt)
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
            if target == self._target:  # else another request has already changed the target
                self._next_target()
            attempts += 1
            if attempts % len(self._voters) == 0:
                backoff_ms = min(max(RETRY_BACKOFF_MS, backoff_ms * 2), RETRY_BACKOFF_MS_MAX)
                jitter = 0.5 + self._environment.random.random()
                left_ms = max(0.0, deadline_ms - self._environment.clock.monotonic_ms())
                await trio.sleep(min(backoff_ms * jitter, left_ms) / 1000)

    def close(self) -> None:
        """Closes the connection.

        Requests in progress that may be repeated are sent again; the others fail with
        ``ControllerUnavailableError``.
        """
        connection, self._connection = self._connection, None
        for attempt in self._under_way:
            if attempt.connection is not None:
                attempt.connection.close()
        if connection is not None:
            connection.close()

    async def wait_disconnected(self) -> None:
        """Waits until a connection exists and then until it breaks or is left.

        The method notices a broken connection even while no request is in progress.
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
        """Registers an attempt and enters its scope; the last attempt on a connection that was left closes it."""
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
        self, message: Request, response_class: type[R], client: ForwardedClient | None, attempt: _Attempt
    ) -> R | None:
        """Makes one attempt with the present target; returns None if it is unreachable or not active."""
        connection: RpcConnection | None = None
        try:
            connection = attempt.connection = await self._connected()
            if message.__api_key__ in DIRECT_APIS and client is None:
                direct = await connection.request(message, timeout_ms=ATTEMPT_TIMEOUT_MS)
                if not isinstance(direct, response_class):
                    raise ConnectionError(f"{type(direct).__name__} instead of {response_class.__name__}")
                if getattr(direct, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
                    return None
                return direct
            return await self._forward(connection, message, response_class, client, attempt)
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            self._log.debug("controller-unreachable", controller=self._target, error=error)
            self._last_cause = f"; the last cause: controller {self._target}: {str(error) or type(error).__name__}"
            self._drop_connection(connection)
            return None

    async def _attempt_alone(
        self, message: Request, response_class: type[R], client: ForwardedClient | None, attempt: _Attempt
    ) -> R | None:
        """Makes one attempt on a connection of its own, so that it does not delay other answers."""
        host, port = self._voters[self._target]
        try:
            with self._setup_times.limited((host, port)):
                connection = await self._open(host, port)
            try:
                return await self._forward(
                    connection, message, response_class, client, attempt, SLOW_ATTEMPT_TIMEOUT_MS
                )
            finally:
                connection.close()
        except (OSError, trio.TooSlowError, ProtocolError, KafkaError) as error:
            self._log.debug("controller-unreachable", controller=self._target, error=error)
            self._last_cause = f"; the last cause: controller {self._target}: {str(error) or type(error).__name__}"
            return None

    async def _forward(
        self,
        connection: RpcConnection,
        message: Request,
        response_class: type[R],
        client: ForwardedClient | None,
        attempt: _Attempt,
        timeout_ms: float = ATTEMPT_TIMEOUT_MS,
    ) -> R | None:
        version = APIS[message.__api_key__].versions.last
        client_id: str | None = self._client_id
        if client is not None:
            version = version if client.version is None else client.version
            client_id = client.client_id
        frame = encode_request(message, version, 0, client_id)[4:]
        envelope = EnvelopeRequest(
            request_data=frame,
            request_principal=None if client is None else client.principal,
            client_host_address=b"" if client is None else client.address,
        )
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
        if message.__api_key__ in DIRECT_APIS and getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            attempt.sent = False
            return None
        return response

    async def _open_plain(self, host: str, port: int) -> RpcConnection:
        return await RpcConnection.open(self._environment, host, port, self._client_id)

    async def _connected(self) -> RpcConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.notice_end():
                target = self._target
                host, port = self._voters[target]
                with self._setup_times.limited((host, port)):
                    connection = await self._open(host, port)
                if target != self._target:
                    connection.close()
                    raise ConnectionError("the active controller changed meanwhile")
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
