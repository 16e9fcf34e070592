"""Looks before a write whether brokers answer, and know the topic.

The driver does it before Spark starts tasks, because Spark repeats a failed task three times, and each attempt would
wait for ``max.block.ms``, which also replaces the limits of ``wire.reach``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_moldau.client_options import PREFIX, SECURITY_PREFIXES, parse_client
from pyspark_moldau.errors import ReadTimeoutError, SinkError
from pyspark_moldau.plans import local_folder
from pyspark_moldau.sink.explanations import MAX_BLOCK, explained
from pyspark_moldau.wire import reach
from pyspark_moldau.wire.cluster import METADATA_VERSION, Cluster

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_moldau.client_options import ClientOptions
    from pyspark_moldau.sink.core.sink_options import SinkOptions

TOPIC_MS: Final = 10_000
"""How long a topic may be unknown: brokers hear of a new one a moment after its creation."""
_REFUSED: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)


def wait_ms(options: SinkOptions, *, streaming: bool) -> int:
    """Returns how long the driver waits for the first answer of a broker."""
    given = options.producer.get(MAX_BLOCK)
    if given is not None:
        return max(int(given), 1)
    if not streaming:
        return reach.REACH_MS
    return reach.FIRST_MS if is_new(options.checkpoint) else reach.KNOWN_MS


def is_new(checkpoint: str | None) -> bool:
    """Returns whether a checkpoint is a folder of this machine without a finished batch."""
    folder = local_folder(checkpoint)
    if folder is None:
        return False
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
    try:
        cluster = reach.reached(_client(options), limit_ms, MAX_BLOCK)
        try:
            if options.topic is not None:
                _check_topic(cluster, options.topic, options, min(limit_ms, TOPIC_MS))
        finally:
            cluster.forget()
    except ReadTimeoutError as error:
        raise SinkError(str(error)) from error


def _client(options: SinkOptions) -> ClientOptions:
    taken = ("bootstrap.servers", "client.id", "socket.connection.setup.timeout.ms", "request.timeout.ms")
    return parse_client(
        {
            f"{PREFIX}{key}": value
            for key, value in options.producer.items()
            if key in taken or key.startswith(SECURITY_PREFIXES)
        }
    )


def _check_topic(cluster: Cluster, topic: str, options: SinkOptions, limit_ms: int) -> None:
    """Waits until a broker knows a topic.

    Raises:
        SinkError: none does in time, or a broker refuses the topic.
        ReadTimeoutError: no broker answers any more.
    """
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)

    def ask() -> ErrorCode:
        answer = cluster.ask_any(request, METADATA_VERSION, MetadataResponse)
        code = next((ErrorCode.of(each.error_code) for each in answer.topics if each.name == topic), ErrorCode.NONE)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(code)
        return code

    try:
        code = cluster.retry(f"find topic {topic}", ask, timeout_ms=limit_ms)
    except ReadTimeoutError as error:
        if not isinstance(error.__cause__, KafkaError):
            raise
        code = error.__cause__.code
    if code in (*_REFUSED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        raise explained(KafkaError(code), topic, options)
