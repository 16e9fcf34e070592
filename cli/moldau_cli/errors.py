"""Exit codes, and the exceptions with which a command reports why it failed."""

from __future__ import annotations

from typing import Final

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141
"""The reader of a pipe closed it: 128 + SIGPIPE, as a shell reports it for ``cat`` and ``grep``."""


class CommandError(Exception):
    """A command failed. The text is one line for the user."""

    exit_code = EXIT_FAILED


class UsageError(CommandError):
    """The user asked for something invalid: an unknown name, a bad value, a missing file."""

    exit_code = EXIT_USAGE


class AnsweredError(CommandError):
    """A command has answered, and the answer says that something is wrong, such as a node that does not run.

    People read that in the answer; only with ``--json`` does the text follow on stderr.
    """

    def __init__(self, text: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class OutputError(OSError):
    """The answer of a command could not be written to stdout."""


OF_USAGE: Final = frozenset(
    {
        *("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "INVALID_TOPIC_EXCEPTION", "INVALID_PARTITIONS"),
        *("INVALID_REPLICATION_FACTOR", "INVALID_REPLICA_ASSIGNMENT", "INVALID_CONFIG", "INVALID_REQUEST"),
        *("INVALID_REGULAR_EXPRESSION", "GROUP_ID_NOT_FOUND", "INVALID_GROUP_ID", "MESSAGE_TOO_LARGE"),
        *("TRANSACTIONAL_ID_NOT_FOUND", "RESOURCE_NOT_FOUND", "DELEGATION_TOKEN_NOT_FOUND", "VOTER_NOT_FOUND"),
        "BROKER_ID_NOT_REGISTERED",
    }
)
"""Kafka's error codes if the user has named what does not exist, or given a value that is not allowed."""
_GRANT: Final = "moldau acls add grants rights, and the logs of the nodes name the missing one (denied)"
ADVICE: Final = {
    "TOPIC_AUTHORIZATION_FAILED": _GRANT,
    "GROUP_AUTHORIZATION_FAILED": _GRANT,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": _GRANT,
    "CLUSTER_AUTHORIZATION_FAILED": _GRANT,
    "SECURITY_DISABLED": "set it on all nodes and restart them: nothing enforces ACLs without it",
    "DELEGATION_TOKEN_AUTH_DISABLED": "set delegation.token.secret.key on all nodes and restart them",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "log in with SASL or a client certificate (--command-config), and not with "
    "a token",
}
"""The way out of errors with these codes of Kafka, whose texts name none."""
