"""Connections to the brokers of a cluster, and its metadata kept up to date: the shell under every client.

Theory of operation: one ``ClusterClient`` serves one producer, consumer or admin client. Its connections are opened on
demand (``connections.links``). A background task refreshes the metadata on request or when it is too old; tasks that
need a change wait for ``changed``. The client draws a broker among those it knows, and tries the bootstrap servers if
no broker answers. If a node does not answer a read-only request, the client sends it to the next node too, so that one
hanging process does not block the client. Requests to partition leaders and coordinators are watched (``silence``):
they are given up when another broker has taken over. A client whose brokers are gone or belong to another cluster
starts again at its bootstrap servers (``connections.recovery``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.cluster.bootstrap import BootstrapError, bootstrap_key, is_final
from moldau.cluster.connections.links import STARTS_AGAIN, Links
from moldau.cluster.connections.links import TRANSPORT_ERRORS as TRANSPORT_ERRORS
from moldau.cluster.connections.recovery import Recovery
from moldau.cluster.metadata import NO_TOPIC_ID, BrokerNode, ClusterMetadata
from moldau.cluster.reports import TelemetryHandle
from moldau.cluster.silence_watch import SilenceWatch
from moldau.cluster.troubles import Troubles, check_topic_names
from moldau.implementation import announce_implementation
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import EncodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.net.features import FinalizedFeatures
from moldau.runtime.net.served_versions import ControllerPeerError, UnsupportedApiError
from moldau.runtime.sasl.core.errors import SaslAuthenticationError
from moldau.runtime.tasks.supervision import BackoffPolicy, TaskHost
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.cluster.metadata import TopicInfo
    from moldau.protocol.schema import Request
    from moldau.runtime.config import Config
    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.net.served_versions import NeededVersion
    from moldau.runtime.ports.environment import Environment

R = TypeVar("R", bound=Response)

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1

COORDINATOR_GRACE_MS = 2_000.0
"""A client without a coordinator warns after this time: another broker takes over sooner."""
PATIENCE_MS = 1_000.0
"""After this time without an answer, a read-only request goes to the next node too."""


class ClusterClient:
    """Connections and metadata of one client. ``run`` must run in a nursery of the owner while it is used."""

    def __init__(self, environment: Environment, config: Config, kind: str) -> None:
        self.environment = environment
        self.config = config
        self.asks_controllers = bootstrap_key(config) != "bootstrap.servers"  # its metadata name these as brokers
        self.cluster_metadata = ClusterMetadata()
        self.changed = Signal()  # metadata came in, a connection opened or died
        self.client_id = config.get_str("client.id") or f"moldau-{kind}"
        self.logger = EventLogger("moldau.client", client=self.client_id)
        announce_implementation(self.logger)
        self.recovery = Recovery.of(config)
        self._links = Links(self)
        self._request_timeout_ms = config.get_int("request.timeout.ms")
        self._max_age_ms = config.get_int("metadata.max.age.ms")
        self.retry = BackoffPolicy(
            initial_ms=config.get_int("retry.backoff.ms"), max_ms=config.get_int("retry.backoff.max.ms")
        )
        self._topics: dict[str, bool] = {}  # True: until brokers refuse it; a call that needs it adds it again
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
        self._starts_again: Troubles[str] = Troubles()
        self._without_coordinator: Troubles[str] = Troubles()
        self.bootstrap_error: KafkaError | None = None  # while no server can be used with these security settings
        self.on_bootstrap_error: Callable[[], object] = lambda: None
        self.clusters_left = 0
        self.on_other_cluster: Callable[[], object] = lambda: None  # after a start again that led to another cluster
        self.silence = SilenceWatch(self)
        self.telemetry = TelemetryHandle(self)
        self.tasks = TaskHost()
        self._closed = False

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps metadata fresh until cancelled; closes all connections at the end."""
        try:
            async with self.tasks.running():
                self.tasks.start(self._links.close_idle_forever)
                self.tasks.start(self.silence.run)
                task_status.started()
                await self._refresh_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Closes every connection; idempotent. The transport still delivers the bytes it has taken."""
        self._closed = True
        self._links.close()
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

    async def connection(self, node_id: int, purpose: str = "") -> RpcConnection:
        """Returns an open connection to a broker; opens one if needed, after its back-off.

        Raises:
            OSError: the connection cannot be opened.
            trio.TooSlowError: opening took too long.
            KafkaError: the broker refused ApiVersions.
        """
        return await self._links.connection(node_id, purpose)

    def connection_nowait(self, node_id: int, purpose: str = "") -> RpcConnection | None:
        """Returns an open connection, or None; then it starts opening one if the back-off allows it."""
        return self._links.connection_nowait(node_id, purpose)

    def is_connected(self, node_id: int | None) -> bool:
        """Returns whether a connection to the broker is open, as far as the client has noticed; None is no broker."""
        return node_id is not None and self._links.link(node_id).connection is not None

    def retry_delay_ms(self, node_id: int, purpose: str = "") -> float:
        """Returns the time during which ``connection_nowait`` opens no connection.

        It is infinite while a connection is being opened; ``changed`` is notified at its end.
        """
        return self._links.retry_delay_ms(node_id, purpose)

    def opened(self, connection: RpcConnection, purpose: str) -> None:
        """Takes note of a new connection."""
        self._learn_features(connection.features)
        self.telemetry.opened(connection, purpose)
        self.changed.notify()

    def opening_failed(self, address: tuple[str, int], error: Exception) -> None:
        """Takes note of a failed attempt to connect."""
        self._last_error = error
        self.logger.info("connection-failed", host=address[0], port=address[1], error=error)
        self.changed.notify()  # tasks that wait for this attempt now wait for the back-off

    def check_open(self) -> None:
        """Checks that the client has not closed its connections.

        Raises:
            ConnectionError: it has.
        """
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

    # --- requests

    async def request(
        self,
        node_id: int,
        response_class: type[R],
        message: Request,
        *,
        version_max: int | None = None,
        timeout_ms: float | None = None,
        purpose: str = "",
        needed: NeededVersion | None = None,
        named_in: int | None = None,
    ) -> R:
        """Sends a request, in no later version than ``version_max``, to a broker and returns the response.

        ``named_in`` is the ``clusters_left`` of when the application named the broker: in another cluster a broker with
        the same id gets nothing.

        Raises:
            KafkaError: the broker does not support the API or the ``needed`` version of it, or a value of the request
                does not fit its field, or BROKER_NOT_AVAILABLE for a broker of another cluster; ``TRANSPORT_ERRORS``
                may be raised too.
        """
        connection = await self.connection(node_id, purpose)
        if named_in is not None:
            self.check_cluster(node_id, named_in)
        if needed is not None:
            connection.require(message, needed)
        version = None if version_max is None else connection.version_for(message, version_max)
        limit_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        began_ms = self.now_ms
        try:
            response = await connection.request_as(response_class, message, version, limit_ms)
        except EncodeError as error:  # no broker could read it, so no other one is asked
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"a value does not fit its field: {error}") from error
        self.telemetry.answered(node_id, began_ms)
        if isinstance(response, MetadataResponse):
            self._check_metadata(connection, node_id, response)
        elif self.asks_controllers and message.__api_key__ == ApiKey.DESCRIBE_CLUSTER:
            from moldau.cluster.connections.endpoints import metadata_of  # not loaded by clients of brokers

            self._check_metadata(connection, node_id, metadata_of(response, connection.peer))
        return response

    def check_cluster(self, node_id: int, named_in: int) -> None:
        """Checks that the client has not gone to another cluster since a broker was named (see ``request``).

        Raises:
            KafkaError: BROKER_NOT_AVAILABLE.
        """
        if named_in != self.clusters_left:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster of broker {node_id} is out of reach")

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
        for node_id in await self._links.open_first(PATIENCE_MS):
            try:
                return await self.request(node_id, response_class, message, timeout_ms=timeout_ms, needed=needed)
            except (*TRANSPORT_ERRORS, UnsupportedApiError) as error:
                errors.append(error)
                self._last_error = error
        if not errors:
            raise ConnectionError("no broker is known")
        raise self._no_answer(message, errors, has_need=needed is not None) from errors[-1]

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
                address = self._links.address(node_id)
                if address is not None and isinstance(error, ControllerPeerError) and not self.asks_controllers:
                    self._links.misfits.failed(address, error)
            finally:
                self._links.link(node_id).silent_until_ms = -math.inf
                ended.append((node_id, outcome))
                news.notify()

        def decided() -> list[tuple[int, R | Exception]]:
            return [each for each in ended if not isinstance(each[1], (*TRANSPORT_ERRORS, UnsupportedApiError))]

        asked = 0
        for node_id in self._links.candidates():
            asked += 1
            if not self.tasks.accepts:
                raise ConnectionError("the client is closed")
            self.tasks.start(put, node_id)
            with trio.move_on_after(PATIENCE_MS / 1000) as patience:
                await news.wait()
            if decided():
                break
            if patience.cancelled_caught:
                self._links.link(node_id).silent_until_ms = self.now_ms + self._request_timeout_ms
        await news.wait_until(lambda: bool(decided()) or len(ended) == asked)
        answered_by, outcome = (decided() or ended)[-1]
        if isinstance(outcome, KafkaError) and not isinstance(outcome, UnsupportedApiError | SaslAuthenticationError):
            raise outcome
        if isinstance(outcome, Exception):
            self._last_error = outcome
            errors = [error for _, error in ended if isinstance(error, Exception)]
            raise self._no_answer(question, errors) from outcome
        self.bootstrap_error = None
        self._links.misfits.served()
        return answered_by, outcome

    def _no_answer(self, request: Request, errors: list[Exception], *, has_need: bool = False) -> Exception:
        """Returns the error to raise when all candidates failed; it is final if no server can be used."""
        servers, kind = self._links.servers, "controller" if self.asks_controllers else "broker"
        is_first = request.__api_key__ == (ApiKey.DESCRIBE_CLUSTER if self.asks_controllers else ApiKey.METADATA)
        refusals = [error for error in errors if isinstance(error, SaslAuthenticationError)]
        if refusals:  # another server would refuse the same login, even where some cannot be reached now
            self.bootstrap_error = BootstrapError(refusals[-1].message, refusals[-1].code)
        elif not all(map(is_final, errors)):
            cause = next((error for error in errors if is_final(error)), errors[-1])  # the one that the user can mend
            reason = getattr(cause, "strerror", None) or str(cause) or "no answer in time"
            return ConnectionError(f"no {kind} of {servers} answers: {reason}")
        elif (has_need or not is_first) and isinstance(errors[-1], UnsupportedApiError):
            return errors[-1]  # another request may be served
        else:
            self.bootstrap_error = BootstrapError(f"no {kind} of {servers} can be used: {errors[-1]}")
        self.on_bootstrap_error()
        self.changed.notify()
        return self.bootstrap_error

    # --- metadata

    def add_topic(self, name: str, *, until_absent: bool = False) -> None:
        """Starts to track a topic, and asks for it if it is new; ``until_absent`` is for calls that repeat this."""
        if name not in self._topics:
            self.request_update()
        self._topics[name] = until_absent and self._topics.get(name, True)

    def forget_topic(self, name: str) -> None:
        """Stops tracking the metadata of a topic that is no longer used."""
        self._topics.pop(name, None)
        self.cluster_metadata.topics.pop(name, None)

    def set_topics(self, names: Iterable[str]) -> None:
        """Tracks the metadata of exactly these topics."""
        wanted = dict.fromkeys(names, False)
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
        self._links.link(node_id).silent_until_ms = self.now_ms + self._request_timeout_ms
        self.request_update()

    @property
    def knows_several_servers(self) -> bool:
        """Whether another broker, or another bootstrap server, could answer in place of a silent one."""
        return self._links.has_alternatives

    def doubt_metadata(self, since_ms: float) -> None:
        """Requests fresh metadata, because the metadata is known to be stale since ``since_ms`` (on ``now_ms``).

        A node that has sent the metadata since then is behind, so the client asks other nodes before it.
        """
        node_id = self._answered_by
        if node_id is not None and self._refreshed_at_ms > since_ms:
            if self._links.link(node_id).silent_until_ms <= self.now_ms:
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
            RuntimeError: the client is closed.
        """
        version = self.cluster_metadata.version
        self.request_update()
        with trio.move_on_after(max(deadline_ms - self.now_ms, 0) / 1000):
            await self.changed.wait_until(
                lambda: self.cluster_metadata.version > version or self._closed or self.bootstrap_error is not None
            )
            if self.bootstrap_error is not None:
                raise self.bootstrap_error
            if self._closed:
                await trio.lowlevel.checkpoint()  # the client's own tasks end here, by their cancellation
                raise RuntimeError("the client was closed during the call")
            return
        reason = str(self._last_error or "") or f"no broker of {self._links.servers} answered in time"
        raise trio.TooSlowError(f"no metadata: {reason}")

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
                with trio.move_on_after(self.recovery.asked(self.now_ms) / 1000) as patience:
                    await self.refresh()
                if patience.cancelled_caught:
                    raise trio.TooSlowError("no broker has answered a Metadata request")
            except (*TRANSPORT_ERRORS, KafkaError) as error:
                failures += 1
                self._last_error = error
                # The error names the bootstrap servers and the cause. One that callers are raised needs no warning.
                is_due = not isinstance(error, BootstrapError) and self._troubles.due(self.now_ms, ("metadata", ""))
                report = self.logger.warning if is_due else self.logger.info
                report("metadata-failed", error=error, failures=failures)
                if self.recovery.is_due(self.now_ms):
                    self.rebootstrap("no metadata for metadata.recovery.rebootstrap.trigger.ms")
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
        if self.asks_controllers:
            from moldau.cluster.connections.endpoints import QUESTION, metadata_of

            self._answered_by, found = await self._asked(Response, QUESTION)
            self.adopt(metadata_of(found, self._links.servers))
        else:
            self._answered_by, response = await self._asked(MetadataResponse, request)
            self.adopt(response, is_full=is_full)
        self._refreshed_at_ms = self.now_ms
        for name in self.cluster_metadata.refused(names):
            if self._topics.get(name):
                del self._topics[name]
        if self.cluster_metadata.is_passing(name for name in names if name in self._topics):
            self._wanted.set()
        self.changed.notify()
        if self.watches_features and self.now_ms - self._features_at_ms >= self._max_age_ms:
            self._features_at_ms = self.now_ms
            await self._refresh_features(self._answered_by)

    def adopt(self, response: MetadataResponse, *, is_full: bool = False) -> None:
        """Merges a Metadata answer that ``request`` has accepted."""
        left = self.recovery.answered(response.cluster_id)
        if left is not None:
            self.logger.warning("cluster-changed", before=left, now=response.cluster_id)
            self.cluster_metadata.topics.clear()
            self.clusters_left += 1
            self.on_other_cluster()
        self.cluster_metadata.update(response, is_full=is_full)

    def _check_metadata(self, connection: RpcConnection, node_id: int, response: MetadataResponse) -> None:
        """Refuses a Metadata answer that does not describe this client's cluster.

        Raises:
            ConnectionAbortedError: the client must start again (KIP-1102), and has begun to if it may.
        """
        known, code = self.cluster_metadata.cluster_id, ErrorCode.of(response.error_code)
        if code is ErrorCode.REBOOTSTRAP_REQUIRED:
            reason = f"{connection.peer} demands it"
        elif code is not ErrorCode.NONE:
            raise KafkaError(code)
        elif self.recovery.is_foreign(known, response.cluster_id):
            reason = f"{connection.peer} belongs to cluster {response.cluster_id}, not {known}"
        else:
            return
        if self.recovery.is_enabled and connection.is_open:
            self.rebootstrap(reason)
        raise ConnectionAbortedError(reason)

    def rebootstrap(self, reason: str) -> None:
        """Forgets the brokers, closes all connections, and starts again at ``bootstrap.servers``.

        Requests in flight fail as after any broken connection, and their senders repeat them.
        """
        is_due = self._starts_again.due(self.now_ms, (reason, ""))
        report = self.logger.warning if is_due else self.logger.info
        report("rebootstrapping", servers=self._links.servers, reason=reason)
        self.recovery.begun(self.cluster_metadata.cluster_id, self.now_ms)
        self.cluster_metadata.forget_brokers()
        self.features = FinalizedFeatures()
        self._answered_by = None
        self._links.abandon(f"starting again at bootstrap.servers: {reason}")
        self.request_update()
        self.changed.notify()

    # --- coordinators

    async def find_coordinator(self, key: str, key_type: int) -> int:
        """Returns the node that coordinates a group or transactional id.

        Raises:
            KafkaError: the broker's code (COORDINATOR_NOT_AVAILABLE is retriable); transport errors are raised too.
        """
        if self.recovery.awaits_answer:  # a member, or a transaction, of the former cluster must not look elsewhere
            self.request_update()
            raise ConnectionError(STARTS_AGAIN)
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        generation = self.recovery.generation
        response = await self.ask_any(FindCoordinatorResponse, request)
        if generation != self.recovery.generation:  # a bootstrap server of another cluster may have answered
            raise ConnectionError(STARTS_AGAIN)
        if response.coordinators:
            found = response.coordinators[0]
            code, message = ErrorCode.of(found.error_code), found.error_message
            node_id, host, port = found.node_id, found.host, found.port
        else:
            code, message = ErrorCode.of(response.error_code), response.error_message
            node_id, host, port = response.node_id, response.host, response.port
        if code is not ErrorCode.NONE:
            refusal = KafkaError(code, message)
            if refusal.retriable:
                self._last_error = refusal
                if self._without_coordinator.due(self.now_ms, (key, message), grace_ms=COORDINATOR_GRACE_MS):
                    self.logger.warning("coordinator-not-found", of=key, error=refusal)
            raise refusal
        self._without_coordinator.due(self.now_ms)
        self.cluster_metadata.add_broker(BrokerNode(node_id=node_id, host=host, port=port))
        return node_id

    async def backoff(self, failures: int) -> None:
        """Waits before attempt ``failures`` + 1 (``retry.backoff.ms``); RuntimeError ends calls of a closed client."""
        await trio.sleep(self.retry.delay_ms(failures, self.environment.random) / 1000)
        if self._closed:  # the client's own tasks have ended in the line before, by their cancellation
            raise RuntimeError("the client was closed during the call")


async def wait_topic(client: ClusterClient, topic: str, deadline_ms: float, partition: int | None = None) -> TopicInfo:
    """Waits until the metadata hold a topic, and the partition if one is given.

    A refusal counts only if it has come since the call began (``ClusterMetadata.check_topic``).

    Raises:
        InvalidTopicError: the name is not a valid topic name.
        KafkaError: the topic does not exist or may not be used, and asking again does not help.
        trio.TooSlowError: its metadata did not arrive in time.
        RuntimeError: the client is closed.
    """
    check_topic_names([topic])
    before = client.cluster_metadata.topics.get(topic)
    while True:
        client.add_topic(topic, until_absent=True)
        info = client.cluster_metadata.topics.get(topic)
        if info is not None and info.partitions and (partition is None or partition < len(info.partitions)):
            return info
        client.cluster_metadata.check_topic(topic, before)
        await client.wait_update(deadline_ms)
