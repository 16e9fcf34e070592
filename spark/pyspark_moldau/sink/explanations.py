"""Errors of writes as users need them: the option or column that an error is about, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode, KafkaError
from pyspark_moldau.client_options import PREFIX
from pyspark_moldau.errors import SinkError
from pyspark_moldau.wire.authentication import refusal
from pyspark_moldau.wire.reach import unanswered

if TYPE_CHECKING:
    from pyspark_moldau.sink.core.sink_options import SinkOptions

MARKER_TOPIC: Final = "__consumer_offsets"
"""The topic whose partition the offsets of decisions and markers name."""

MAX_BLOCK: Final = "max.block.ms"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"

_NOT_LOGGED_IN = (
    ErrorCode.SASL_AUTHENTICATION_FAILED,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    ErrorCode.ILLEGAL_SASL_STATE,
)
_MISSING_RIGHTS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "option topic",
        f"grant its principal WRITE and DESCRIBE on the topic; exactly-once needs READ on the topic {MARKER_TOPIC} too",
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "deliveryGuarantee",
        "grant its principal READ on groups with the prefix moldau-spark-",
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "deliveryGuarantee",
        "grant its principal WRITE and DESCRIBE on transactional ids with the prefix moldau-spark-",
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        "deliveryGuarantee",
        "grant its principal WRITE on the topic, or IDEMPOTENT_WRITE on the cluster",
    ),
}


def unreachable(options: SinkOptions, limit_ms: int, causes: str) -> SinkError:
    """Returns the error of addresses at which no broker answers; ``causes`` says why, by address."""
    problem = f"no broker at {options.producer['bootstrap.servers']} answered"
    return SinkError(unanswered(problem, limit_ms, causes, "correct the address", MAX_BLOCK))


def still_open(transactional_id: str, cause: str) -> SinkError:
    """Returns the error of a transaction that does not end, so that what it has committed is not known."""
    return SinkError(
        f"deliveryGuarantee exactly-once: the last transaction of {transactional_id} does not end ({cause}); moldau "
        f"txns describe {transactional_id} shows it, and moldau txns find-hanging --topic {MARKER_TOPIC} finds one "
        "that must be ended by moldau txns abort; start the query again then. "
        f"{PREFIX}{MAX_BLOCK} above 60000 waits longer"
    )


def mixed_decision(driver: str, group: str, limit_ms: int) -> SinkError:
    """Returns the error of a decision whose parts stay those of different batches."""
    return SinkError(
        f"deliveryGuarantee exactly-once: the parts of the last decision of this query do not fit together for "
        f"{limit_ms / 1000:g} s; if moldau txns describe {driver} shows a transaction that is being committed, wait "
        f"for it, or raise {PREFIX}{MAX_BLOCK}. Otherwise parts were deleted or have expired: delete the consumer "
        f"group {group}, and start the query again; it goes on from its notes"
    )


def explained(error: KafkaError | ValueError, topic: str, options: SinkOptions) -> SinkError:
    """Returns the error of a write with the option or column that it is about, and the remedy."""
    place = "option topic" if options.topic is not None else "column topic"
    if isinstance(error, KafkaError):
        unentitled = denied(error, options)
        if unentitled is not None:
            return unentitled
        if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            return SinkError(
                f"{place}: topic {topic!r} is not on {options.producer['bootstrap.servers']}; create it, or correct "
                f"the {place} ({error})"
            )
        if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            limits = "kafka.max.request.size and the topic's max.message.bytes"
            if "larger than buffer.memory" in str(error):
                limits = "kafka.buffer.memory"
            return SinkError(
                f"column value: a row for topic {topic!r} is too large: {error}; raise the option {limits}, or write "
                "smaller rows"
            )
        if error.code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
            return SinkError(
                f"rows for topic {topic!r} were not written: their transaction was aborted ({error}). If a task takes "
                f"longer than {PREFIX}{TRANSACTION_TIMEOUT}, raise it, and transaction.max.timeout.ms of the brokers, "
                "or write fewer rows at a time"
            )
        if error.code is ErrorCode.INVALID_TIMESTAMP:
            return SinkError(
                f"column timestamp: rows for topic {topic!r} were not written: {error}; correct the column, or change "
                "message.timestamp.before.max.ms or message.timestamp.after.max.ms of the topic"
            )
        return SinkError(f"rows for topic {topic!r} were not written: {error}")
    if "partition" in str(error):
        return SinkError(f"column partition: topic {topic!r}: {error}; null leaves the choice to the partitioner")
    return SinkError(f"{place}: rows for topic {topic!r} were not written: {error}")


def denied(error: KafkaError, options: SinkOptions) -> SinkError | None:
    """Returns the error of a refused connection, login, right or time with option and remedy, None for others."""
    if error.code is ErrorCode.INVALID_CONFIG:
        return SinkError(_unusable(str(error)))
    if error.code in _NOT_LOGGED_IN:
        return SinkError(refusal(error, options.producer.get("sasl.mechanism", ""), options.producer))
    if error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        given = options.producer[TRANSACTION_TIMEOUT]
        return SinkError(
            f"{PREFIX}{TRANSACTION_TIMEOUT}: the brokers allow no {given} ms; set it to at most their "
            "transaction.max.timeout.ms, or raise that"
        )
    found = _MISSING_RIGHTS.get(error.code)
    if found is None:
        return None
    place = "column topic" if found[0] == "option topic" and options.topic is None else found[0]
    return SinkError(f"{place}: this client may not write ({error}); {found[1]}")


def _unusable(text: str) -> str:
    """Returns the line for brokers whose listeners do not fit the client's configuration."""
    if "(ssl.keystore.location)" in text:
        return f"{PREFIX}ssl.keystore.location: {text}; name the PEM file with a certificate that the broker trusts"
    if "certificate has expired" in text:
        return f"{PREFIX}bootstrap.servers: {text}; the broker needs a new certificate"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        plain = text.partition("; is its signer")[0]
        return f"{PREFIX}ssl.truststore.location: {plain}; name the PEM file with its signer, or check the host name"
    return f"{PREFIX}security.protocol: {text.replace('security.protocol=', f'{PREFIX}security.protocol=')}"
