"""Looks before a write whether brokers answer at ``kafka.bootstrap.servers``, and know the topic.

The driver does it before Spark starts tasks, because Spark repeats a failed task three times, and each attempt would
wait for ``max.block.ms``. How long it waits depends on what is known about the address:

- A new streaming query has written nothing yet, so a wrong address is as likely as an outage: ``FIRST_MS``.
- A streaming query whose checkpoint holds a finished batch knows its cluster, which has an outage: ``KNOWN_MS``, as
  long as the source waits. So does one whose checkpoint this process cannot read.
- A batch may be new, or come from ``foreachBatch`` of a query: ``REACH_MS``.

``kafka.max.block.ms`` replaces all three. Blocking sockets and no client: this runs before each micro-batch.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_moldau.client_options import PREFIX, SECURITY_PREFIXES, parse_client
from pyspark_moldau.sink.explanations import explained, unreachable
from pyspark_moldau.wire.cluster import METADATA_VERSION, Cluster

if TYPE_CHECKING:
    from pyspark_moldau.client_options import ClientOptions
    from pyspark_moldau.sink.core.sink_options import SinkOptions

FIRST_MS: Final = 10_000
REACH_MS: Final = 30_000
KNOWN_MS: Final = 60_000
TOPIC_MS: Final = 10_000
"""How long a topic may be unknown: brokers hear of a new one a moment after its creation."""

_MAX_BLOCK: Final = "max.block.ms"
_FIRST_BACKOFF_S: Final = 0.1
_LAST_BACKOFF_S: Final = 1.0


def wait_ms(options: SinkOptions, *, streaming: bool) -> int:
    """Returns how long the driver waits for the first answer of a broker."""
    given = options.producer.get(_MAX_BLOCK)
    if given is not None:
        return max(int(given), 1)
    if not streaming:
        return REACH_MS
    return FIRST_MS if is_new(options.checkpoint) else KNOWN_MS


def is_new(checkpoint: str | None) -> bool:
    """Returns whether a checkpoint is a folder of this machine without a finished batch."""
    if checkpoint is None:
        return False
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return False
    folder = Path(unquote(place.path) if place.scheme else checkpoint)
    try:
        # Spark makes the folder before it asks for a writer, so one that is absent is on another file system.
        return folder.is_dir() and not has_finished_batch(folder)
    except OSError:
        return False


def has_finished_batch(checkpoint: Path) -> bool:
    """Returns whether the query of a checkpoint has finished a batch.

    Raises:
        OSError: the folder cannot be read.
    """
    return any(each.name.isdecimal() for each in checkpoint.glob("commits/*"))


def check_reachable(options: SinkOptions, *, streaming: bool) -> None:
    """Waits until a broker answers and knows the topic of the option ``topic``; auto-creation makes it if it may.

    Raises:
        SinkError: no broker answers in time, or none knows the topic, or refuses it.
        OptionError: a key of TLS or of the login is wrong, or the login is refused.
    """
    limit_ms = wait_ms(options, streaming=streaming)
    cluster = Cluster(_client(options, limit_ms))
    topic = options.topic
    try:
        answer = _answered(cluster, options, limit_ms)
        deadline = time.monotonic() + min(limit_ms, TOPIC_MS) / 1000
        backoff_s = _FIRST_BACKOFF_S
        while topic is not None:
            code = next((ErrorCode.of(each.error_code) for each in answer.topics if each.name == topic), ErrorCode.NONE)
            if code in (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION) or (
                code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and time.monotonic() >= deadline
            ):
                raise explained(KafkaError(code), topic, options)
            if code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)
            answer = _answered(cluster, options, limit_ms)
    finally:
        cluster.forget()


def _client(options: SinkOptions, limit_ms: int) -> ClientOptions:
    taken = ("bootstrap.servers", "client.id", "socket.connection.setup.timeout.ms", "request.timeout.ms")
    client = parse_client(
        {
            f"{PREFIX}{key}": value
            for key, value in options.producer.items()
            if key in taken or key.startswith(SECURITY_PREFIXES)
        }
    )
    each_ms = max(limit_ms // len(client.bootstrap), 1)  # a silent address leaves time for the others
    return replace(
        client,
        connect_timeout_ms=min(client.connect_timeout_ms, each_ms),
        request_timeout_ms=min(client.request_timeout_ms, each_ms),
        fetch_wait_ms=0,
    )


def _answered(cluster: Cluster, options: SinkOptions, limit_ms: int) -> MetadataResponse:
    """Returns the first answer from any address.

    Raises:
        SinkError: none comes in time.
    """
    topics = [] if options.topic is None else [MetadataRequestTopic(name=options.topic)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=True)
    deadline = time.monotonic() + limit_ms / 1000
    backoff_s = _FIRST_BACKOFF_S
    while True:
        causes: dict[str, str] = {}
        for address in cluster.bootstrap:
            try:
                return cluster.ask(address, request, METADATA_VERSION, MetadataResponse)
            except OSError as error:
                causes["{}:{}".format(*address)] = cause_of(error)
        if time.monotonic() + backoff_s > deadline:
            raise unreachable(options, limit_ms, "; ".join(f"{place}: {cause}" for place, cause in causes.items()))
        time.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _LAST_BACKOFF_S)


def cause_of(error: OSError) -> str:
    """Returns why an address does not answer, and what to check there."""
    if isinstance(error, socket.gaierror):
        return f"the host name is not known here ({error.strerror or error})"
    if isinstance(error, ConnectionRefusedError):
        return "Connection refused: nothing listens at this port"
    if isinstance(error, TimeoutError):
        return "no answer in time: is another service, or a firewall, at this address?"
    return error.strerror or str(error)
