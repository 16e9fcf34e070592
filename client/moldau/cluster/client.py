"""Connections to the brokers of a cluster, and the picture of it kept up to date: the shell under every client.

Theory of operation: one ``ClusterClient`` serves one producer, consumer or admin client. It holds at most two
connections for each broker (ordinary requests, and a second one for requests that the broker makes wait, so that a
long poll holds up nothing else), opened on demand and again after a back-off. A background task refreshes metadata
when it is asked to or when it is too old; whoever needs a change waits for ``changed``. Which broker to ask is drawn
among those known; where none answers, the bootstrap servers are asked again. A question that a node leaves without an
answer is put to the next one meanwhile: one process that hangs does not hold up a client that works with others.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, ClusterPicture
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.config import addresses
from moldau.runtime.log import EventLogger
from moldau.runtime.rpc import RpcConnection
from moldau.runtime.supervision import BackoffPolicy, TaskHost
from moldau.runtime.sync import Signal
from moldau.runtime.tls_context import client_environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config
    from moldau.runtime.environment import Environment

R = TypeVar("R", bound=Response)

TRANSPORT_ERRORS = (OSError, trio.TooSlowError, ProtocolError)
"""What a request raises when its connection, not its content, is at fault."""

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
METADATA_RETRY_MS = 100.0

PATIENCE_MS = 1_000.0
"""A question without an answer for so long is put to the next node too."""


class _Link:
    """One connection slot of a broker. Invariant: at most one task opens it at a time."""

    __slots__ = ("connection", "failures", "lock", "opening", "retry_at_ms", "silent_until_ms", "used_at_ms")

    def __init__(self) -> None:
        self.connection: RpcConnection | None = None
        self.lock = trio.Lock()
        self.opening = False
        self.failures = 0
        self.retry_at_ms = -math.inf
        self.silent_until_ms = -math.inf  # it has not answered in good time, or what it knows is in doubt
        self.used_at_ms = -math.inf


class ClusterClient:
    """Connections and metadata of one client. ``run`` must run in a nursery of the owner while it is used."""

    def __init__(self, environment: Environment, config: Config, kind: str) -> None:
        self.environment = environment
        self.config = config
        self.picture = ClusterPicture()
        self.changed = Signal()  # metadata came in, a connection opened or died
        self.client_id = config.get_str("client.id") or f"moldau-{kind}"
        self.logger = EventLogger("moldau.client", client=self.client_id)
        self._bootstrap = addresses(config, "bootstrap.servers")
        # Each client has an order of its own: a server that swallows what it is sent must not delay all of a list.
        self._bootstrap_nodes = [-1 - index for index in range(len(self._bootstrap))]
        environment.random.shuffle(self._bootstrap_nodes)
        self._links: dict[tuple[int, str], _Link] = {}
        self._request_timeout_ms = config.get_int("request.timeout.ms")
        self._setup_timeout_ms = config.get_int("socket.connection.setup.timeout.ms")
        self._max_age_ms = config.get_int("metadata.max.age.ms")
        self._reconnect = BackoffPolicy(
            initial_ms=config.get_int("reconnect.backoff.ms"), max_ms=config.get_int("reconnect.backoff.max.ms")
        )
        self.retry = BackoffPolicy(
            initial_ms=config.get_int("retry.backoff.ms"), max_ms=config.get_int("retry.backoff.max.ms")
        )
        self._topics: dict[str, None] = {}
        self._wants_all_topics = False
        self.allow_auto_create = False
        self._wanted = trio.Event()
        self._refreshed_at_ms = -math.inf
        self._answered_by: int | None = None  # the last question for metadata
        self._last_error: BaseException | None = None
        self._tasks = TaskHost()
        self._closed = False
        self._outgoing = client_environment(environment, config)
        self._idle_ms = config.get_int("connections.max.idle.ms")

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps metadata fresh until cancelled; closes all connections at the end."""
        try:
            async with self._tasks.running():
                self._tasks.start(self._close_idle_forever)
                task_status.started()
                await self._refresh_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Closes every connection; idempotent. What was sent is left to the transport."""
        self._closed = True
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close(keeps_sent=True)
        self._links.clear()
        self.changed.notify()

    @property
    def now_ms(self) -> float:
        return self.environment.clock.monotonic_ms()

    @property
    def is_closed(self) -> bool:
        """Whether this end closed the connections: errors that follow are no news."""
        return self._closed

    @property
    def request_timeout_ms(self) -> int:
        return self._request_timeout_ms

    # --- connections

    def _address(self, node_id: int) -> tuple[str, int] | None:
        if node_id < 0:
            index = -1 - node_id
            return self._bootstrap[index] if index < len(self._bootstrap) else None
        broker = self.picture.brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)

    def _link(self, node_id: int, purpose: str) -> _Link:
        return self._links.setdefault((node_id, purpose), _Link())

    async def connection(self, node_id: int, purpose: str = "") -> RpcConnection:
        """Returns an open connection to a broker, opening one if need be (waits out a back-off first).

        Raises ``OSError``, ``trio.TooSlowError`` or ``KafkaError`` when it cannot be opened.
        """
        link = self._link(node_id, purpose)
        link.used_at_ms = self.now_ms
        current = link.connection
        if current is not None and current.is_open:
            return current
        async with link.lock:
            current = link.connection
            if current is not None and current.is_open:
                return current
            wait_ms = link.retry_at_ms - self.now_ms
            if wait_ms > 0:
                await trio.sleep(wait_ms / 1000)
            return await self._open(node_id, link)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionError("the client is closed")

    async def _open(self, node_id: int, link: _Link) -> RpcConnection:
        address = self._address(node_id)
        if address is None:
            raise ConnectionError(f"broker {node_id} is not known")
        self._check_open()
        link.opening = True
        try:
            connection = await RpcConnection.open(
                self._outgoing,
                address[0],
                address[1],
                self.client_id,
                timeout_ms=self._setup_timeout_ms,
            )
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            link.failures += 1
            link.retry_at_ms = self.now_ms + self._reconnect.delay_ms(link.failures, self.environment.random)
            self._last_error = error
            self.logger.info("connection_failed", host=address[0], port=address[1], error=error)
            self.changed.notify()  # whoever waits for this attempt waits for the back-off now
            raise
        finally:
            link.opening = False
        try:
            self._check_open()
        except ConnectionError:
            connection.close()
            raise
        link.failures = 0
        link.retry_at_ms = -math.inf
        link.connection = connection
        self.changed.notify()
        return connection

    def connection_nowait(self, node_id: int, purpose: str = "") -> RpcConnection | None:
        """Returns an open connection, or None after having started to open one where the back-off allows it."""
        link = self._link(node_id, purpose)
        link.used_at_ms = self.now_ms
        if link.connection is not None:
            if link.connection.is_open:
                return link.connection
            link.connection = None
            # A connection that just died is tried again after the first back-off.
            link.retry_at_ms = max(link.retry_at_ms, self.now_ms + self._reconnect.initial_ms)
        if not link.opening and self._tasks.accepts and self.now_ms >= link.retry_at_ms and not self._closed:
            link.opening = True
            self._tasks.start(self._open_quietly, node_id, link)
        return None

    def retry_delay_ms(self, node_id: int, purpose: str = "") -> float:
        """Returns how long ``connection_nowait`` will not try to open anything.

        Infinite while a connection is being opened: ``changed`` tells when that is over.
        """
        link = self._link(node_id, purpose)
        return math.inf if link.opening else max(link.retry_at_ms - self.now_ms, 0.0)

    async def _open_quietly(self, node_id: int, link: _Link) -> None:
        try:
            async with link.lock:
                if link.connection is None or not link.connection.is_open:
                    await self._open(node_id, link)
        except (*TRANSPORT_ERRORS, KafkaError):
            # A broker of unknown address was not even tried; it needs a pause like any other.
            link.retry_at_ms = max(link.retry_at_ms, self.now_ms + self._reconnect.initial_ms)
            # Leadership may have moved away from a broker that cannot be reached.
            self.request_update()
            link.opening = False
            self.changed.notify()

    async def _close_idle_forever(self) -> None:
        """Closes connections that were not used for ``connections.max.idle.ms``."""
        while self._idle_ms > 0:
            await trio.sleep(max(self._idle_ms / 4, 1000) / 1000)
            for link in self._links.values():
                connection = link.connection
                is_idle = self.now_ms - link.used_at_ms > self._idle_ms
                if connection is not None and is_idle and not connection.in_flight:
                    connection.close()
                    link.connection = None

    # --- requests

    async def request(
        self,
        node_id: int,
        response_class: type[R],
        message: Request,
        *,
        version: int | None = None,
        timeout_ms: float | None = None,
        purpose: str = "",
    ) -> R:
        """Sends a request to a broker. Raises what ``TRANSPORT_ERRORS`` names, and ``KafkaError`` (unsupported API)."""
        connection = await self.connection(node_id, purpose)
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        return await connection.request_as(response_class, message, version, limit_ms)

    def candidates(self) -> list[int]:
        """Returns the nodes that may answer any request: brokers with an open connection first, bootstrap servers
        last; of either, those that could not be reached last time or owe an answer come after the others.
        """
        brokers = sorted(self.picture.brokers)
        self.environment.random.shuffle(brokers)
        now_ms = self.now_ms

        def rank(node_id: int) -> int:
            link = self._links.get((node_id, ""))
            if link is None:
                return 1
            if link.silent_until_ms > now_ms:
                return 3
            if link.connection is not None and link.connection.is_open:
                return 0
            return 2 if link.retry_at_ms <= now_ms else 3

        brokers.sort(key=rank)
        return [*brokers, *sorted(self._bootstrap_nodes, key=rank)]

    async def request_any(self, response_class: type[R], message: Request, *, timeout_ms: float | None = None) -> R:
        """Asks brokers one after the other until one answers. Raises the last one's error when none does."""
        last: Exception = ConnectionError("no broker is known")
        for node_id in self.candidates():
            try:
                return await self.request(node_id, response_class, message, timeout_ms=timeout_ms)
            except TRANSPORT_ERRORS as error:
                last = error
                self._last_error = error
        raise self._nobody_answers(last) from last

    async def ask_any(self, response_class: type[R], question: Request, *, timeout_ms: float | None = None) -> R:
        """Puts a question to brokers until one answers: as ``request_any``, for requests that change nothing.

        A node that says nothing for ``PATIENCE_MS`` (a process that hangs, a host that is cut off) keeps its time, but
        the next one is asked meanwhile, and the first answer counts. The silent one is asked last from then on, until
        it answers or ``request.timeout.ms`` is over. Raises the last error when none answers.
        """
        return (await self._asked(response_class, question, timeout_ms=timeout_ms))[1]

    async def _asked(
        self, response_class: type[R], question: Request, *, timeout_ms: float | None = None
    ) -> tuple[int, R]:
        """As ``ask_any``; returns who answered, too."""
        ended: list[tuple[int, R | Exception]] = []
        news = Signal()

        async def put(node_id: int) -> None:
            outcome: R | Exception = ConnectionError("the client is closed")
            try:
                outcome = await self.request(node_id, response_class, question, timeout_ms=timeout_ms)
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                outcome = error
            finally:
                self._link(node_id, "").silent_until_ms = -math.inf
                ended.append((node_id, outcome))
                news.notify()

        def decided() -> list[tuple[int, R | Exception]]:
            return [each for each in ended if not isinstance(each[1], TRANSPORT_ERRORS)]

        asked = 0
        for node_id in self.candidates():
            asked += 1
            if not self._tasks.accepts:
                raise ConnectionError("the client is closed")
            self._tasks.start(put, node_id)
            with trio.move_on_after(PATIENCE_MS / 1000) as patience:
                await news.wait()
            if decided():
                break
            if patience.cancelled_caught:
                self._link(node_id, "").silent_until_ms = self.now_ms + self._request_timeout_ms
        await news.wait_until(lambda: bool(decided()) or len(ended) == asked)
        answered_by, outcome = (decided() or ended)[-1]
        if isinstance(outcome, KafkaError):
            raise outcome
        if isinstance(outcome, Exception):
            self._last_error = outcome
            raise self._nobody_answers(outcome) from outcome
        return answered_by, outcome

    def _nobody_answers(self, last: Exception) -> ConnectionError:
        servers = ", ".join(f"{host}:{port}" for host, port in self._bootstrap)
        return ConnectionError(f"no broker of {servers} answers: {last}")

    # --- metadata

    def add_topic(self, name: str) -> None:
        """Keeps the topic's metadata from now on, and asks for it if it is not known."""
        if name not in self._topics:
            self._topics[name] = None
            self.request_update()

    def forget_topic(self, name: str) -> None:
        """Stops keeping the metadata of a topic that is not used any more."""
        self._topics.pop(name, None)
        self.picture.topics.pop(name, None)

    def set_topics(self, names: Iterable[str]) -> None:
        """Keeps the metadata of exactly these topics."""
        wanted = dict.fromkeys(names)
        is_news = any(name not in self._topics for name in wanted)
        self._topics = wanted
        self._wants_all_topics = False
        if is_news:
            self.request_update()

    def want_all_topics(self) -> None:
        """Keeps the metadata of all topics (a consumer that subscribes to a pattern)."""
        if not self._wants_all_topics:
            self._wants_all_topics = True
            self.request_update()

    def request_update(self) -> None:
        """Asks the background task for fresh metadata."""
        self._wanted.set()

    def doubt(self, node_id: int) -> None:
        """Asks for fresh metadata, and not this node as long as another one answers: what it knows may be old."""
        self._link(node_id, "").silent_until_ms = self.now_ms + self._request_timeout_ms
        self.request_update()

    def doubt_metadata(self, since_ms: float) -> None:
        """Asks for fresh metadata: what is known is older than it should be since ``since_ms`` (of ``now_ms``).

        A node that has told it after that is behind, and others are asked before it.
        """
        node_id = self._answered_by
        if node_id is not None and self._refreshed_at_ms > since_ms:
            if self._link(node_id, "").silent_until_ms <= self.now_ms:
                self.logger.info("metadata_behind", node=node_id)
            self.doubt(node_id)
        self.request_update()

    @property
    def last_error(self) -> BaseException | None:
        """Why the last request to any broker failed, for the text of timeouts."""
        return self._last_error

    async def wait_update(self, deadline_ms: float) -> None:
        """Asks for fresh metadata and waits until some came in. Raises ``trio.TooSlowError`` at the deadline."""
        version = self.picture.version
        self.request_update()
        remaining_ms = deadline_ms - self.now_ms
        with trio.move_on_after(max(remaining_ms, 0) / 1000):
            await self.changed.wait_until(lambda: self.picture.version > version or self._closed)
            return
        raise trio.TooSlowError(f"no metadata: {self._last_error or 'no broker answered in time'}")

    async def _refresh_forever(self) -> None:
        failures = 0
        while True:
            wait_ms = max(self._refreshed_at_ms + self._max_age_ms - self.now_ms, 0.0)
            with trio.move_on_after(min(wait_ms, 1e9) / 1000):
                await self._wanted.wait()
            # A stale picture asks often; the brokers are asked at the pace of the retry back-off.
            since_ms = self.now_ms - self._refreshed_at_ms
            if since_ms < self.retry.initial_ms:
                await trio.sleep((self.retry.initial_ms - since_ms) / 1000)
            self._wanted = trio.Event()
            try:
                await self.refresh()
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                failures += 1
                self._last_error = error
                self.logger.info("metadata_failed", error=error, failures=failures)
                self._wanted.set()
                await trio.sleep(self.retry.delay_ms(failures, self.environment.random) / 1000)
            else:
                failures = 0

    async def refresh(self) -> None:
        """Fetches metadata once. Raises when no broker answers."""
        is_full = self._wants_all_topics
        names = list(self._topics)
        request = MetadataRequest(
            topics=None if is_full else [MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=name) for name in names],
            allow_auto_topic_creation=self.allow_auto_create,
        )
        self._answered_by, response = await self._asked(MetadataResponse, request)
        self.picture.update(response, is_full=is_full)
        self._refreshed_at_ms = self.now_ms
        picture = self.picture
        if any(
            topic.error.refreshes_metadata or any(info.leader < 0 for info in topic.partitions)
            for topic in (picture.topics[name] for name in names if name in picture.topics)
        ):
            self._wanted.set()
        self.changed.notify()

    # --- coordinators

    async def find_coordinator(self, key: str, key_type: int) -> int:
        """Returns the node that coordinates a group or transactional id.

        Raises ``KafkaError`` with the broker's code (``COORDINATOR_NOT_AVAILABLE`` is retriable) or a transport error.
        """
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        response = await self.ask_any(FindCoordinatorResponse, request)
        if response.coordinators:
            found = response.coordinators[0]
            code, message = ErrorCode.of(found.error_code), found.error_message
            node_id, host, port = found.node_id, found.host, found.port
        else:
            code, message = ErrorCode.of(response.error_code), response.error_message
            node_id, host, port = response.node_id, response.host, response.port
        if code is not ErrorCode.NONE:
            raise KafkaError(code, message)
        self.picture.add_broker(BrokerNode(node_id=node_id, host=host, port=port))
        return node_id

    async def backoff(self, failures: int) -> None:
        """Waits as ``retry.backoff.ms`` says before attempt number ``failures`` + 1."""
        await trio.sleep(self.retry.delay_ms(failures, self.environment.random) / 1000)
