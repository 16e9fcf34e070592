"""Connections to the brokers of a cluster, and its metadata kept up to date: the shell under every client.

Theory of operation: one ``ClusterClient`` serves one producer, consumer or admin client. It holds one connection to
each broker for ordinary requests and one for each kind of request that the broker delays (fetches, group requests), so
that a long poll blocks nothing else. Connections are opened on demand and reopened after a back-off. A background task
refreshes the metadata on request or when it is too old; tasks that need a change wait for ``changed``. The client draws
a broker among those it knows, and tries the bootstrap servers if no broker answers. If a node does not answer a
read-only request, the client sends it to the next node too, so that one hanging process does not block the client.
Requests to partition leaders and coordinators are watched (``silence``): they are given up when another broker has
taken over.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.bootstrap import BootstrapError, Misfits, explained, is_final, secured_environment
from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, ClusterMetadata
from moldau.cluster.reports import TelemetryHandle
from moldau.cluster.silence_watch import SilenceWatch
from moldau.cluster.troubles import Troubles
from moldau.implementation import announce_implementation
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.config import addresses
from moldau.runtime.net.features import FinalizedFeatures
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.net.served_versions import ControllerPeerError, UnsupportedApiError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.tasks.supervision import BackoffPolicy, TaskHost
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config
    from moldau.runtime.net.served_versions import NeededVersion
    from moldau.runtime.ports.environment import Environment

R = TypeVar("R", bound=Response)

TRANSPORT_ERRORS = (OSError, trio.TooSlowError, ProtocolError)
"""Exceptions of a request that a fault of its connection causes, not its content."""

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1

PATIENCE_MS = 1_000.0
"""After this time without an answer, a read-only request goes to the next node too."""


class _Link:
    """One connection slot of a broker.

    Invariant: at most one task opens it at a time.
    """

    __slots__ = ("connection", "failures", "lock", "opening", "purpose", "retry_at_ms", "silent_until_ms", "used_at_ms")

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.connection: RpcConnection | None = None
        self.lock = trio.Lock()
        self.opening = False
        self.failures = 0
        self.retry_at_ms = -math.inf
        self.silent_until_ms = -math.inf  # it has not answered in time, or its metadata may be stale
        self.used_at_ms = -math.inf


class ClusterClient:
    """Connections and metadata of one client. ``run`` must run in a nursery of the owner while it is used."""

    def __init__(self, environment: Environment, config: Config, kind: str) -> None:
        self.environment = environment
        self.config = config
        self.cluster_metadata = ClusterMetadata()
        self.changed = Signal()  # metadata came in, a connection opened or died
        self.client_id = config.get_str("client.id") or f"moldau-{kind}"
        self.logger = EventLogger("moldau.client", client=self.client_id)
        announce_implementation(self.logger)
        self._bootstrap = addresses(config, "bootstrap.servers")
        # Each client has its own order, so that one server that never answers does not delay all clients.
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
        self.features = FinalizedFeatures()
        self.watches_features = False
        """Whether levels of features are asked for again every ``metadata.max.age.ms``."""
        self._features_at_ms = self.now_ms
        self._answered_by: int | None = None  # the last Metadata request
        self._last_error: BaseException | None = None
        self._troubles: Troubles[str] = Troubles()
        self.bootstrap_error: KafkaError | None = None  # while no server can be used with these security settings
        self.on_bootstrap_error: Callable[[], object] = lambda: None
        self._misfits = Misfits(self.logger)
        self.silence = SilenceWatch(self)
        self.telemetry = TelemetryHandle(self)
        self._tasks = TaskHost()
        self._closed = False
        self._outgoing = secured_environment(environment, config)
        self._idle_ms = config.get_int("connections.max.idle.ms")

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps metadata fresh until cancelled; closes all connections at the end."""
        try:
            async with self._tasks.running():
                self._tasks.start(self._close_idle_forever)
                self._tasks.start(self.silence.run)
                task_status.started()
                await self._refresh_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Closes every connection; idempotent. The transport still delivers the bytes it has taken."""
        self._closed = True
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close(keeps_sent=True)
        self._links.clear()
        self.changed.notify()

    @property
    def now_ms(self) -> float:
        """The time of the monotonic clock, in milliseconds."""
        return self.environment.clock.monotonic_ms()

    @property
    def is_closed(self) -> bool:
        """Whether the client closed its connections; later errors are then expected."""
        return self._closed

    @property
    def request_timeout_ms(self) -> int:
        """The value of ``request.timeout.ms``."""
        return self._request_timeout_ms

    # --- connections

    def _address(self, node_id: int) -> tuple[str, int] | None:
        if node_id < 0:
            index = -1 - node_id
            return self._bootstrap[index] if index < len(self._bootstrap) else None
        broker = self.cluster_metadata.brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)

    def _link(self, node_id: int, purpose: str) -> _Link:
        return self._links.setdefault((node_id, purpose), _Link(purpose))

    async def connection(self, node_id: int, purpose: str = "") -> RpcConnection:
        """Returns an open connection to a broker; opens one if needed, after its back-off.

        Raises:
            OSError: the connection cannot be opened.
            trio.TooSlowError: opening took too long.
            KafkaError: the broker refused ApiVersions.
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

    def _learn_features(self, features: FinalizedFeatures) -> None:
        """Keeps the newest levels; brokers learn them one after the other."""
        if features.epoch > self.features.epoch:
            self.features = features

    def feature_level(self, name: str) -> int:
        """Returns the cluster's level of a feature; 0 if no broker has said one."""
        return self.features.levels.get(name, 0)

    async def _refresh_features(self, node_id: int) -> None:
        """Asks a broker for the levels of features, which may change while connections stay open.

        Raises:
            KafkaError: the broker refused the request; ``TRANSPORT_ERRORS`` may be raised too.
        """
        connection = await self.connection(node_id)
        await connection.negotiate(self._request_timeout_ms)
        self._learn_features(connection.features)

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
        except (*TRANSPORT_ERRORS, KafkaError) as failure:
            error = await explained(failure, self._outgoing, *address)
            link.failures += 1
            link.retry_at_ms = self.now_ms + self._reconnect.delay_ms(link.failures, self.environment.random)
            self._last_error = error
            self.logger.info("connection-failed", host=address[0], port=address[1], error=error)
            self._misfits.failed(address, error)
            self.changed.notify()  # tasks that wait for this attempt now wait for the back-off
            if error is failure:
                raise
            raise error from failure
        finally:
            link.opening = False
        if self._closed:
            connection.close()
            self._check_open()
        link.failures = 0
        self._learn_features(connection.features)
        self._misfits.opened(address)
        link.retry_at_ms = -math.inf
        link.connection = connection
        self.telemetry.opened(connection, link.purpose)
        self.changed.notify()
        return connection

    def connection_nowait(self, node_id: int, purpose: str = "") -> RpcConnection | None:
        """Returns an open connection, or None; then it starts opening one if the back-off allows it."""
        link = self._link(node_id, purpose)
        link.used_at_ms = self.now_ms
        if link.connection is not None:
            if link.connection.is_open:
                return link.connection
            link.connection = None
            # A connection that just died is reopened after the first back-off.
            link.retry_at_ms = max(link.retry_at_ms, self.now_ms + self._reconnect.initial_ms)
        if not link.opening and self._tasks.accepts and self.now_ms >= link.retry_at_ms and not self._closed:
            link.opening = True
            self._tasks.start(self._open_quietly, node_id, link)
        return None

    def retry_delay_ms(self, node_id: int, purpose: str = "") -> float:
        """Returns the time during which ``connection_nowait`` opens no connection.

        It is infinite while a connection is being opened; ``changed`` is notified at its end.
        """
        link = self._link(node_id, purpose)
        return math.inf if link.opening else max(link.retry_at_ms - self.now_ms, 0.0)

    async def _open_quietly(self, node_id: int, link: _Link) -> None:
        try:
            async with link.lock:
                if link.connection is None or not link.connection.is_open:
                    await self._open(node_id, link)
        except (*TRANSPORT_ERRORS, KafkaError):
            # A broker with an unknown address was not tried, but needs a pause too.
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
        needed: NeededVersion | None = None,
    ) -> R:
        """Sends a request to a broker and returns the response.

        Raises:
            KafkaError: the broker does not support the API or the ``needed`` version of it; ``TRANSPORT_ERRORS`` may
                be raised too.
        """
        connection = await self.connection(node_id, purpose)
        if needed is not None:
            connection.require(message, needed)
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        began_ms = self.now_ms
        response = await connection.request_as(response_class, message, version, limit_ms)
        self.telemetry.answered(node_id, began_ms)
        return response

    def candidates(self) -> list[int]:
        """Returns the nodes that may answer any request, in the order in which to try them.

        Brokers with an open connection come first, bootstrap servers last. Within each class, nodes that were
        unreachable or have not answered come after the others.
        """
        brokers = sorted(self.cluster_metadata.brokers)
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

    async def request_any(
        self,
        response_class: type[R],
        message: Request,
        *,
        timeout_ms: float | None = None,
        needed: NeededVersion | None = None,
    ) -> R:
        """Sends a request to one broker after the other until one answers; raises the last error if none does."""
        errors: list[Exception] = []
        for node_id in self.candidates():
            try:
                return await self.request(node_id, response_class, message, timeout_ms=timeout_ms, needed=needed)
            except (*TRANSPORT_ERRORS, UnsupportedApiError) as error:
                errors.append(error)
                self._last_error = error
        if not errors:
            raise ConnectionError("no broker is known")
        raise self._no_answer(message, errors) from errors[-1]

    async def ask_any(self, response_class: type[R], question: Request, *, timeout_ms: float | None = None) -> R:
        """Sends a read-only request to brokers until one answers; raises the last error if none does.

        If a node does not answer for ``PATIENCE_MS`` (a hanging process, an unreachable host), the client also sends
        the request to the next node, and the first answer counts. The silent node comes last from then on, until it
        answers or ``request.timeout.ms`` is over.
        """
        return (await self._asked(response_class, question, timeout_ms=timeout_ms))[1]

    async def _asked(
        self, response_class: type[R], question: Request, *, timeout_ms: float | None = None
    ) -> tuple[int, R]:
        """Works like ``ask_any``, and also returns the node that answered."""
        ended: list[tuple[int, R | Exception]] = []
        news = Signal()

        async def put(node_id: int) -> None:
            outcome: R | Exception = ConnectionError("the client is closed")
            try:
                outcome = await self.request(node_id, response_class, question, timeout_ms=timeout_ms)
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                outcome = error
                address = self._address(node_id)
                if address is not None and isinstance(error, ControllerPeerError):
                    self._misfits.failed(address, error)
            finally:
                self._link(node_id, "").silent_until_ms = -math.inf
                ended.append((node_id, outcome))
                news.notify()

        def decided() -> list[tuple[int, R | Exception]]:
            return [each for each in ended if not isinstance(each[1], (*TRANSPORT_ERRORS, UnsupportedApiError))]

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
        if isinstance(outcome, KafkaError) and not isinstance(outcome, UnsupportedApiError | SaslAuthenticationError):
            raise outcome
        if isinstance(outcome, Exception):
            self._last_error = outcome
            errors = [error for _, error in ended if isinstance(error, Exception)]
            raise self._no_answer(question, errors) from outcome
        self.bootstrap_error = None
        self._misfits.served()
        return answered_by, outcome

    def _no_answer(self, request: Request, errors: list[Exception]) -> Exception:
        """Returns the error to raise when all candidates failed; it is final if no server can be used."""
        servers = ", ".join(f"{host}:{port}" for host, port in self._bootstrap)
        refusals = [error for error in errors if isinstance(error, SaslAuthenticationError)]
        if refusals:  # another server would refuse the same login, even where some cannot be reached now
            self.bootstrap_error = BootstrapError(refusals[-1].message, refusals[-1].code)
        elif not all(map(is_final, errors)):
            return ConnectionError(f"no broker of {servers} answers: {errors[-1]}")
        elif not isinstance(request, MetadataRequest) and isinstance(errors[-1], UnsupportedApiError):
            return errors[-1]  # another request may be served
        else:
            self.bootstrap_error = BootstrapError(f"no broker of {servers} can be used: {errors[-1]}")
        self.on_bootstrap_error()
        self.changed.notify()
        return self.bootstrap_error

    # --- metadata

    def add_topic(self, name: str) -> None:
        """Starts to track the topic's metadata, and requests it if it is unknown."""
        if name not in self._topics:
            self._topics[name] = None
            self.request_update()

    def forget_topic(self, name: str) -> None:
        """Stops tracking the metadata of a topic that is no longer used."""
        self._topics.pop(name, None)
        self.cluster_metadata.topics.pop(name, None)

    def set_topics(self, names: Iterable[str]) -> None:
        """Tracks the metadata of exactly these topics."""
        wanted = dict.fromkeys(names)
        is_news = any(name not in self._topics for name in wanted)
        self._topics = wanted
        self._wants_all_topics = False
        if is_news:
            self.request_update()

    def want_all_topics(self) -> None:
        """Tracks the metadata of all topics (for a consumer that subscribes to a pattern)."""
        if not self._wants_all_topics:
            self._wants_all_topics = True
            self.request_update()

    def request_update(self) -> None:
        """Requests fresh metadata from the background task."""
        self._wanted.set()

    def doubt(self, node_id: int) -> None:
        """Requests fresh metadata, preferably not from this node, whose metadata may be stale."""
        self._link(node_id, "").silent_until_ms = self.now_ms + self._request_timeout_ms
        self.request_update()

    @property
    def knows_several_servers(self) -> bool:
        """Whether another broker, or another bootstrap server, could answer in place of a silent one."""
        return len(self._bootstrap) > 1 or len(self.cluster_metadata.brokers) > 1

    def doubt_metadata(self, since_ms: float) -> None:
        """Requests fresh metadata, because the metadata is known to be stale since ``since_ms`` (on ``now_ms``).

        A node that has sent the metadata since then is behind, so the client asks other nodes before it.
        """
        node_id = self._answered_by
        if node_id is not None and self._refreshed_at_ms > since_ms:
            if self._link(node_id, "").silent_until_ms <= self.now_ms:
                self.logger.info("metadata-behind", node=node_id)
            self.doubt(node_id)
        self.request_update()

    @property
    def last_error(self) -> BaseException | None:
        """The error of the last failed request to any broker, for the text of timeouts."""
        return self._last_error

    async def wait_update(self, deadline_ms: float) -> None:
        """Requests fresh metadata and waits for it.

        Raises:
            trio.TooSlowError: the deadline has passed.
            BootstrapError: no server can be used.
        """
        version = self.cluster_metadata.version
        self.request_update()
        remaining_ms = deadline_ms - self.now_ms
        with trio.move_on_after(max(remaining_ms, 0) / 1000):
            await self.changed.wait_until(
                lambda: self.cluster_metadata.version > version or self._closed or self.bootstrap_error is not None
            )
            if self.bootstrap_error is not None:
                raise self.bootstrap_error
            return
        raise trio.TooSlowError(f"no metadata: {self._last_error or 'no broker answered in time'}")

    async def _refresh_forever(self) -> None:
        failures = 0
        while True:
            wait_ms = max(self._refreshed_at_ms + self._max_age_ms - self.now_ms, 0.0)
            with trio.move_on_after(min(wait_ms, 1e9) / 1000):
                await self._wanted.wait()
            # Callers request updates often while metadata is stale; the retry back-off limits the rate.
            since_ms = self.now_ms - self._refreshed_at_ms
            if since_ms < self.retry.initial_ms:
                await trio.sleep((self.retry.initial_ms - since_ms) / 1000)
            self._wanted = trio.Event()
            try:
                await self.refresh()
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                failures += 1
                self._last_error = error
                # The error names the bootstrap servers and the cause. One that callers are raised needs no warning.
                is_due = not isinstance(error, BootstrapError) and self._troubles.due(self.now_ms, ("metadata", ""))
                report = self.logger.warning if is_due else self.logger.info
                report("metadata-failed", error=error, failures=failures)
                self._wanted.set()
                await trio.sleep(self.retry.delay_ms(failures, self.environment.random) / 1000)
            else:
                failures = 0
                self._troubles.due(self.now_ms)

    async def refresh(self) -> None:
        """Fetches metadata once; raises the last error if no broker answers."""
        is_full = self._wants_all_topics
        names = list(self._topics)
        request = MetadataRequest(
            topics=None if is_full else [MetadataRequestTopic(topic_id=NO_TOPIC_ID, name=name) for name in names],
            allow_auto_topic_creation=self.allow_auto_create,
        )
        self._answered_by, response = await self._asked(MetadataResponse, request)
        self.cluster_metadata.update(response, is_full=is_full)
        self._refreshed_at_ms = self.now_ms
        cluster_metadata = self.cluster_metadata
        if any(
            topic.error.refreshes_metadata or any(info.leader < 0 for info in topic.partitions)
            for topic in (cluster_metadata.topics[name] for name in names if name in cluster_metadata.topics)
        ):
            self._wanted.set()
        self.changed.notify()
        if self.watches_features and self.now_ms - self._features_at_ms >= self._max_age_ms:
            self._features_at_ms = self.now_ms
            await self._refresh_features(self._answered_by)

    # --- coordinators

    async def find_coordinator(self, key: str, key_type: int) -> int:
        """Returns the node that coordinates a group or transactional id.

        Raises:
            KafkaError: the broker's code (COORDINATOR_NOT_AVAILABLE is retriable); transport errors are raised too.
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
        self.cluster_metadata.add_broker(BrokerNode(node_id=node_id, host=host, port=port))
        return node_id

    async def backoff(self, failures: int) -> None:
        """Waits before attempt ``failures`` + 1, as ``retry.backoff.ms`` says."""
        await trio.sleep(self.retry.delay_ms(failures, self.environment.random) / 1000)
