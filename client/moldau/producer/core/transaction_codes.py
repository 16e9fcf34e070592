"""Groups of error codes by their meaning for a transactional producer.

A code in none of these groups is fatal.
"""

from __future__ import annotations

from moldau.protocol.errors import ErrorCode

SEEK_COORDINATOR = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
RETRIED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
)
ABORTABLE = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
FATAL_OF_RECORDS = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)


def rank(code: ErrorCode) -> int:
    """Returns the place of a code among those of one answer: the lowest decides.

    What stays comes before what passes, which may hide it for as long as it is tried again; consequences come last.
    """
    if code is ErrorCode.OPERATION_NOT_ATTEMPTED:
        return 3
    if code in SEEK_COORDINATOR or code in RETRIED:
        return 2
    return 1 if code in ABORTABLE else 0
