"""Kafka's error codes as a user of the command line meets them. Modules import this one when they have an error."""

from __future__ import annotations

from typing import Final

from moldau.protocol.errors import ErrorCode

OF_USAGE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
        ErrorCode.VOTER_NOT_FOUND,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
    }
)
"""The user has named what does not exist, or given a value that is not allowed: exit code 2."""
ADVICE: Final = {
    ErrorCode.SECURITY_DISABLED: "set it on all nodes and restart them: nothing enforces ACLs without it",
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key on all nodes and restart them",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in with SASL or a client certificate (--command-config), and "
    "not with a token",
}
"""The way out, where the broker's text names none."""
