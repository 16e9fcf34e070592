"""The cluster as a source sees it: metadata, connections to brokers, and retries with a bound.

After a leader change or the death of a broker a request is repeated until ``kafka.default.api.timeout.ms`` has passed
since the last progress, because Spark ends a query at the first exception.
"""

from __future__ import annotations

import base64
import logging
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar
from uuid import UUID

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from moldau.protocol.schema import Response
from moldau.values import join_address
from pyspark_moldau.client_options import API_TIMEOUT, PREFIX, OptionError
from pyspark_moldau.errors import ReadTimeoutError
from pyspark_moldau.wire.connections import BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.protocol.schema import Request
    from pyspark_moldau.client_options import ClientOptions
    from pyspark_moldau.source.core.offsets import Partition

logger = logging.getLogger(__name__)

METADATA_VERSION: Final = 12
"""Every Kafka 4 broker serves it, and it has topic ids."""
NO_TOPIC_ID: Final = UUID(int=0)
MISSING_TOPIC: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
REFUSED_ACCESS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "grant its principal READ and DESCRIBE on the topic, or correct the option subscribe"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant its principal READ on the group of publishOffsetsToGroup",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "grant its principal DESCRIBE on the cluster, or leave out maxBytesPerTrigger and maxBytesPerPartition"
    ),
}

T = TypeVar("T")
R = TypeVar("R", bound=Response)
Address = tuple[str, int]


class UnknownTopicError(OptionError):
    """A named topic does not exist."""


class NoAnswerError(ConnectionError):
    """No broker answers at any of several addresses; ``causes`` says why, by address."""

    def __init__(self, causes: Sequence[str]) -> None:
        self.causes = "; ".join(causes)
        super().__init__(f"no broker answers ({self.causes})")


def id_text(topic_id: UUID) -> str:
    """Returns a topic id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def topic_uuid(text: str) -> UUID:
    """Reads the result of ``id_text``."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def _metadata_request(topics: Sequence[str] | None) -> MetadataRequest:
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=wanted, allow_auto_topic_creation=False)


class Cluster:
    """Metadata and connections; for one thread."""

    def __init__(self, client: ClientOptions) -> None:
        self._client = client
        self.bootstrap = client.bootstrap
        self._connections: dict[Address, BrokerConnection] = {}
        self.brokers: dict[int, Address] = {}
        self.leaders: dict[Partition, int] = {}
        self.topic_ids: dict[str, UUID] = {}

    def refresh(
        self, topics: Sequence[str] | None, *, missing_ok: bool = False, expected: Mapping[str, UUID] | None = None
    ) -> None:
        """Asks for the metadata of topics, or of all topics that are not internal.

        A topic is missing only if no broker knows it, and another one than ``expected`` if no broker knows that id: a
        broker learns of changes a moment after the controller, and later if it was paused or cut off.

        Raises:
            UnknownTopicError: a topic does not exist, and ``missing_ok`` is false.
        """
        entries = self._described(topics, expected or {})
        self.leaders.clear()
        self.topic_ids.clear()
        for name, entry in entries.items():
            if entry.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION:
                raise UnknownTopicError(f"{name!r} is no name of a topic: letters, digits and ._- make one")
            if entry.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if missing_ok:
                    continue
                raise UnknownTopicError(f"topic {name} does not exist; create it, or correct its name")
            if topics is None and entry.is_internal:
                continue
            raise_for(entry.error_code, f"topic {name}")
            self.topic_ids[name] = entry.topic_id
            for part in entry.partitions:
                self.leaders[name, part.partition_index] = part.leader_id

    def topic_errors(self, topics: Sequence[str]) -> dict[str, ErrorCode]:
        """Returns the error of each topic that has one; a topic is missing only if no broker knows it."""
        found = {name: ErrorCode.of(entry.error_code) for name, entry in self._described(topics, {}).items()}
        return {name: code for name, code in found.items() if code != ErrorCode.NONE}

    def _described(
        self, topics: Sequence[str] | None, expected: Mapping[str, UUID]
    ) -> dict[str, MetadataResponseTopic]:
        """Returns the metadata of topics as one broker has it, and that of missing or unexpected ones as any has it."""
        answer = self.ask_any(_metadata_request(topics), METADATA_VERSION, MetadataResponse)
        self.brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found = {entry.name: entry for entry in answer.topics if entry.name is not None}
        for address in self.brokers.values():
            doubtful = [
                name
                for name, entry in found.items()
                if entry.error_code in MISSING_TOPIC
                or (entry.error_code == ErrorCode.NONE and entry.topic_id != expected.get(name, entry.topic_id))
            ]
            if topics is None or not doubtful:
                break
            try:
                answer = self.ask(address, _metadata_request(doubtful), METADATA_VERSION, MetadataResponse)
            except OSError as error:  # the other brokers may know the topic
                logger.info("broker-not-asked address=%s:%d error=%r", *address, error)
                continue
            for entry in answer.topics:
                if entry.name in found and (
                    found[entry.name].error_code in MISSING_TOPIC or entry.topic_id == expected.get(entry.name)
                ):
                    found[entry.name] = entry
        return found

    def leader_address(self, partition: Partition) -> Address:
        """Returns where the leader of a partition is.

        Raises:
            KafkaError: it has no leader now.
        """
        leader = self.leaders.get(partition)
        if leader is None or leader not in self.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition[0]}-{partition[1]} has no leader now")
        return self.brokers[leader]

    def take_connection(self, address: Address) -> BrokerConnection:
        """Returns a connection that the caller owns until ``give_back``, or closes.

        Raises:
            ConnectionError: the connection failed; the text names the address and the cause.
            OptionError: the keys of TLS or SASL are wrong, or the broker refused the login.
        """
        kept = self._connections.pop(address, None)
        if kept is not None and kept.is_outdated:
            kept.close()
            kept = None
        if kept is not None:
            return kept
        try:
            return BrokerConnection(*address, self._client)
        except OSError as error:
            raise ConnectionError(_at(address, error)) from error

    def give_back(self, address: Address, connection: BrokerConnection) -> None:
        """Keeps a connection without outstanding requests for the next use."""
        if address in self._connections:
            connection.close()
        else:
            self._connections[address] = connection

    def ask(self, address: Address, request: Request, version: int, response_class: type[R]) -> R:
        """Sends a request to one broker, and returns its response.

        Raises:
            ConnectionError: there is no answer; the text names the address and the cause.
            OptionError: the keys of TLS or SASL are wrong, or the broker refused the login.
        """
        connection = self.take_connection(address)
        try:
            connection.send(request, version)
            answer = connection.receive(response_class, version)
        except OSError as error:
            connection.close()
            raise ConnectionError(_at(address, error)) from error
        except BaseException:
            connection.close()
            raise
        self.give_back(address, connection)
        return answer

    def ask_any(self, request: Request, version: int, response_class: type[R]) -> R:
        """Asks the brokers known from metadata, then the bootstrap addresses, until one answers.

        Raises:
            NoAnswerError: none does.
            OptionError: the keys of TLS or SASL are wrong, or a broker refused the login.
        """
        causes = []
        for address in dict.fromkeys([*self.brokers.values(), *self._client.bootstrap]):
            try:
                return self.ask(address, request, version, response_class)
            except OSError as error:
                causes.append(str(error))
        raise NoAnswerError(causes)

    def forget(self) -> None:
        """Drops connections and leaders, which may be outdated after a failure."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self.leaders.clear()

    def retry(self, what: str, attempt: Callable[[], T], *, timeout_ms: int | None = None) -> T:
        """Repeats an attempt until it succeeds or the time for it is over: ``timeout_ms``, or that of the client.

        Raises:
            KafkaError: an error that no repetition mends.
            ReadTimeoutError: the time is over; its cause is the last error.
        """
        client = self._client if timeout_ms is None else replace(self._client, api_timeout_ms=timeout_ms)
        waits = RetryTimer(what, client)
        while True:
            try:
                return attempt()
            except (OSError, KafkaError) as error:
                waits.failed(error)
                self.forget()


class RetryTimer:
    """Backs off between attempts, and gives up if there is no progress within the timeout."""

    def __init__(self, what: str, client: ClientOptions) -> None:
        self._what = what
        self._timeout_s = client.api_timeout_ms / 1000
        self._first_s = client.retry_backoff_ms / 1000
        self._last_s = max(client.retry_backoff_max_ms / 1000, self._first_s)
        self.progress()

    def progress(self) -> None:
        """Starts the timeout again."""
        self._deadline = time.monotonic() + self._timeout_s
        self._backoff_s = self._first_s

    @property
    def is_over(self) -> bool:
        """Whether the timeout has passed since the last progress."""
        return time.monotonic() >= self._deadline

    def over(self, cause: str) -> str:
        """Returns the error of a timeout that has passed; ``cause`` ends with its punctuation."""
        return f"could not {self._what} for {self._timeout_s:g} s: {cause} {PREFIX}{API_TIMEOUT} is how long to wait"

    def failed(self, error: OSError | KafkaError) -> None:
        """Waits before the next attempt.

        Raises:
            KafkaError: the given error is final.
            ReadTimeoutError: the timeout has passed.
        """
        if isinstance(error, KafkaError) and not (error.code.retriable or error.code.refreshes_metadata):
            remedy = REFUSED_ACCESS.get(error.code)
            if remedy is not None:
                raise OptionError(f"could not {self._what}: this client may not ({error}); {remedy}") from error
            raise error
        if time.monotonic() + self._backoff_s > self._deadline:
            raise ReadTimeoutError(self.over(f"{error}; is the cluster up?")) from error
        logger.info("retry what=%r error=%r", self._what, error)
        time.sleep(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, self._last_s)


def _at(address: Address, error: OSError) -> str:
    """Returns the text of an error of one address: why it does not answer, and what to check there."""
    if isinstance(error, socket.gaierror):
        cause = f"the host name is not known here ({error.strerror or error})"
    elif isinstance(error, ConnectionRefusedError):
        cause = "Connection refused: nothing listens at this port"
    elif isinstance(error, TimeoutError):
        cause = "no answer in time: is another service, or a firewall, at this address?"
    else:
        cause = error.strerror or str(error)
    return f"{join_address(*address)}: {cause}"


def raise_for(code: int, what: str = "") -> None:
    """Turns an error code of a response into an exception.

    Raises:
        KafkaError: The code is not NONE.
    """
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode.of(code), what) if what else KafkaError(ErrorCode.of(code))
