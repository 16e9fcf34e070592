"""One client connection: decodes the header of each frame and dispatches the request.

Produce and Fetch take a hot path without message objects. All other requests are decoded by the compiled codecs and
served by the handler in the table of APIs. A handler that has to wait becomes the ``Deferred`` of its request and runs
when the answers before it have left. A malformed frame ends its own connection only.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.access import AclOperation, Cost
from moldau.protocol.api import ApiKey
from moldau.protocol.codec import DecodeError, TooManyEntriesError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.framing import decode_request_header, skip_tagged_section
from moldau.protocol.hot import read_fetch_request
from moldau.runtime.config import broker_listeners
from moldau.runtime.net.serving.answers import CloseConnection, Preparation
from moldau.runtime.net.serving.entry_limit import decode_limited
from moldau.runtime.net.serving.throttle import Throttle
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import LeaderEpoch
from moldau_broker.coordinator.runtime.completion import Completion
from moldau_broker.replication.fetch_session import FetchPartition
from moldau_broker.server.cluster_metadata.cache import ListenerHints
from moldau_broker.server.data_path.described_apis import DescribedApis
from moldau_broker.server.data_path.fetch import FetchOperation, FetchService
from moldau_broker.server.data_path.fetch_query import FetchQuery
from moldau_broker.server.data_path.handler_answers import CompletionAnswer, Exchange, HandlerAnswer, LateAnswer
from moldau_broker.server.data_path.produce import ProduceService, VerifiedProduce
from moldau_broker.server.data_path.record_checks import INLINE_COST, InlineBudget, RequestChecks
from moldau_broker.server.handlers.apis import BROKER_CHECKS
from moldau_broker.server.handlers.context import Call, LongAnswer
from moldau_broker.server.handlers.groups.share_delivery import session_owner
from moldau_broker.server.quotas.broker_quotas import BrokerQuotas, ClientAccount
from moldau_broker.server.quotas.toll import timed
from moldau_quorum.authorization.checks import SECURITY_APIS, Verdict, check, disabled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.protocol.framing import RequestHeader
    from moldau.protocol.schema import Request
    from moldau.runtime.net.serving.answers import Answer
    from moldau.runtime.ports.environment import Connection
    from moldau.runtime.sasl.core.identity import Peer
    from moldau_broker.server.handlers.apis import ServedApi
    from moldau_broker.server.handlers.context import BrokerContext
    from moldau_broker.server.quotas.toll import Toll
    from moldau_broker.server.replicas.delayed import Operation
    from moldau_broker.server.replicas.partition import Partition
    from moldau_quorum.authorization.authorizer import Permissions

_logger = EventLogger("moldau.broker.connection")

_KEY_VERSION = struct.Struct(">hh").unpack_from
_CORRELATION_CLIENT = struct.Struct(">ih").unpack_from  # correlation id, length of the client id (-1: none)
_CLIENT_ID_AT = 10
_NO_ERROR = ErrorCode.NONE
_PRODUCE, _FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)
_PRODUCE_FIRST, _PRODUCE_LAST = 3, 13
_FETCH_FIRST, _FETCH_LAST = 4, 18
_PRODUCE_FLEXIBLE, _FETCH_FLEXIBLE = 9, 12
_TOPIC_IDS = 13
VERIFYING_MAX = 16
"""Transactional produces of one connection that may wait for their coordinator; clients have five in flight."""
ENTRIES_FREE = 1_000
"""Topics and partitions that a Produce or Fetch may name beyond twice the existing ones.

Clients may name deleted topics, and new topics before this broker knows them. A request with more names is made up, and
is refused after its entries are counted."""
ENTRY_BYTES_MIN = 6
"""Size of the smallest entry: a partition of a Produce request without records."""
_MANY_ENTRIES_BYTES = ENTRIES_FREE * ENTRY_BYTES_MIN
_ERRORS_FIRST = 7
"""First version of Fetch whose answer has an error code of its own."""


class ListenerServices(NamedTuple):
    """The parts that the connections of one listener share."""

    context: BrokerContext
    listener_name: str
    produce: ProduceService
    fetch: FetchService
    apis: Mapping[int, ServedApi]
    described_apis: DescribedApis
    quotas: BrokerQuotas
    charged: frozenset[int]  # API keys that count against quotas; none on the listener on which only brokers ask


def listener_services(context: BrokerContext, listener_name: str, apis: Mapping[int, ServedApi]) -> ListenerServices:
    """Builds the shared parts of a listener from the broker's parts."""
    hints = ListenerHints(context.metadata, context.broker_id, listener_name)
    is_internal = len(broker_listeners(context.config)) > 1 and listener_name == context.metadata.inter_broker_listener
    return ListenerServices(
        context,
        listener_name,
        ProduceService(
            context.environment.clock,
            context.replicas,
            hints,
            context.verifier,
            checks=context.checks,
            offload=context.environment.disk.offload,
            unpacked_bytes_max=lambda: context.config.get_int("request.max.uncompressed.bytes"),
            verifies=lambda: context.config.get_bool("transaction.partition.verification.enable"),
        ),
        FetchService(
            context.environment.clock,
            context.replicas,
            hints,
            max_bytes=context.config.get_int("fetch.max.bytes"),
            early_watermarks=context.config.get_str_or_none("replica.selector.class") is not None,
            close_session=context.sessions.close,
            remote=None if context.remote_reading is None else context.remote_reading.reads,
        ),
        apis,
        DescribedApis(context, apis),
        context.quotas,
        frozenset(key for key, api in apis.items() if api.rules.cost is not Cost.NONE and not is_internal),
    )


def _hot_header(frame: memoryview, flexible: bool) -> tuple[int, int]:
    """Returns correlation id and position of the body, and skips the client id.

    Raises:
        DecodeError: the header is malformed.
    """
    try:
        correlation_id, length = _CORRELATION_CLIENT(frame, 4)
        position: int = _CLIENT_ID_AT + length if length > 0 else _CLIENT_ID_AT
        if flexible:
            position = position + 1 if not frame[position] else skip_tagged_section(frame, position)
    except (struct.error, IndexError) as error:
        raise DecodeError("the frame ends inside the request header") from error
    if position > len(frame):
        raise DecodeError("the frame ends inside the client id")
    return correlation_id, position


class CheckedProduce(Preparation):
    """A Produce request whose records take long to check."""

    __slots__ = ("_checks", "_connection", "_frame", "_toll", "_version")

    def __init__(
        self, connection: BrokerConnection, frame: memoryview, version: int, checks: RequestChecks, toll: Toll | None
    ) -> None:
        self._connection = connection
        self._frame = frame
        self._version = version
        self._checks = checks
        self._toll = toll

    async def prepare(self) -> None:
        """Checks the records; ``handle`` reports the errors of a batch."""
        work = self._connection.run_checks(self._checks)
        await (work if self._toll is None else timed(self._toll, work))

    def handle(self) -> Answer:
        """Appends the checked batches."""
        toll = self._toll
        if toll is not None:
            toll.resumed()
        answer = self._connection.produce(self._frame, self._version, self._checks, toll)
        if toll is not None:
            toll.ended()
        assert not isinstance(answer, Preparation), "it was checked"
        return answer


class BrokerConnection:
    """Serves one connection; see ``moldau.runtime.net.serving.answers.ConnectionHandler``."""

    __slots__ = (
        "_account",
        "_client_host",
        "_client_port",
        "_inline",
        "_peer",
        "_permissions",
        "_services",
        "_software",
        "_touched",
        "_verifying",
        "_waiting",
        "throttle",
    )

    def __init__(self, services: ListenerServices, connection: Connection, peer: Peer) -> None:
        """``peer`` returns the principal at the other end, once it has authenticated."""
        self._services = services
        self._peer = peer
        self._permissions: Permissions | None = None
        self.throttle = Throttle()
        self._account = ClientAccount(services.quotas, self.throttle)
        self._client_host, self._client_port = connection.peer_address[:2]
        self._software = ("", "")  # name and version of the client's library, once its ApiVersions request had them
        self._verifying = 0  # transactional produces that wait for their coordinator
        self._inline = InlineBudget()
        self._touched: dict[Partition, int] = {}  # staged into since the last flush, and their failure counts before
        self._waiting: dict[Operation, None] = {}  # operations of this connection that may still be in a purgatory

    # --- requests --------------------------------------------------------------------------------------------------

    def handle(self, frame: memoryview) -> Answer | Preparation:
        """Handles one request.

        Raises:
            CloseConnection: the frame is malformed, or its API or version is not served.
        """
        api_key, version = _KEY_VERSION(frame)
        toll = self._toll(api_key, frame) if self._services.quotas.is_active else None
        try:
            if api_key == _PRODUCE and _PRODUCE_FIRST <= version <= _PRODUCE_LAST:
                if toll is None and version >= _PRODUCE_FLEXIBLE and self._services.context.authorizer is None:
                    found = self._services.produce.handle_one(frame, version, self._touched)
                    if found is not None:
                        answer, operation = found
                        if operation is not None:
                            self._remember(operation)
                        return answer
                return self.produce(frame, version, None, toll)
            if api_key == _FETCH and _FETCH_FIRST <= version <= _FETCH_LAST:
                return self._fetch(frame, version, toll)
            return self._other(frame, toll)
        except DecodeError as error:
            raise CloseConnection(f"malformed request of API {api_key} version {version}: {error}") from error
        finally:
            if toll is not None:
                toll.ended()

    def _toll(self, api_key: int, frame: memoryview) -> Toll | None:
        """Returns what a request costs its client; None for a request that no quota limits."""
        if api_key not in self._services.charged or len(frame) < _CLIENT_ID_AT:
            return None
        length = _CORRELATION_CLIENT(frame, 4)[1]
        client_id = bytes(frame[_CLIENT_ID_AT : _CLIENT_ID_AT + length]) if length > 0 else b""
        return self._account.toll(self._peer.identity, client_id)

    def flush(self) -> None:
        """Writes the batches that the requests of this drain have staged.

        Raises:
            CloseConnection: a disk failed, so that answers that promise an append must not leave.
        """
        inline = self._inline
        if inline.left != INLINE_COST:
            inline.renew()
        touched = self._touched
        if not touched:
            return
        self._touched = {}
        self._services.produce.flush(touched)

    def closed(self) -> None:
        """Drops the waiting operations of a closed connection, and ends its share sessions."""
        self._services.quotas.forget(self.throttle)
        self._services.context.share_partitions.connection_closed(
            session_owner(self._services.listener_name, self._client_host, self._client_port)
        )
        waits = self._services.context.replicas.waits
        for operation in self._waiting:
            if isinstance(operation, FetchOperation):
                if operation.delayed is not None:
                    waits.fetches.abandon(operation.delayed)
            else:
                waits.abandon_produce(operation)
        self._waiting = {}

    def _remember(self, operation: Operation) -> None:
        """Stores a waiting operation; removes finished ones when there are many."""
        waiting = self._waiting
        if len(waiting) >= 64:
            self._waiting = waiting = {known: None for known in waiting if not known.finished}
        waiting[operation] = None

    def _rights(self) -> Permissions | None:
        """Returns what the peer may do now; None if there is no authorizer."""
        context = self._services.context
        authorizer = context.authorizer
        if authorizer is None:
            return None
        permissions = self._permissions
        identity = self._peer.identity
        if permissions is None or permissions.identity is not identity:
            self._permissions = permissions = authorizer.permissions(identity)
        if permissions.acls is not context.metadata.image.acls:
            permissions.refresh()
        return permissions

    # --- hot path --------------------------------------------------------------------------------------------------

    def produce(
        self, frame: memoryview, version: int, checks: RequestChecks | None, toll: Toll | None
    ) -> Answer | Preparation:
        """Handles a Produce request; ``checks`` are the checks of its records, if they have run before."""
        correlation_id, position = _hot_header(frame, version >= _PRODUCE_FLEXIBLE)
        if toll is not None and checks is None:
            toll.due(len(frame))
        services = self._services
        answer, operation = services.produce.handle(
            frame,
            position,
            version,
            correlation_id,
            self._touched,
            entries_max=ENTRIES_FREE if len(frame) < _MANY_ENTRIES_BYTES else self._entries_max(),
            is_verifying=self._verifying > 0,
            checks=checks,
            budget=self._inline,
            permissions=None if services.context.authorizer is None else self._rights(),
            throttle_time_ms=0 if toll is None else toll.throttle_time_ms,
        )
        if type(answer) is tuple:  # as a rule
            return answer
        if isinstance(answer, RequestChecks):
            return CheckedProduce(self, frame, version, answer, toll)
        if isinstance(answer, VerifiedProduce):
            if self._verifying >= VERIFYING_MAX:
                raise CloseConnection(f"{VERIFYING_MAX} transactional requests wait for their coordinator already")
            self._verifying += 1
            answer.on_done = self._verified
        if operation is not None:
            self._remember(operation)
        return answer

    async def run_checks(self, checks: RequestChecks) -> None:
        """Runs the long checks of a Produce request."""
        await self._services.produce.run_checks(checks)

    def _verified(self) -> None:
        self._verifying -= 1

    def _fetch(self, frame: memoryview, version: int, toll: Toll | None) -> Answer:
        services, context = self._services, self._services.context
        correlation_id, position = _hot_header(frame, version >= _FETCH_FLEXIBLE)
        try:
            entries_max = ENTRIES_FREE if len(frame) < _MANY_ENTRIES_BYTES else self._entries_max()
            request = read_fetch_request(frame, position, version, entries_max)
        except TooManyEntriesError:
            if version < _ERRORS_FIRST:
                raise
            return services.fetch.encode_error(version, correlation_id, ErrorCode.INVALID_REQUEST)
        rights, acls = self._permissions, context.metadata.image.acls
        if rights is None or rights.acls is not acls or rights.identity is not self._peer.identity:
            rights = None if context.authorizer is None else self._rights()
        if rights is not None:
            rights.api = ApiKey.FETCH
        if request.replica_id >= 0:
            error = self._follower_error(request.replica_id, request.replica_epoch, rights)
            if error is not ErrorCode.NONE:
                if version < _ERRORS_FIRST:
                    raise CloseConnection(f"a fetch of replica {request.replica_id}: {error.name}")
                return services.fetch.encode_error(version, correlation_id, error)
            if toll is not None:
                toll.waive()  # replication has throttles of its own
            toll = None
        min_bytes, max_bytes, most = request.min_bytes, request.max_bytes, services.fetch.max_bytes
        if toll is not None and toll.fetch_bytes_max is not None:
            most = min(most, toll.fetch_bytes_max)
        if max_bytes > most or min_bytes > max_bytes:
            min_bytes, max_bytes = min(min_bytes, max_bytes, most), min(max_bytes, most)  # more would wait in vain
        query = FetchQuery(
            version,
            correlation_id,
            request.replica_id,
            request.replica_epoch,
            request.max_wait_ms,
            min_bytes,
            max_bytes,
            request.isolation_level,
            request.rack_id,
        )
        partitions = [
            FetchPartition(
                topic,
                wanted.partition,
                wanted.fetch_offset,
                wanted.partition_max_bytes,
                LeaderEpoch(wanted.current_leader_epoch),
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
            )
            for topic, wanted_partitions in request.topics
            for wanted in wanted_partitions
        ]
        now_ms = context.environment.clock.monotonic_ms()
        session = context.sessions.open(
            request.session_id,
            request.session_epoch,
            partitions,
            [(topic, index) for topic, indexes in request.forgotten_topics for index in indexes]
            if request.forgotten_topics
            else (),
            privileged=request.replica_id >= 0,
            uses_topic_ids=version >= _TOPIC_IDS,
            now_ms=now_ms,
            fresh_id=context.environment.random.randrange(1, 1 << 31) if request.session_epoch == 0 else 0,
            # Where a consumer should read in its rack may change at any time.
            basis=object() if request.rack_id else None if rights is None else rights.basis,
        )
        if context.sessions.ended:
            for ended in context.sessions.take_ended():
                context.replicas.waits.end_session(ended)
        if session.error is not _NO_ERROR:
            return services.fetch.encode_error(version, correlation_id, session.error)
        refusals = None
        if rights is not None and request.replica_id < 0:
            refusals = partial(self._unreadable, by_id=version >= _TOPIC_IDS)
        answer, operation = services.fetch.start(query, session, now_ms, refusals, toll)
        if operation is not None:
            self._remember(operation)
        return answer

    def _unreadable(self, partitions: Sequence[FetchPartition], *, by_id: bool) -> dict[int, ErrorCode]:
        """Returns the errors of those partitions that the peer may not read now, by their numbers."""
        rights = self._rights()
        assert rights is not None
        rights.api = ApiKey.FETCH
        known = rights.readable[by_id]
        return {
            number: error
            for number, wanted in enumerate(partitions)
            if wanted.topic not in known
            and (error := rights.topic_error(AclOperation.READ, wanted.topic, by_id=by_id)) is not ErrorCode.NONE
        }

    def _entries_max(self) -> int:
        """Returns how many topics and partitions a request of ``_MANY_ENTRIES_BYTES`` or more may name."""
        return ENTRIES_FREE + 2 * self._services.context.metadata.partition_count()

    def _follower_error(self, replica_id: int, replica_epoch: int, rights: Permissions | None) -> ErrorCode:
        """Checks that a fetch with a replica id comes from that broker: followers read more than consumers do.

        Each partition later checks that the follower is a replica (NOT_LEADER_OR_FOLLOWER), and its broker epoch.
        """
        services = self._services
        context = services.context
        metadata = context.metadata
        if services.listener_name != metadata.inter_broker_listener:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED  # brokers use the inter-broker listener, clients this one
        if rights is not None and not rights.may_cluster(AclOperation.CLUSTER_ACTION):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        broker = metadata.image.brokers.get(replica_id)
        if broker is None or replica_id == context.broker_id:
            return ErrorCode.BROKER_ID_NOT_REGISTERED
        if 0 <= replica_epoch < broker.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH  # KIP-903
        return ErrorCode.NONE

    # --- everything else -------------------------------------------------------------------------------------------

    def _other(self, frame: memoryview, toll: Toll | None) -> Answer:
        header = decode_request_header(frame)
        context = self._services.context
        api = self._services.apis.get(header.api_key)
        if api is None:
            raise CloseConnection(f"API {header.api_key} is not served here")
        if header.api_key == ApiKey.API_VERSIONS:
            return self._api_versions(header, frame)
        if not api.first_version <= header.api_version <= api.last_version:
            if header.api_key == ApiKey.PRODUCE and header.api_version < _PRODUCE_FIRST:
                raise CloseConnection(f"Produce version {header.api_version}: message formats before v2 are not stored")
            raise CloseConnection(
                f"{api.key.name} version {header.api_version} is not served, "
                f"only {api.first_version} to {api.last_version}"
            )
        call = Call(
            version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            client_host=self._client_host,
            client_port=self._client_port,
            software=self._software,
            listener_name=self._services.listener_name,
            identity=self._peer.identity,
            fetch_bytes_max=toll.fetch_bytes_max if toll is not None and api.key is ApiKey.SHARE_FETCH else None,
        )
        # The compiled codec leaves bytes fields as views of the borrowed frame: handlers that wait need a copy.
        body = bytes(frame[header.body_offset :])
        request = decode_limited(
            header.api_key,
            header.api_version,
            body,
            0,
            entries_max=context.config.get_int("request.max.entries"),
            partition_count=context.metadata.partition_count,
            correlation_id=header.correlation_id,
            logger=_logger,
        )
        if isinstance(request, bytes):
            return (request,)
        assert api.handle is not None, f"{api.key.name} has no handler"
        asked, verdict = request, self._judge(request, header.api_version)
        if verdict is not None and verdict.remainder is not None:
            request = verdict.remainder
            call = replace(call, verdict=verdict)
        exchange = Exchange(
            api=api, call=call, body=body, quotas=self._services.quotas, throttle=self.throttle, toll=toll
        )
        if verdict is not None and verdict.remainder is None:
            assert verdict.refused is not None
            return (exchange.refuse(verdict.refused),)
        if api.waits:
            judge_again = partial(self._judge_again, asked, header.api_version, context.metadata.image.acls)
            return HandlerAnswer(context, request, exchange, judge_again)
        outcome = api.handle(context, request, call)
        if isinstance(outcome, Completion):
            if not outcome.is_ready:
                return CompletionAnswer(outcome, exchange)
            outcome = outcome.response()
        if isinstance(outcome, LongAnswer):
            return LateAnswer(outcome, exchange)
        assert not isinstance(outcome, Awaitable)
        return (exchange.encode(outcome),)

    def _judge(self, request: Request, version: int) -> Verdict | None:
        """Checks a request; None if it is served as it is."""
        rights = self._rights()
        if rights is None:
            return disabled(request, version) if request.__api_key__ in SECURITY_APIS else None
        creates_topics = self._services.context.config.get_bool("auto.create.topics.enable")
        return check(request, version, rights, BROKER_CHECKS, creates_topics=creates_topics)

    def _judge_again(self, request: Request, version: int, acls: object) -> Verdict | None:
        """Checks a request whose turn has come; None if ``acls``, by which it was checked, are the present ones."""
        return None if self._services.context.metadata.image.acls is acls else self._judge(request, version)

    def _api_versions(self, header: RequestHeader, frame: memoryview) -> Answer:
        answer, software = self._services.described_apis.answer(header, frame)
        if software is not None:
            self._software = software
        return (answer,)
