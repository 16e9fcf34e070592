"""Which request and response belong to which API key, and the header versions that go with them.

The tables of an API are imported when its classes are first used, because a client uses few of them. Their place
follows from the key: ``OFFSET_COMMIT`` is in ``messages/offset_commit.py``, as ``OffsetCommitRequest`` and
``OffsetCommitResponse``.
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from moldau.protocol.schema import Request, Response

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from moldau.protocol.versions import VersionRange


class ApiKey(IntEnum):
    """Kafka's API keys of the messages that Moldau knows."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api:
    """One API: its classes and what they share."""

    def __init__(self, key: ApiKey) -> None:
        """Takes the key; the classes are imported at their first use."""
        self.key = key

    def __repr__(self) -> str:
        return f"Api({self.key!r})"

    @cached_property
    def request(self) -> type[Request]:
        """The class of the request."""
        found: type[Request] = getattr(self._tables, f"{self.name}Request")
        assert issubclass(found, Request)
        return found

    @cached_property
    def response(self) -> type[Response]:
        """The class of the response."""
        found: type[Response] = getattr(self._tables, f"{self.name}Response")
        assert issubclass(found, Response)
        return found

    @property
    def _tables(self) -> ModuleType:
        return importlib.import_module(f"moldau.protocol.messages.{self.key.name.lower()}")

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as OffsetCommit."""
        return "".join(part.title() for part in self.key.name.split("_"))

    @property
    def versions(self) -> VersionRange:
        """The versions that the tables cover; a server may serve fewer."""
        return self.request.__versions__

    def is_flexible(self, version: int) -> bool:
        """Returns whether a version uses compact lengths and tagged fields (KIP-482)."""
        return version in self.request.__flexible__


APIS: Mapping[int, Api] = MappingProxyType({int(key): Api(key) for key in ApiKey})
"""Every API by key."""


def request_header_version(api_key: int, version: int) -> int:
    """Returns the version of the request header: 2 for flexible versions, 1 otherwise.

    Raises:
        KeyError: the key is unknown.
    """
    return 2 if APIS[api_key].is_flexible(version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """Returns 1 for flexible versions, 0 otherwise.

    ApiVersions always answers with 0, so that a client can read it before it knows the server's versions (KIP-511).

    Raises:
        KeyError: the key is unknown.
    """
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if APIS[api_key].is_flexible(version) else 0
