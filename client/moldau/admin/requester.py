"""Sending of the admin client's requests, with retries until ``default.api.timeout.ms`` is over."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from moldau.admin.failures import error_of, raise_failures, reason_of
from moldau.cluster.background import exits_unwrapped
from moldau.cluster.bootstrap import bootstrap_key
from moldau.cluster.client import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, TRANSPORT_ERRORS, ClusterClient
from moldau.cluster.connections.endpoints import QUESTION, metadata_of
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.access import AclOperation
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.api_versions import ApiVersionsRequest
from moldau.protocol.messages.describe_acls import DescribeAclsRequest
from moldau.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from moldau.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from moldau.protocol.messages.describe_configs import DescribeConfigsRequest
from moldau.protocol.messages.describe_quorum import DescribeQuorumRequest
from moldau.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from moldau.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.protocol.schema import Response
from moldau.runtime.sasl.core.errors import SaslAuthenticationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from moldau.cluster.caller import Caller
    from moldau.protocol.schema import Request
    from moldau.runtime.net.served_versions import NeededVersion

AT_ONCE_MAX = 32
"""Calls of ``Requester.at_once`` under way. Each holds a response, and may open a connection with its handshake."""

R = TypeVar("R", bound=Response)
V = TypeVar("V")
K = TypeVar("K")


class _PartitionAnswer(Protocol):
    """The answer for a partition; some have an ``error_message`` too."""

    partition_index: int
    error_code: int


P = TypeVar("P", bound=_PartitionAnswer)

READ_ONLY_REQUESTS = (
    ApiVersionsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    DescribeUserScramCredentialsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)
"""Requests that change nothing and that any broker answers.

The client may send one to a second broker while the first has not answered.
"""


class Located:
    """The broker that a request is about, such as a group's coordinator; it is looked up before each attempt."""

    __slots__ = ("_find", "node_id")

    def __init__(self, find: Callable[[float], Awaitable[int]]) -> None:
        """``find`` takes the time at which the call ends, as ``ClusterClient.now_ms``."""
        self._find = find
        self.node_id = -1
        """The broker that was asked last."""

    async def find(self, deadline_ms: float) -> int:
        """Returns the broker.

        Raises:
            KafkaError: it is not known.
        """
        self.node_id = await self._find(deadline_ms)
        return self.node_id


class Requester:
    """Sends requests for the parts of one admin client, which share it.

    ``cluster_client`` is None until the admin client is opened.
    """

    __slots__ = ("_caller", "_deadline_ms", "_refusal", "_retries", "_timeout_ms", "cluster_client")

    def __init__(self, caller: Caller, *, timeout_ms: int, retries: int) -> None:
        """Takes ``default.api.timeout.ms`` and ``retries``."""
        self._caller = caller
        self._retries = retries
        self._timeout_ms = timeout_ms
        self._deadline_ms: float | None = None
        self._refusal = ""  # why the last request of the call is repeated
        self.cluster_client: ClusterClient | None = None

    def within(self, timeout_ms: int) -> Requester:
        """Returns a requester of the same client whose requests end together, ``timeout_ms`` from now.

        Raises:
            RuntimeError: the admin client is not open.
        """
        if self.cluster_client is None:
            self._caller.refuse()
        bounded = Requester(self._caller, timeout_ms=timeout_ms, retries=self._retries)
        bounded.cluster_client = self.cluster_client
        bounded._deadline_ms = self.cluster_client.now_ms + timeout_ms
        return bounded

    @property
    def timeout_ms(self) -> int:
        """The time that a call may still take."""
        if self._deadline_ms is None:
            return self._timeout_ms
        return max(0, int(self._deadline_ms - self.client.now_ms))

    @property
    def request_timeout_ms(self) -> int:
        """The time that a request of the call may take."""
        if self._deadline_ms is None:
            return self.client.request_timeout_ms
        return max(1, self.broker_timeout_ms)

    def limit_s(self) -> float:
        """Returns how long a request of the call may last, in seconds."""
        return self.timeout_ms / 1000

    @property
    def client(self) -> ClusterClient:
        """The open cluster client.

        Raises:
            RuntimeError: the admin client is not open, or the call comes from another thread.
        """
        self._caller.check()
        if self.cluster_client is None:
            self._caller.refuse()
        return self.cluster_client

    @property
    def broker_timeout_ms(self) -> int:
        """The time a request gives the broker: the smaller of the call's and the request's timeout."""
        return min(self.timeout_ms, self.client.request_timeout_ms)

    async def ask(
        self,
        response_class: type[R],
        request: Request,
        *,
        node_id: int | None = None,
        at: Located | None = None,
        code_of: Callable[[R], ErrorCode | None] | None = None,
        needed: NeededVersion | None = None,
        version_max: int | None = None,
    ) -> R:
        """Returns the first response without a retriable error, from any broker, from ``node_id``, or the one ``at``.

        A client of controllers (KIP-919) asks the active one, and looks for it again where NOT_CONTROLLER is answered.
        Until it has found the controllers it sends them no other request, so brokers, and controllers that do not let
        it describe them, refuse each call alike.

        A request to a certain broker has no later version than ``version_max``.

        Raises:
            KafkaError: REQUEST_TIMED_OUT when the timeout or the retries are used up; BROKER_NOT_AVAILABLE when
                ``node_id`` is gone; UNSUPPORTED_VERSION where no broker serves the ``needed`` version of the request.
        """
        client = self.client
        deadline_ms = client.now_ms + self.timeout_ms
        named_in = client.clusters_left if at is None else None
        failures = 0
        problem = self._refusal
        if client.asks_controllers and not (client.cluster_metadata.brokers or isinstance(request, type(QUESTION))):
            await self.within(self.timeout_ms).fetch_brokers()
        while True:
            try:
                if at is not None:
                    node_id = await at.find(deadline_ms)
                with trio.fail_after(_left_s(client, deadline_ms)):
                    if node_id is not None:
                        response = await client.request(
                            node_id,
                            response_class,
                            request,
                            needed=needed,
                            version_max=version_max,
                            named_in=named_in,
                        )
                    elif isinstance(request, READ_ONLY_REQUESTS) and needed is None:
                        response = await client.ask_any(response_class, request)
                    else:
                        response = await client.request_any(response_class, request, needed=needed)
            except SaslAuthenticationError:
                raise
            except TRANSPORT_ERRORS as error:
                # An attempt that is cut short says nothing.
                problem = str(error) or problem or _silence(client, node_id, is_named=at is None)
            except KafkaError as error:
                if at is None or not failures or not error.retriable:
                    raise
                problem = str(error)  # the broker that failed has no successor yet
            else:
                code = _not_controller(response) if client.asks_controllers else None
                if code is None and code_of is not None:
                    code = code_of(response)
                if code is None or not code.retriable:
                    return response
                problem = reason_of(response, code)
            failures += 1
            if at is None and node_id is not None and node_id not in client.cluster_metadata.brokers:
                raise _not_available(client, node_id)
            if failures > self._retries or client.now_ms >= deadline_ms:
                name = type(request).__name__.removesuffix("Request")
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{name}: {problem}")
            client.request_update()
            await _backoff(client, failures, deadline_ms)

    async def ensure_broker_known(self, node_id: int) -> None:
        """Fetches the cluster metadata unless it holds the broker's address.

        Raises:
            KafkaError: BROKER_NOT_AVAILABLE when the broker is not alive.
        """
        client = self.client
        clusters_left = client.clusters_left
        if node_id not in client.cluster_metadata.brokers and node_id not in await self.fetch_brokers():
            raise _not_available(client, node_id)
        client.check_cluster(node_id, clusters_left)

    def broker_name(self, node_id: int) -> str:
        """See ``ClusterMetadata.broker_name``."""
        return self.client.cluster_metadata.broker_name(node_id)

    async def ask_each(
        self,
        response_class: type[R],
        request: Request,
        read: Callable[[int, R], Mapping[str, V]],
        *,
        code_of: Callable[[R], ErrorCode | None],
        needed: NeededVersion | None = None,
    ) -> list[V]:
        """Asks all brokers at the same time, as ``ask``; returns what ``read`` finds in their answers, by name.

        If a broker is gone meanwhile, all are asked again while there is time: others have taken its part over.

        Raises:
            AdminError: a broker failed, or ``read`` refused its answer; ``results`` has what the others listed.
            SaslAuthenticationError: the login was refused.
            KafkaError: no broker listed anything, with the reason of one of them; a refusal precedes a silence.
        """
        bounded = self.within(self.timeout_ms)

        async def ask(node_id: int) -> Mapping[str, V]:
            return read(
                node_id, await bounded.ask(response_class, request, node_id=node_id, code_of=code_of, needed=needed)
            )

        found: dict[int, Mapping[str, V]] = {}
        failures: dict[int, KafkaError] = {}
        while True:
            try:
                brokers = await bounded.fetch_brokers()
            except SaslAuthenticationError:
                raise
            except KafkaError:
                if not failures:
                    raise
                break
            answered, failures = await bounded._made({each: partial(ask, each) for each in brokers})
            # A broker that answered before and has no time for another answer has still listed what it had then.
            found = {each: known for each, known in found.items() if each in failures} | answered
            gone = any(error.code is ErrorCode.BROKER_NOT_AVAILABLE for error in failures.values())
            if not gone or not bounded.timeout_ms:
                break
            await bounded.client.backoff(1)
        if failures and not found:
            raise min(failures.values(), key=lambda error: error.retriable)
        by_name = {name: one for each in found.values() for name, one in each.items()}
        listed = [by_name[name] for name in sorted(by_name)]
        raise_failures({bounded.broker_name(each): one for each, one in failures.items()}, listed)
        return listed

    async def each(self, names: Iterable[str], call: Callable[[Requester, str], Awaitable[V]]) -> dict[str, V]:
        """Returns what ``call`` returns for each name; all of them together have the time of one call.

        The calls are made at the same time, as ``at_once``: a coordinator that does not answer costs no other its time.

        Raises:
            AdminError: ``call`` failed for a name; it was made for the others.
            SaslAuthenticationError: the login was refused.
        """
        bounded = self.within(self.timeout_ms)
        found, failures = await self._made({name: partial(call, bounded, name) for name in dict.fromkeys(names)})
        raise_failures(failures, found)
        return found

    async def change_each(
        self,
        names: Iterable[str],
        change: Callable[[Requester, list[str]], Awaitable[Mapping[str, KafkaError]]],
        *,
        final: Collection[ErrorCode] = (),
    ) -> dict[str, KafkaError]:
        """Makes a change for each name, and again for those refused for a while: not with a code of ``final``.

        ``change`` takes the names to send and returns the errors of those that were refused; it raises if nothing was
        done. A name that was changed is not sent again: the repeated change would be refused.

        Returns the errors that remain, in the order of ``names``.

        Raises:
            KafkaError: nothing was done.
        """
        bounded = self.within(self.timeout_ms)
        errors: dict[str, KafkaError] = {}
        wanted = list(dict.fromkeys(names))
        left, rounds = wanted, 0
        while True:
            try:
                refused = await change(bounded, left)
            except KafkaError as error:
                if not rounds:
                    raise
                errors |= dict.fromkeys(left, error)
                break
            errors = {name: error for name, error in errors.items() if name not in left} | dict(refused)
            left = [name for name in left if name in refused and refused[name].retriable]
            left = [name for name in left if refused[name].code not in final]
            if not left:
                break
            bounded._refusal = str(refused[left[0]])
            rounds += 1
            await self.client.backoff(rounds)
        return {name: errors[name] for name in [*wanted, *errors] if name in errors}

    async def at_once(self, calls: Mapping[K, Callable[[], Awaitable[V]]]) -> tuple[dict[K, V], dict[K, KafkaError]]:
        """Makes calls about different brokers at the same time, so that none waits for a broker of another.

        At most ``AT_ONCE_MAX`` calls are under way; the others follow in their order.

        Returns what each call returned, and the errors of those that failed, both in the order of ``calls``.

        Raises:
            SaslAuthenticationError: the login was refused.
            KafkaError: the only call failed.
        """
        found, failures = await self._made(calls)
        if len(calls) == 1:
            for error in failures.values():
                raise error
        return found, failures

    async def _made(self, calls: Mapping[K, Callable[[], Awaitable[V]]]) -> tuple[dict[K, V], dict[K, KafkaError]]:
        _ = self.client  # misuse is refused here, outside the tasks
        found: dict[K, V] = {}
        failures: dict[K, KafkaError] = {}
        ended: list[RuntimeError] = []

        async def make(key: K, call: Callable[[], Awaitable[V]]) -> None:
            try:
                found[key] = await call()
            except KafkaError as error:
                failures[key] = error
            except RuntimeError as error:  # the client was closed
                ended.append(error)
                nursery.cancel_scope.cancel()

        waiting = iter(calls.items())

        async def work(key: K, call: Callable[[], Awaitable[V]]) -> None:
            await make(key, call)
            for another in waiting:
                await make(*another)

        with exits_unwrapped():
            async with trio.open_nursery() as nursery:
                for key, call in islice(waiting, AT_ONCE_MAX):
                    nursery.start_soon(work, key, call)
        for closed in ended:
            raise closed
        for error in failures.values():
            if isinstance(error, SaslAuthenticationError):
                raise error
        return {key: found[key] for key in calls if key in found}, {
            key: failures[key] for key in calls if key in failures
        }

    async def fetch_brokers(self) -> list[int]:
        """Updates the cluster metadata and returns the ids of the live brokers, or of the controllers, ascending."""
        client = self.client
        if client.asks_controllers:
            found = await self.ask(DescribeClusterResponse, QUESTION)
            client.adopt(metadata_of(found, "a controller"))
        else:
            response = await self.ask(MetadataResponse, MetadataRequest(topics=[], allow_auto_topic_creation=False))
            client.adopt(response)
        return sorted(client.cluster_metadata.brokers)

    def group_coordinator(self, group_id: str) -> Located:
        """Returns the place of requests about a group, for ``ask``."""
        return self._coordinator(group_id, GROUP_COORDINATOR, f"group {group_id}")

    def transaction_coordinator(self, transactional_id: str) -> Located:
        """Returns the place of requests about a transactional id, for ``ask``."""
        return self._coordinator(transactional_id, TRANSACTION_COORDINATOR, f"transactional id {transactional_id}")

    def _coordinator(self, key: str, key_type: int, description: str) -> Located:
        async def find(deadline_ms: float) -> int:
            client = self.client
            failures = 0
            problem = ""
            while True:
                try:
                    with trio.fail_after(_left_s(client, deadline_ms)):
                        return await client.find_coordinator(key, key_type)
                except TRANSPORT_ERRORS as error:
                    last: Exception = error
                    problem = str(error) or problem or _silence(client)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    last, problem = error, str(error)
                failures += 1
                if client.now_ms >= deadline_ms:
                    raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{description}: {problem}") from last
                await _backoff(client, failures, deadline_ms)

        return Located(find)


def _not_controller(response: Response) -> ErrorCode | None:
    """Returns NOT_CONTROLLER if a controller has refused the whole request with it."""
    from moldau.protocol.refusals import has_code  # not loaded by clients of brokers

    return ErrorCode.NOT_CONTROLLER if has_code(response, ErrorCode.NOT_CONTROLLER) else None


def _left_s(client: ClusterClient, deadline_ms: float) -> float:
    return max(deadline_ms - client.now_ms, 0) / 1000


async def _backoff(client: ClusterClient, failures: int, deadline_ms: float) -> None:
    """Waits before the next attempt, and not beyond the end of the call."""
    with trio.move_on_after(_left_s(client, deadline_ms)):
        await client.backoff(failures)


def _silence(client: ClusterClient, node_id: int | None = None, *, is_named: bool = False) -> str:
    """Returns which server has not answered, for an attempt that the end of its call has cut short.

    If the caller has named the broker, ``is_named``, its errors already say which one it is.
    """
    if node_id is None:
        kind = "controller" if client.asks_controllers else "broker"
        return f"no {kind} of {', '.join(client.config.get_list(bootstrap_key(client.config)))} answers in time"
    if is_named:
        return "no answer in time"
    return f"{client.cluster_metadata.broker_name(node_id)} does not answer in time"


def _not_available(client: ClusterClient, node_id: int) -> KafkaError:
    kind = "controller" if client.asks_controllers else "live broker"
    return KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no {kind} {node_id}")


NOT_ASKED = -2147483648
"""The bit field of operations where the request did not ask for it, or the broker does not say."""


def operations_of(mask: int) -> tuple[str, ...] | None:
    """Returns the names of the operations in a bit field of a response (KIP-430)."""
    return None if mask == NOT_ASKED else tuple(each.name for each in AclOperation if mask >> each & 1)


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Groups partition numbers by topic, both ascending."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def by_partition(
    topics: Iterable[tuple[str, Iterable[P]]],
) -> Iterator[tuple[TopicPartition, KafkaError | None, P]]:
    """Yields partition, error and answer from the topics of a response, as ``protocol.answers.judge`` takes them."""
    for topic, parts in topics:
        for part in parts:
            error = error_of(part.error_code, getattr(part, "error_message", None))
            yield TopicPartition(topic, part.partition_index), error, part
